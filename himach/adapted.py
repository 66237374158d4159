"""Adapts an analysis class of MDAnalysis to himach: `adapted()`.

Its `_single_frame()` is the map(): the results of a frame are its value; MDAnalysis's own aggregator and `_conclude()`
compute the final results. So they are those of ``analysis.run(n_parts=...)`` with one part per frame, for any number of
ranks; and it can be interrupted, resumed, and run together with others like every analysis.

Classes of other packages written before MDAnalysis had parts do not declare support and have no aggregator. Then the
state that `_single_frame()` leaves is the result of a frame, and each rank tests whether frames depend on each other.
"""

import ast
import contextlib
import copy
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from himach.analysis import Analysis
from himach.atoms import Atoms
from himach.errors import AnalysisError, UsageError
from himach.parameters import Parameter, parameter_docs
from himach.state_hash import StateHasher

BASE = "MDAnalysis.analysis.base"
#: Arguments that are the Universe itself.
UNIVERSE = frozenset({"universe", "u"})
#: Names of arguments that are groups of atoms, even if no docstring says so.
GROUPS = frozenset({"ag", "ag1", "ag2", "atomgroup", "atomgroups", "ags", "atoms", "g1", "g2", "group"})
#: Arguments that a run sets in another way.
ASIDE = frozenset({"self", "trajectory", "verbose"})
#: Attributes that MDAnalysis itself sets to describe the frames.
OF_BASE = frozenset(
    {"_trajectory", "_sliced_trajectory", "_verbose", "_ts", "_frame_index", "results"}
    | {"frames", "times", "n_frames", "start", "stop", "step"}
)
#: Attribute by which a class declares whether its frames are independent.
SAYS = "_analysis_algorithm_is_parallelizable"
#: Matches the beginning of a parameter's value that is no string.
LITERAL = re.compile(r"[\[({'\"+\-.\d]|(None|True|False)$")


def is_foreign(value: Any) -> bool:
    """Return whether `value` is a subclass of MDAnalysis's AnalysisBase; import nothing."""
    base = getattr(sys.modules.get(BASE), "AnalysisBase", None)
    return base is not None and isinstance(value, type) and issubclass(value, base) and value is not base


def takes_function(foreign: Any) -> bool:
    """Return whether a class of MDAnalysis requires a function, like AnalysisFromFunction."""
    arguments = inspect.signature(foreign.__init__).parameters
    return "function" in arguments and arguments["function"].default is inspect.Parameter.empty


def refusal(foreign: Any) -> str:
    """Return why frames of a class of MDAnalysis cannot be analysed separately; "" if they can, or may be tried."""
    base = sys.modules[BASE].AnalysisBase
    if getattr(foreign, SAYS):
        return ""
    # MDAnalysis declares it for its own classes.
    if foreign.__module__.startswith("MDAnalysis.") or any(
        SAYS in vars(cls) for cls in foreign.__mro__ if cls.__module__ != BASE
    ):
        return f"MDAnalysis says of it that its frames depend on each other ({SAYS} is False)"
    own = [name for name in ("run", "_compute", "_setup_frames") if getattr(foreign, name) is not getattr(base, name)]
    return f"it has a {own[0]}() of its own" if own else ""


@dataclass(frozen=True)
class Argument:
    """An argument of an analysis of MDAnalysis, as a parameter of himach."""

    parameter: Parameter
    kind: str  # meaning of its text, such as "group" for a selection

    def value(self, setting: Any, universe: Any) -> Any:
        """Return the argument for a parameter's value."""
        if not isinstance(setting, str) or self.kind == "plain":
            return setting
        if self.kind == "group":
            return self._selected(setting, universe)
        if self.kind == "residues":
            return self._selected(setting, universe).residues
        if self.kind == "groups" and not setting.lstrip().startswith(("[", "(")):
            return [self._selected(text, universe) for text in setting.split(";") if text.strip()]
        if self.kind == "literal" and setting.endswith(".npy"):
            return np.load(setting, allow_pickle=False)
        value: Any = setting
        if LITERAL.match(setting.strip()):
            with contextlib.suppress(ValueError, SyntaxError):
                value = ast.literal_eval(setting.strip())
        return self._selected(value, universe) if self.kind == "groups" else value

    def _selected(self, value: Any, universe: Any) -> Any:
        """Replace selections by groups of atoms; raise UsageError for anything else."""
        if isinstance(value, list | tuple):
            return [self._selected(item, universe) for item in value]
        if not isinstance(value, str):
            raise UsageError(f"parameter {self.parameter.name}: {value!r} is no selection of atoms")
        return Atoms.from_value(value).select(universe, self.parameter.name)


class Adapted(Analysis):
    """An analysis of MDAnalysis; `adapted` makes a subclass for each."""

    foreign: ClassVar[Any] = None  # its class
    arguments: ClassVar[tuple[Argument, ...]] = ()  # of its constructor
    of_one_frame: ClassVar[frozenset[str]] = frozenset({"frames", "n_frames", "step"})
    caches = ("_running",)

    @classmethod
    def parameters(cls) -> dict[str, Parameter]:
        """Return the arguments that a user sets."""
        return {argument.parameter.name: argument.parameter for argument in cls.arguments}

    def setup(self, universe: Any) -> None:
        """Make the analysis, and prepare it for one frame."""
        self._running = _Running(self._new_analysis(universe))

    def _new_analysis(self, universe: Any) -> Any:
        """Return the analysis before it is prepared."""
        values = self.settings()
        arguments = {
            argument.parameter.name: argument.value(values[argument.parameter.name], universe)
            for argument in self.arguments
        }
        accepted = inspect.signature(self.foreign.__init__).parameters
        arguments.update(dict.fromkeys(UNIVERSE & accepted.keys(), universe))
        try:
            analysis = self.foreign(**arguments)
        except Exception as error:
            if not self.foreign.__module__.startswith("MDAnalysis."):
                raise  # user code: the traceback shows the line
            settings = ", ".join(f"{name}={value!r}" for name, value in values.items())
            raise UsageError(
                f"{self.label()} cannot be made with {settings}: {type(error).__name__}: {error} "
                f"('himach analyses {self.foreign.__module__}:{self.foreign.__qualname__}' tells its parameters)"
            ) from error
        analysis._prepare_sliced_trajectory(slicer=np.array([universe.trajectory.frame]))
        return analysis

    def map(self, frame: Any) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield what the analysis finds in this frame."""
        yield "frame", self._running.results(frame)

    def reduce(self, key: str, series: Any) -> tuple[Any, Any, list[Any]]:
        """Return the results, with frame numbers and times."""
        return series.frames, series.times, list(series.values)

    def finish(self, results: Mapping[str, Any]) -> dict[str, Any]:
        """Return the results as tables and arrays."""
        running, (frames, times, values) = self._running, results["frame"]
        _select(running.analysis, self.frames, np.array(frames), np.array(times))
        running.merge(values)
        running.analysis._conclude()
        return _outcome(running.analysis.results, self.label())


class Untold(Adapted):
    """An analysis that does not declare whether its frames are independent; `adapted` makes a subclass for each."""

    of_one_frame: ClassVar[frozenset[str]] = frozenset()

    def setup(self, universe: Any) -> None:
        """Make the analysis, and prepare it for all frames."""
        self._running = _Trial(lambda: self._new_analysis(universe), self.frames)


class _Running:
    """A running analysis of MDAnalysis."""

    def __init__(self, analysis: Any) -> None:
        analysis._prepare()
        self.analysis = analysis
        self.prepared = analysis.results

    def results(self, frame: Any) -> dict[str, Any]:
        """Return the results of a frame."""
        analysis, ts = self.analysis, frame.universe.trajectory.ts
        analysis.results = copy.deepcopy(self.prepared)
        analysis._frame_index, analysis._ts = 0, ts
        analysis.frames[0], analysis.times[0] = frame.number, frame.time
        analysis._single_frame()
        return dict(analysis.results)

    def merge(self, results: Iterable[Any]) -> None:
        """Put the analysis into its state after all frames."""
        kind = type(self.prepared)
        self.analysis.results = self.analysis._get_aggregator().merge([kind(result) for result in results])

    def __reduce__(self) -> Any:
        raise TypeError("an analysis of MDAnalysis stays on the rank that has its Universe")


#: An attribute of an analysis or of its results: owner and name.
Place = tuple[str, str]


class _Trial(_Running):
    """A running analysis that leaves its results in any attribute; they are found by comparing before and after.

    A frame gives entries of arrays with an axis of frames (one that is longer if the analysis is prepared for one more
    frame), items appended to lists, and attributes that are set. A rank analyses its first two frames twice: the first
    by the analysis that has just seen it, the second by an analysis that has seen none. If the results differ, frames
    depend on each other.
    """

    def __init__(self, make_analysis: Callable[[], Any], selected: Any) -> None:
        self._selected, self._n_frames, self._tried = selected, len(selected), 0
        self._digests = StateHasher(here=True)
        self._always: set[Place] = set()  # places that every frame sets
        try:
            longer = _state(self._prepared(make_analysis(), self._n_frames + 1))
        except Exception:  # its arguments may have one item per frame
            longer = {}
        self.analysis, self._other = (self._prepared(make_analysis(), self._n_frames) for _ in range(2))
        state = _state(self.analysis)
        axes = {place: _axis(value, longer.get(place), self._n_frames) for place, value in state.items()}
        self._axes = {place: axis for place, axis in axes.items() if axis is not None}
        self._lists = {place: len(value) for place, value in state.items() if type(value) is list}

    def results(self, frame: Any) -> dict[str, Any]:
        """Return the results of a frame; raise AnalysisError if they depend on other frames."""
        always = set(self._always) if self._tried else None
        result = self._run_frame(self.analysis, frame) if self._tried == 2 else self._compare(frame)
        for place, value in (values := result.pop("values")).items():
            if always is not None and place not in always and isinstance(value, int | float):
                raise self._refusal(place, f"frame {frame.number} sets it, and others do not")
        last = frame.step == self._n_frames - 1  # the last frame determines what every frame sets
        result["last"] = {place: value for place, value in values.items() if last and place in self._always}
        result["values"] = {place: value for place, value in values.items() if place not in self._always}
        return result

    def merge(self, results: Iterable[Any]) -> None:
        """Put the analysis into its state after all frames."""
        state, values = _state(self.analysis), dict[Place, Any]()
        for place, length in self._lists.items():
            del state[place][length:]
        for step, result in enumerate(results):
            for place, entry in result["entries"].items():
                state[place][(*[slice(None)] * self._axes[place], step)] = entry
            for place, items in result["items"].items():
                state[place].extend(items)
            for place, value in {**result["values"], **result["last"]}.items():
                if self._digest(values.setdefault(place, value)) != self._digest(value):
                    raise self._refusal(place, "frames set it to different values")
        for (owner, name), value in values.items():
            (self.analysis.results if owner else vars(self.analysis))[name] = value

    def _prepared(self, analysis: Any, n_frames: int) -> Any:
        """Return an analysis prepared for some number of frames."""
        _select(analysis, self._selected, np.zeros(n_frames, dtype=int), np.zeros(n_frames))
        analysis._prepare()
        return analysis

    def _run_frame(self, analysis: Any, frame: Any) -> dict[str, dict[Place, Any]]:
        """Analyse a frame; return its results."""
        before = _state(analysis)
        lengths = {place: len(before[place]) for place in self._lists if type(before.get(place)) is list}
        analysis._frame_index, analysis._ts = frame.step, frame.universe.trajectory.ts
        analysis.frames[frame.step], analysis.times[frame.step] = frame.number, frame.time
        analysis._single_frame()
        result: dict[str, dict[Place, Any]] = {"entries": {}, "items": {}, "values": {}}
        for place, value in _state(analysis).items():
            same = place in before and value is before[place]
            if same and place in self._axes:
                result["entries"][place] = value[(*[slice(None)] * self._axes[place], frame.step)]
            elif same and place in lengths:
                result["items"][place] = value[lengths[place] :]
            elif not same or place in self._always:
                result["values"][place] = value
        return result

    def _compare(self, frame: Any) -> dict[str, dict[Place, Any]]:
        """Analyse a frame twice, by an analysis that has seen others or this one, and by one that has not."""
        ts = frame.universe.trajectory.ts
        positions, sides = ts.positions.copy(), []
        for analysis in (self._other if self._tried else self.analysis, self.analysis):
            ts.positions = positions
            before, result = self._digest_state(analysis, frame.step), self._run_frame(analysis, frame)
            added = {place: self._digest(value) for place, value in {**result["entries"], **result["items"]}.items()}
            sides.append((before, added, result["values"], self._digest_state(analysis, frame.step)))
        (before_alone, alone, values_alone, after_alone), (before, added, _, after) = sides
        for place in {**after_alone, **after}:
            once = after.get(place) == before.get(place) and after_alone.get(place) != before_alone.get(place)
            same = after.get(place) == before.get(place) and place in self._axes
            if not (after.get(place) == after_alone.get(place) or once or same) or alone.get(place) != added.get(place):
                raise self._refusal(place, f"at frame {frame.number} it is another after a frame before")
        always_before = self._always  # this frame may leave some of these unchanged
        self._always = {place for place in after if after[place] != before.get(place)} | set(result["values"])
        if self._tried:
            del self._other
        else:
            self._always |= {place for place in after if after[place] != before_alone.get(place)} | set(values_alone)
        self._always -= self._axes.keys()
        state = _state(self.analysis)
        result["values"].update((place, state[place]) for place in always_before | self._always if place in state)
        self._tried += 1
        return result

    def _digest_state(self, analysis: Any, step: int) -> dict[Place, str]:
        """Return digests of an analysis's state, without what a step may add."""
        digests = {}
        for place, value in _state(analysis).items():
            if place in self._axes and isinstance(value, np.ndarray):
                value = np.delete(value, step, self._axes[place])  # noqa: PLW2901
            elif place in self._lists and type(value) is list:
                value = value[: self._lists[place]]  # noqa: PLW2901
            digests[place] = self._digest(value)
        return digests

    def _digest(self, value: Any) -> str:
        try:
            return self._digests.digest(value)
        except Exception:  # compared by identity
            return f"{type(value)} {id(value)}"

    def _refusal(self, place: Place, why: str) -> AnalysisError:
        by = ".".join(filter(None, place))
        text = f"{type(self.analysis).__name__} cannot be run by ranks: its frames depend on each other by {by} ({why})"
        return AnalysisError(f"{text}; run it by itself, over himach://NAME")


def _state(analysis: Any) -> dict[Place, Any]:
    """Return an analysis's attributes and results, without those of MDAnalysis and groups of atoms."""
    places = [("", name, value) for name, value in vars(analysis).items() if name not in OF_BASE]
    places += [("results", name, value) for name, value in analysis.results.items()]
    return {(owner, name): value for owner, name, value in places if not hasattr(value, "universe")}


def _axis(value: Any, longer: Any, n_frames: int) -> int | None:
    """Return an array's axis of frames or None; `longer` is the array for one more frame, if there is one."""
    if not isinstance(value, np.ndarray) or not isinstance(longer, np.ndarray | None):
        return None
    axes = [axis for axis, length in enumerate(value.shape) if length == n_frames]
    axes = [axis for axis in axes if longer is None or longer.shape[axis : axis + 1] == (n_frames + 1,)]
    return axes[0] if len(axes) == 1 else None


def _select(analysis: Any, selected: range, frames: Any, times: Any) -> None:
    """Set the frames of an analysis, as MDAnalysis does."""
    analysis.start, analysis.stop, analysis.step = selected.start, selected.stop, selected.step
    analysis.frames, analysis.times, analysis.n_frames = frames, times, len(frames)


def adapted(foreign: Any) -> type[Analysis]:
    """Return a class of himach for an analysis class of MDAnalysis.

    Its parameters are the arguments of that class; groups of atoms are selections.

    Raises
    ------
    UsageError
        If its frames cannot be analysed separately.
    """
    spec = f"{foreign.__module__}:{foreign.__qualname__}"
    if why := refusal(foreign):
        raise UsageError(f"{spec} cannot be run by ranks: {why}; run it by itself, over himach://NAME")
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
    return type(foreign.__name__, (Adapted if getattr(foreign, SAYS) else Untold,), members)


def _arguments(foreign: Any) -> Iterator[Argument]:
    """Yield the arguments of a class that a command line can set."""
    documented = inspect.getdoc(foreign) or ""
    texts = f"{documented}\n\n{inspect.getdoc(foreign.__init__) or ''}"
    docs = {**parameter_docs(inspect.getdoc(foreign.__init__) or ""), **parameter_docs(documented)}
    for name, argument in inspect.signature(foreign.__init__).parameters.items():
        variable = argument.kind in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD)
        function = callable(argument.default) and argument.default is not argument.empty
        if variable or function or name in ASIDE | UNIVERSE:
            continue
        documented_type = re.search(rf"^\s*{name}\s*:\s*(.*)$", texts, re.MULTILINE)
        kind = _argument_kind(name, f"{argument.annotation} {documented_type[1] if documented_type else ''}")
        hint, default = _argument_type(argument.default, kind != "plain")
        if kind == "plain" and hint in (str, str | None) and not isinstance(argument.default, str):
            kind = "literal"
        doc = docs.get(name) or "-"
        yield Argument(Parameter(name, hint, default, doc, f"argument_{name}"), kind)


def _argument_kind(name: str, described: str) -> str:
    """Return the kind of an argument, by its name, annotation and description."""
    if "AtomGroup" not in described and name not in GROUPS:
        return "residues" if "ResidueGroup" in described else "plain"
    several = name in ("ags", "atomgroups") or re.search(r"list|tuple|iterable", described, re.IGNORECASE)
    return "groups" if several else "group"


def _argument_type(default: Any, group: bool) -> tuple[Any, Any]:
    """Return the type and the default of a parameter, from the default of an argument."""
    if default is inspect.Parameter.empty:
        return str, default
    if default is None or group:
        return str | None, None if group else default
    for kind, hint in ((bool, bool), (int, int | float), (float, float), (str, str)):
        if isinstance(default, kind):
            return hint, default
    return str, repr(default)


def _outcome(results: Mapping[str, Any], label: str) -> dict[str, Any]:
    """Return results as tables and arrays: columns of equal length form a table."""
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
    """Yield the results by name; nested ones as ``outer_inner``."""
    for name, value in results.items():
        if name.startswith("_"):  # private to the analysis
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
    """Return a list of numbers as an array; anything else unchanged."""
    if isinstance(value, list | tuple):
        try:
            array = np.array(value)
        except ValueError:  # of uneven lengths
            return value
        return array if array.dtype.kind in "biufcSU" else value
    return value
