"""An analysis that was written against MDAnalysis as one of himach's: `adapted()`.

Its `_single_frame()` is the map(): what it finds in a frame is its value, and MDAnalysis's own aggregator and
`_conclude()` make the results of all. So its results are those of ``analysis.run(n_parts=...)`` with a part for each
frame, for any number of ranks; and it can be interrupted, resumed, and run beside others like every analysis.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from himach.analysis import Analysis
from himach.atoms import Atoms
from himach.errors import UsageError
from himach.parameters import Parameter, parameter_docs

__all__ = ["Adapted", "adapted", "is_foreign", "takes_function"]

BASE = "MDAnalysis.analysis.base"
#: Arguments that are the Universe itself.
UNIVERSE = frozenset({"universe", "u"})
#: Arguments that are groups of atoms by their names, where no docstring says so.
GROUPS = frozenset({"ag", "ag1", "ag2", "atomgroup", "atomgroups", "ags", "atoms", "g1", "g2", "group"})
#: Arguments that a run has another way for.
ASIDE = frozenset({"self", "trajectory", "verbose"})
#: What a value of a parameter looks like that is no text.
LITERAL = re.compile(r"[\[({'\"+\-.\d]|(None|True|False)$")


def is_foreign(thing: Any) -> bool:
    """Tell whether `thing` is a class that derives from MDAnalysis's AnalysisBase; imports nothing."""
    base = getattr(sys.modules.get(BASE), "AnalysisBase", None)
    return base is not None and isinstance(thing, type) and issubclass(thing, base) and thing is not base


def takes_function(foreign: Any) -> bool:
    """Tell whether a class of MDAnalysis is made with a function, as AnalysisFromFunction is."""
    arguments = inspect.signature(foreign.__init__).parameters
    return "function" in arguments and arguments["function"].default is inspect.Parameter.empty


@dataclass(frozen=True)
class Argument:
    """An argument of an analysis of MDAnalysis, which is a parameter here.

    Attributes
    ----------
    parameter
        As which it is set. Its value lies under a name that no class of ours uses, so that any argument can be one.
    kind
        What its text is: "group", a selection; "residues", one of which the residues are meant; "groups", selections
        apart by semicolons, or lists of them as Python writes these; "literal", a Python literal where it looks like
        one; else "plain".
    """

    parameter: Parameter
    kind: str

    def value(self, given: Any, universe: Any) -> Any:
        """Return what the analysis is given for a parameter's value."""
        if not isinstance(given, str) or self.kind == "plain":
            return given
        if self.kind == "group":
            return self._selected(given, universe)
        if self.kind == "residues":
            return self._selected(given, universe).residues
        if self.kind == "groups" and not given.lstrip().startswith(("[", "(")):
            return [self._selected(text, universe) for text in given.split(";") if text.strip()]
        value: Any = given
        if LITERAL.match(given.strip()):
            with contextlib.suppress(ValueError, SyntaxError):
                value = ast.literal_eval(given.strip())
        return self._selected(value, universe) if self.kind == "groups" else value

    def _selected(self, value: Any, universe: Any) -> Any:
        """Return groups of atoms in place of selections; raises UsageError where there is none."""
        if isinstance(value, list | tuple):
            return [self._selected(item, universe) for item in value]
        if not isinstance(value, str):
            raise UsageError(f"parameter {self.parameter.name}: {value!r} is no selection of atoms")
        return Atoms.of(value).select(universe, self.parameter.name)


class Adapted(Analysis):
    """An analysis of MDAnalysis; `adapted` makes a subclass for each.

    Attributes
    ----------
    foreign
        Its class.
    arguments
        What it is made with.
    of_one_frame
        Names of attributes that tell the selection in analyses of himach, and one frame in those of MDAnalysis here.
    """

    foreign: ClassVar[Any] = None
    arguments: ClassVar[tuple[Argument, ...]] = ()
    of_one_frame: ClassVar[frozenset[str]] = frozenset({"frames", "n_frames", "step"})
    caches = ("_running",)

    @classmethod
    def parameters(cls) -> dict[str, Parameter]:
        """Return the arguments that a user sets."""
        return {argument.parameter.name: argument.parameter for argument in cls.arguments}

    def setup(self, universe: Any) -> None:
        """Make the analysis, and prepare it for one frame."""
        values = self.settings()
        arguments = {
            argument.parameter.name: argument.value(values[argument.parameter.name], universe)
            for argument in self.arguments
        }
        known = inspect.signature(self.foreign.__init__).parameters
        arguments.update(dict.fromkeys(UNIVERSE & known.keys(), universe))
        analysis = self._made(arguments)
        analysis._prepare_sliced_trajectory(slicer=np.array([universe.trajectory.frame]))
        analysis._prepare()
        self._running = _Running(analysis)

    def _made(self, arguments: Mapping[str, Any]) -> Any:
        try:
            return self.foreign(**arguments)
        except Exception as error:
            if not self.foreign.__module__.startswith("MDAnalysis."):
                raise  # the user's own code, of which the traceback tells the line
            given = ", ".join(f"{name}={value!r}" for name, value in self.settings().items())
            raise UsageError(
                f"{self.label()} cannot be made with {given}: {type(error).__name__}: {error} "
                f"('himach analyses {self.foreign.__module__}:{self.foreign.__qualname__}' tells its parameters)"
            ) from error

    def map(self, frame: Any) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield what the analysis finds in this frame."""
        yield "frame", self._running.results(frame)

    def reduce(self, key: str, series: Any) -> tuple[Any, Any, list[Any]]:
        """Return what was found, with frame numbers and times."""
        return series.frames, series.times, list(series.values)

    def finish(self, results: Mapping[str, Any]) -> dict[str, Any]:
        """Return the results as tables and arrays."""
        return _outcome(_conclude(self._running, self.frames, *results["frame"]), self.label())


class _Running:
    """An analysis of MDAnalysis while frames are taken through it."""

    def __init__(self, analysis: Any) -> None:
        self.analysis = analysis
        self.prepared = analysis.results

    def results(self, frame: Any) -> dict[str, Any]:
        """Return what it finds in a frame."""
        analysis, ts = self.analysis, frame.universe.trajectory.ts
        analysis.results = copy.deepcopy(self.prepared)
        analysis._frame_index, analysis._ts = 0, ts
        analysis.frames[0], analysis.times[0] = frame.number, frame.time
        analysis._single_frame()
        return dict(analysis.results)

    def __reduce__(self) -> Any:
        raise TypeError("an analysis of MDAnalysis stays on the rank that has its Universe")


def _conclude(running: _Running, selected: range, frames: Any, times: Any, found: Iterable[Any]) -> Mapping[str, Any]:
    """Return the results of all frames."""
    analysis, kind = running.analysis, type(running.prepared)
    analysis.start, analysis.stop, analysis.step = selected.start, selected.stop, selected.step
    analysis.frames, analysis.times, analysis.n_frames = np.array(frames), np.array(times), len(frames)
    analysis.results = analysis._get_aggregator().merge([kind(one) for one in found])
    analysis._conclude()
    results: Mapping[str, Any] = analysis.results
    return results


def adapted(foreign: Any) -> type[Analysis]:
    """Return a class of analyses of himach that does what a class of MDAnalysis does.

    Its parameters are the arguments of that class; groups of atoms are selections.

    Raises
    ------
    UsageError
        MDAnalysis does not let it be taken apart by frames.
    """
    spec = f"{foreign.__module__}:{foreign.__qualname__}"
    if not foreign._analysis_algorithm_is_parallelizable:
        raise UsageError(
            f"{spec} cannot be run by ranks: MDAnalysis says of it that its frames depend on each other "
            "(_analysis_algorithm_is_parallelizable is False); run it by itself, over himach://NAME"
        )
    if takes_function(foreign):
        raise UsageError(
            f"{spec} is made with a function, which no text can be: in a script of yours, derive a class from it or "
            "from AnalysisBase, or give an instance to himach.mdanalysis.run()"
        )
    summary = (inspect.getdoc(foreign) or foreign.__name__).split("\n\n")[0]
    members = {
        "__module__": foreign.__module__,
        "__qualname__": foreign.__qualname__,
        "__doc__": summary,
        "foreign": foreign,
        "arguments": tuple(_arguments(foreign)),
    }
    return type(foreign.__name__, (Adapted,), members)


def _arguments(foreign: Any) -> Iterator[Argument]:
    """Give the arguments of a class that a command line can set."""
    documented = inspect.getdoc(foreign) or ""
    texts = f"{documented}\n\n{inspect.getdoc(foreign.__init__) or ''}"
    docs = {**parameter_docs(inspect.getdoc(foreign.__init__) or ""), **parameter_docs(documented)}
    for name, argument in inspect.signature(foreign.__init__).parameters.items():
        variable = argument.kind in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD)
        function = callable(argument.default) and argument.default is not argument.empty
        if variable or function or name in ASIDE | UNIVERSE:
            continue
        kind = _kind_of(name, f"{argument.annotation} {_type_in(texts, name)}")
        hint, default = _type_of(argument.default, kind != "plain")
        if kind == "plain" and hint in (str, str | None) and not isinstance(argument.default, str):
            kind = "literal"
        doc = docs.get(name) or "-"
        yield Argument(Parameter(name, hint, default, doc, f"argument_{name}"), kind)


def _kind_of(name: str, described: str) -> str:
    """Tell by an argument's name, annotation and description whether it is a group of atoms, or several."""
    if "AtomGroup" not in described and name not in GROUPS:
        return "residues" if "ResidueGroup" in described else "plain"
    several = name in ("ags", "atomgroups") or re.search(r"list|tuple|iterable", described, re.IGNORECASE)
    return "groups" if several else "group"


def _type_in(texts: str, name: str) -> str:
    """Return the type of an argument as docstrings tell it."""
    found = re.search(rf"^\s*{name}\s*:\s*(.*)$", texts, re.MULTILINE)
    return found.group(1) if found else ""


def _type_of(default: Any, group: bool) -> tuple[Any, Any]:
    """Return the type of a parameter, and its default, by that of an argument."""
    if default is inspect.Parameter.empty:
        return str, default
    if default is None or group:
        return str | None, None if group else default
    for kind, hint in ((bool, bool), (int, int | float), (float, float), (str, str)):
        if isinstance(default, kind):
            return hint, default
    return str, repr(default)


def _outcome(results: Mapping[str, Any], label: str) -> dict[str, Any]:
    """Return results as tables and arrays: columns of one length, which others share, are a table."""
    flat = dict(_flat(results))
    lengths = [len(value) for value in flat.values() if isinstance(value, np.ndarray) and value.ndim == 1]
    outcome: dict[str, Any] = {}
    tables: dict[int, dict[str, Any]] = {}
    for name, value in flat.items():
        if isinstance(value, np.ndarray) and value.ndim == 1 and lengths.count(len(value)) > 1:
            tables.setdefault(len(value), {})[name] = value
        else:
            outcome[name] = value
    for length, columns in tables.items():
        outcome[label if len(tables) == 1 else f"{label}-{length}"] = columns
    return outcome


def _flat(results: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Give the results by name; those within results by ``name_of_outer_one``."""
    for name, value in results.items():
        if name.startswith("_"):  # what the analysis keeps for itself
            continue
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}_")
        elif type(value).__module__.startswith("MDAnalysis") and hasattr(value, "ix"):
            yield f"{before}{name}", value.ix  # a group of atoms: their indices
        elif hasattr(value, "grid") and hasattr(value, "edges"):
            yield from _flat({"grid": value.grid, **{f"edges_{i}": e for i, e in enumerate(value.edges)}}, f"{name}_")
        else:
            yield f"{before}{name}", _array(value)


def _array(value: Any) -> Any:
    """Return a list of numbers as an array; anything else as it is."""
    if isinstance(value, list | tuple):
        try:
            found = np.array(value)
        except ValueError:  # of uneven lengths
            return value
        return found if found.dtype.kind in "biufcSU" else value
    return value
