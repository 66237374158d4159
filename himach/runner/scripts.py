"""Analyses by their names on a command line: built-in, ``script.py[:Class]`` or ``module:Class``; their parameters."""

import copy
import hashlib
import importlib.util
import json
import os
import sys
import textwrap
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any, TypeAlias

from himach import examples
from himach.adapted import adapted, is_foreign
from himach.analysis import Analysis
from himach.errors import AnalysisError, UsageError, nearest
from himach.files import read_toml
from himach.output.file_names import unique_names
from himach.parameters import Parameter
from himach.ranks.process_exit import is_interruption
from himach.runner.methods_text import doc_summary, due_references, named_references
from himach.user_code import SCRIPT_MODULE

#: Analyses that scripts define, by path and class name.
Loaded: TypeAlias = dict[str, Mapping[str, type[Analysis]]]


def find_analyses(
    specs: Sequence[str], assignments: Sequence[str], recorded: Sequence[Mapping[str, Any]] = ()
) -> list[Analysis]:
    """Return the analyses that `specs` name, with their parameters and those of their later stages set."""
    loaded: Loaded = {}
    return set_parameters([find_class(spec, loaded) for spec in specs], assignments, recorded)


def find_class(spec: str, loaded: Loaded | None = None) -> type[Analysis]:
    """Return the analysis class that `spec` names; do not run a script in `loaded` again."""
    path, _, class_name = spec.partition(":")
    if path.endswith(".py"):
        loaded = {} if loaded is None else loaded
        if path not in loaded:
            loaded[path] = load_script(Path(path))
        return _choose(loaded[path], path, class_name)
    if spec in examples.BUILTINS:
        built_in: type[Analysis] = examples.load(spec)
        return built_in
    if class_name and all(part.isidentifier() for part in path.split(".")):
        return _choose(_load_module(path), path, class_name)
    if os.path.exists(path):
        raise UsageError(
            f"{path} is no analysis, whose script's name ends in .py; a trajectory is named by -t PATH, each of "
            "several by a -t of its own, and a topology by --topology PATH"
        )
    raise UsageError(f"there is no analysis {spec!r}{examples.built_in_hint(spec)} (a script's name ends in .py)")


class _ScriptLoader(SourceFileLoader):
    """Loads a script from its file, never from __pycache__, which can be stale if both are of one second."""

    digest = b""

    def get_code(self, fullname: str) -> CodeType:
        text = self.get_data(self.path)
        self.digest = hashlib.sha256(text).digest()
        return self.source_to_code(text, self.path)


def script_digests(analyses: Sequence[Analysis]) -> dict[str, bytes]:
    """Return the scripts that define these analyses, each with a digest of the text that was run."""
    modules = [sys.modules.get(cls.__module__) for analysis in analyses for cls in type(analysis).__mro__]
    loaders = [getattr(module, "__loader__", None) for module in modules]
    return {loader.path: loader.digest for loader in loaders if isinstance(loader, _ScriptLoader)}


def load_script(path: Path) -> dict[str, type[Analysis]]:
    """Run a script as a module, with its folder on the import path; return its analyses by class name."""
    try:
        with path.open("rb"):
            pass
    except FileNotFoundError:
        raise UsageError(f"there is no script {path}") from None
    except OSError as error:
        raise UsageError(f"script {path} cannot be read: {error.strerror}") from None
    script = os.path.realpath(path)
    folder = os.path.dirname(script)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    name = _module_name(Path(script))
    module_spec = importlib.util.spec_from_file_location(name, script, loader=_ScriptLoader(name, script))
    assert module_spec is not None and module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    # Ranks exchange pickled instances of the script's classes by this name.
    sys.modules[name] = module
    try:
        module_spec.loader.exec_module(module)
    except SyntaxError as error:
        raise AnalysisError(f"{path}, line {error.lineno}: {error.msg}") from error
    except BaseException as error:
        if is_interruption(error):
            raise
        entries = [e for e in traceback.extract_tb(error.__traceback__) if e.filename == script]
        line = f", line {entries[-1].lineno}: {entries[-1].line}" if entries else ""
        raise AnalysisError(f"{path} could not be run: {type(error).__name__}: {error}\n  {path}{line}") from error
    if "joblib" in sys.modules:  # its workers cannot import the module by name
        import cloudpickle

        cloudpickle.register_pickle_by_value(module)
    return {key: value for key, value in vars(module).items() if _is_analysis(value) and value.__module__ == name}


def _is_analysis(value: Any) -> bool:
    return (isinstance(value, type) and issubclass(value, Analysis)) or is_foreign(value)


def _module_name(path: Path) -> str:
    """Return a module name from the script's file name, so that its classes have the same name on all ranks."""
    name = f"{SCRIPT_MODULE}{path.stem}"
    number = 1
    while name in sys.modules and sys.modules[name].__file__ != str(path):  # a script of that name in another folder
        number += 1
        name = f"{SCRIPT_MODULE}{path.stem}_{number}"
    return name


def _load_module(name: str) -> dict[str, type[Analysis]]:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"there is no module {name!r} ({error}); a script is named by its file, as script.py"
        ) from None
    except Exception as error:
        raise AnalysisError(f"module {name} cannot be imported: {type(error).__name__}: {error}") from error
    return {key: value for key, value in vars(module).items() if _is_analysis(value)}


def _choose(analyses: Mapping[str, type[Any]], path: str, class_name: str) -> type[Analysis]:
    """Return the analysis of that name, or the only one if there is no name, adapted if it is MDAnalysis's."""
    if class_name:
        if class_name not in analyses:
            raise UsageError(f"{path} defines no analysis {class_name!r}{nearest(class_name, analyses)}")
        cls = analyses[class_name]
        return cls if issubclass(cls, Analysis) else adapted(cls)
    # The caller does not mean a later stage or a base class of another analysis.
    next_stages = [getattr(cls, "then", None) for cls in analyses.values()]
    excluded = {id(stage) for stage in (*next_stages, *(base for cls in analyses.values() for base in cls.__mro__[1:]))}
    excluded |= {id(type(next_stage)) for next_stage in next_stages if isinstance(next_stage, Analysis)}
    chosen = [cls for cls in analyses.values() if id(cls) not in excluded]
    if len(chosen) == 1:
        return chosen[0] if issubclass(chosen[0], Analysis) else adapted(chosen[0])
    if not chosen:
        raise UsageError(
            f"{path} defines no analysis: write a class that derives from himach.Analysis, or MDAnalysis's AnalysisBase"
        )
    names = ", ".join(f"{path}:{cls.__name__}" for cls in chosen)
    raise UsageError(f"{path} defines {len(chosen)} analyses; name one: {names}")


def describe_analysis(cls: type[Analysis]) -> str:
    """Return the name, summary and parameters of an analysis and of the stages that follow it, for a terminal."""
    lines: list[str] = []
    previous: Analysis | type[Analysis] | None = None
    for stage in declared_stages(cls):
        lines += [f"  then {stage.label()}" if lines else stage.label(), *_description(stage, previous)]
        previous = stage
    return "\n".join(lines)


def _description(stage: Analysis | type[Analysis], previous: Analysis | type[Analysis] | None) -> Iterator[str]:
    cls = stage if isinstance(stage, type) else type(stage)
    if summary := doc_summary(cls):
        yield f"  {summary}"
    parameters = stage.parameters().values()
    values = {} if isinstance(stage, type) else stage.settings()
    width = max((len(parameter.name) for parameter in parameters), default=0)
    for parameter in parameters:
        value = values.get(parameter.name, parameter.default)
        default = f"default {value!r}"
        if value is parameter.REQUIRED:
            inherited = previous is not None and parameter.name in previous.parameters()
            default = f"that of {previous.label()}" if previous is not None and inherited else "required"
        yield f"    {parameter.name:<{width}}  {parameter.type_name}, {default}"
        yield from textwrap.wrap(
            parameter.doc, 96, initial_indent=" " * (width + 6), subsequent_indent=" " * (width + 6)
        )
    foreign = getattr(cls, "foreign", None)
    for reference in [*named_references(cls), *([] if foreign is None else due_references(foreign))]:
        yield f"    https://doi.org/{reference}" if reference.startswith("10.") else f"    {reference}"


def set_parameters(
    classes: Sequence[type[Analysis]], assignments: Sequence[str], recorded: Sequence[Mapping[str, Any]] = ()
) -> list[Analysis]:
    """Return instances of the analyses with their parameters set."""
    labels = unique_names([cls.label() for cls in classes])
    chains = [[_Stage(declared, declared.label()) for declared in declared_stages(cls)] for cls in classes]
    for chain, label in zip(chains, labels, strict=True):
        chain[0].label = label
    for chain, entry in zip(chains, recorded, strict=False):
        _restore(chain, entry)
    for assignment in _with_files(assignments):
        _assign(chains, assignment)
    return [_build(chain) for chain in chains]


def _with_files(assignments: Sequence[str]) -> list[str]:
    """Return assignments with those of ``@FILE.toml`` in place of its name, but for names that are set beside it."""
    own = [word for word in assignments if not word.startswith("@")]
    names = {word.partition("=")[0] for word in own}
    read = [assignment for word in assignments if word.startswith("@") for assignment in _read_file(word[1:])]
    return [*(assignment for assignment in read if assignment.partition("=")[0] not in names), *own]


def _read_file(path: str) -> list[str]:
    """Return the assignments of a TOML file; a table has those of the analysis that it names."""
    content = read_toml(path, f"-p @{path}")
    tables = {name: value for name, value in content.items() if isinstance(value, dict)}
    rows = [("", {name: value for name, value in content.items() if name not in tables}), *tables.items()]
    texts = {f"{owner}{'.' if owner else ''}{name}": value for owner, row in rows for name, value in row.items()}
    return [f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in texts.items()]


def declared_stages(first: Analysis | type[Analysis]) -> list[Analysis | type[Analysis]]:
    """Return an analysis and its later stages; stop at a `then` that is no Analysis or that repeats a stage."""
    stages = [first]
    while True:
        next_stage: Any = stages[-1].then
        if not issubclass(stage_class(next_stage), Analysis) or any(next_stage is stage for stage in stages):
            return stages
        stages.append(next_stage)


def stage_class(declared: Any) -> type[Any]:
    """Return the class of a stage that is declared by a class or an instance."""
    return declared if isinstance(declared, type) else type(declared)


@dataclass
class _Stage:
    """A declared analysis, the values of its parameters, and the texts of those that are assigned."""

    declared: Analysis | type[Analysis]
    label: str
    values: dict[str, Any] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)

    @property
    def parameters(self) -> dict[str, Parameter]:
        return self.declared.parameters()

    def make(self, previous: Analysis | None = None) -> Analysis:
        """Return an instance with its values; a class also takes values from the previous stage."""
        if isinstance(self.declared, type):
            inherited = {} if previous is None else previous.values_for(self.declared)
            return self.declared(**{**inherited, **self.values})
        instance = copy.copy(self.declared)
        for name, value in self.values.items():
            setattr(instance, self.parameters[name].attribute, value)
        return instance


def _assign(chains: Sequence[Sequence[_Stage]], assignment: str) -> None:
    name, equals, text = assignment.partition("=")
    if not equals:
        raise UsageError(f"-p {assignment}: a parameter is set as NAME=VALUE")
    owner, dot, parameter = name.rpartition(".")
    if not dot and len(chains) > 1:
        stages = [stage for chain in chains for stage in chain]
        choices = dict.fromkeys(f"{stage.label}.{assignment}" for stage in stages if name in stage.parameters)
        if not choices:
            names = {parameter for stage in stages for parameter in stage.parameters}
            raise UsageError(f"-p {assignment}: no analysis of this run has a parameter {name!r}{nearest(name, names)}")
        raise UsageError(
            f"-p {assignment}: with several analyses say whose parameter it is: -p {' or -p '.join(map(repr, choices))}"
        )
    # If no stage has the parameter, the first one reports the error.
    candidates = [stage for stage in chains[0] if parameter in stage.parameters] or chains[0]
    for stage in _owners(chains, owner, assignment) if dot else candidates[:1]:
        if parameter not in stage.parameters:
            hint = nearest(parameter, stage.parameters) if stage.parameters else "; it has none"
            raise UsageError(f"{stage.label} has no parameter {parameter!r}{hint}")
        if parameter in stage.texts:
            raise UsageError(
                f"-p {assignment}: {parameter!r} of {stage.label} was set to {stage.texts[parameter]!r} before; "
                "give one value"
            )
        stage.texts[parameter] = text
        try:
            stage.values[parameter] = stage.parameters[parameter].parse(text)
        except UsageError as error:
            raise UsageError(f"{stage.label}: {error}") from None


def _restore(chain: Sequence[_Stage], entry: Mapping[str, Any]) -> None:
    """Set the values of an analysis and its later stages from a record."""
    entries = [entry]
    while "then" in entries[-1]:
        entries.append(entries[-1]["then"])
    earlier, current = [stage_entry["name"] for stage_entry in entries], [stage.declared.label() for stage in chain]
    if earlier != current:
        raise UsageError(f"{chain[0].label} was {' then '.join(earlier)} in that run, and is {' then '.join(current)}")
    for stage, stage_entry in zip(chain, entries, strict=True):
        parameters = stage.parameters
        for name, value in stage_entry["parameters"].items():
            if name not in parameters:
                raise UsageError(f"{stage.label} had a parameter {name!r} in that run, and has none of that name")
            stage.values[name] = _from_json(parameters[name], value)


def _from_json(parameter: Parameter, value: Any) -> Any:
    """Return a parameter's value from a record; null and "Infinity" stand for numbers that JSON lacks."""
    try:
        return parameter.check(value)
    except UsageError:
        if value is None:
            return parameter.check(float("nan"))
        return parameter.parse(str(value))


def _owners(chains: Sequence[Sequence[_Stage]], owner: str, assignment: str) -> list[_Stage]:
    """Return the analysis with the label `owner`, else all analyses and stages of that name."""
    stages = [stage for chain in chains for stage in chain]
    owners = [chain[0] for chain in chains if chain[0].label == owner]
    owners = owners or [stage for stage in stages if owner in (stage.label, stage_class(stage.declared).__name__)]
    if not owners:
        labels = [stage.label for stage in stages]
        raise UsageError(f"-p {assignment}: no analysis {owner!r} in this run{nearest(owner, labels)}")
    return owners


def _build(chain: Sequence[_Stage]) -> Analysis:
    first = current = chain[0].make()
    for stage in chain[1:]:
        next_stage = stage.make(current)
        current.__dict__["then"] = next_stage
        current = next_stage
    return first
