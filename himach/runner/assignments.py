"""Parameters of analyses and of their later stages, set from a command line: `set_parameters()`."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from himach.analysis import Analysis
from himach.errors import UsageError, nearest
from himach.output.names import unique_labels
from himach.parameters import Parameter


def set_parameters(
    classes: Sequence[type[Analysis]], assignments: Sequence[str], recorded: Sequence[Mapping[str, Any]] = ()
) -> list[Analysis]:
    """Return instances of the analyses with their parameters set."""
    labels = unique_labels([cls.label() for cls in classes])
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
    import tomllib

    try:
        with open(path, "rb") as file:
            content = tomllib.load(file)
    except OSError as error:
        raise UsageError(f"-p @{path}: the file cannot be read ({error.strerror})") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"-p @{path}: the file is not TOML: {error}") from None
    tables = {name: value for name, value in content.items() if isinstance(value, dict)}
    rows = [("", {name: value for name, value in content.items() if name not in tables}), *tables.items()]
    texts = {f"{owner}{'.' if owner else ''}{name}": value for owner, row in rows for name, value in row.items()}
    return [f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in texts.items()]


def declared_stages(cls: type[Analysis]) -> list[Analysis | type[Analysis]]:
    """Return an analysis and its later stages; stop at a `then` that is no Analysis or that repeats a stage."""
    stages: list[Analysis | type[Analysis]] = [cls]
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
    """A declared analysis, the values of its parameters in an earlier run, and the texts of new values."""

    declared: Analysis | type[Analysis]
    label: str
    values: dict[str, Any] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)

    @property
    def parameters(self) -> dict[str, Parameter]:
        return self.declared.parameters()

    def make(self, previous: Analysis | None = None) -> Analysis:
        """Return an instance with its values; a class also takes values from the previous stage."""
        if isinstance(self.declared, type) and previous is not None:
            self.values = {**previous.values_for(self.declared), **self.values}
        values = {**self.values, **{name: self._parse(name, text) for name, text in self.texts.items()}}
        if isinstance(self.declared, type):
            return self.declared(**values)
        instance = copy.copy(self.declared)
        for name, value in values.items():
            setattr(instance, self.parameters[name].attribute, value)
        return instance

    def _parse(self, name: str, text: str) -> object:
        try:
            return self.parameters[name].parse(text)
        except UsageError as error:
            raise UsageError(f"{self.label}: {error}") from None


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
