"""State that map() can reach besides the frame: `reachable_values()` yields it, value by value, as setup() left it.

It is compared for kept pairs (is it the map of an earlier run?) and during the map phase (does map() change it?).
"""

import functools
import os
import sys
from collections.abc import Iterator, Mapping
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from himach.analysis import Analysis
from himach.state_hash import ANY, BEFORE, HIMACHS, MADE, StateHasher, is_dunder, own_attributes

if TYPE_CHECKING:
    from MDAnalysis import Universe

#: Attributes of every Universe and trajectory; the topology has a separate digest.
_OF_UNIVERSE = frozenset(
    {"atoms", "residues", "segments", "filename", "name", "trajectory", "_cache", "_context", "_kwargs", "_topology"}
    | {"_class_bases", "_classes", "_trajectory"}
)
_OF_TRAJECTORY = frozenset({"filename", "n_frames", "n_atoms", "kinds", "ts", "universe"})
#: Names that a notebook's shell adds to those of a user.
_OF_SHELL = frozenset({"In", "Out", "exit", "quit", "get_ipython"})
#: Process state that counts only if code mentions it.
_BY_NAME = frozenset({"os.environ", "random", "numpy.random"})


class Reached(NamedTuple):
    """A value that map() can reach."""

    kind: str  # such as "state": what setup() left on the analysis and its Universe
    label: str  # its name in the user's script, such as ``self.seen``
    name: str  # the last name in the label
    value: Any


def reachable_values(analysis: Analysis, universe: "Universe | None", hasher: StateHasher) -> Iterator[Reached]:
    """Yield what map() can reach by names that it, or reached code, mentions."""
    hasher.names |= {"map", "combine"}
    classes = own_classes(analysis)
    home, caches = classes[0].__module__, analysis.cache_names()
    attributes = {name: value for name, value in own_attributes(analysis).items() if name not in HIMACHS}
    spaces: list[tuple[str, str, Mapping[str, Any]]] = [("self", "self.", attributes)]
    spaces += [("class", f"{cls.__qualname__.rpartition('>.')[2]}.", vars(cls)) for cls in classes]
    spaces.append(("process", "", _process_state(hasher.here)))
    yield Reached("code", "the bases of the class", "", [(cls.__bases__, type(cls)) for cls in classes])
    if universe is not None:
        added = {name: value for name, value in vars(universe).items() if name not in _OF_UNIVERSE}
        spaces += [("state", "universe.", added)]
        spaces += [("state", "universe.atoms.", _topology_state(universe._topology))] if hasher.here else []
        yield Reached("state", "universe.trajectory", "", _trajectory_state(universe.trajectory))
    size, done = 0, set[tuple[str, str]]()
    while size != (size := len(hasher.names) + len(hasher.spaces)):
        modules = [("globals", f" in {space.get('__name__')}", space) for space in list(hasher.spaces.values())]
        for kind, place, space in [*spaces, *modules]:
            for name in sorted(_mentioned(kind, space, hasher.names) - caches):
                label = f"{place}{name}" if kind != "globals" else name + place.removesuffix(f" in {home}")
                if (label, name) not in done and name in space:
                    done.add((label, name))
                    yield Reached(_kind(kind, name, space[name], analysis), label, name, space[name])


def own_classes(analysis: Analysis) -> list[type]:
    """Return the classes of an analysis, or of its analysis of MDAnalysis, without common base classes."""
    cls = getattr(type(analysis), "foreign", None) or type(analysis)
    return [
        base for base in cls.__mro__ if base not in Analysis.__mro__ and base.__module__ != "MDAnalysis.analysis.base"
    ]


def _mentioned(kind: str, space: Mapping[str, Any], names: set[str]) -> set[str]:
    """Return the names in a namespace that count if code mentions `names`."""
    if kind == "process":
        return {name for name in space if name.rpartition(".")[2] in names or name not in _BY_NAME}
    chosen = {*space} if ANY in names else names & space.keys()
    if kind == "class":
        special = {name for name, value in space.items() if is_dunder(name) and hasattr(value, "__get__")}
        return {name for name in chosen - BEFORE if not is_dunder(name)} | special - MADE - {"__init__"}
    if kind == "globals":
        public = {name for name in chosen if name[:1] != "_"} - _OF_SHELL
        return {name for name in chosen & names if not is_dunder(name)} | public
    return chosen


def _kind(kind: str, name: str, value: Any, analysis: Analysis) -> str:
    if kind == "self":
        return "computed" if isinstance(getattr(type(analysis), name, None), functools.cached_property) else "state"
    if kind not in ("class", "globals"):
        return kind
    return "code" if isinstance(value, FunctionType | type) or hasattr(type(value), "__get__") else "globals"


def _trajectory_state(trajectory: Any) -> list[Any]:
    """Return possible additions of setup() to a trajectory: transformations, auxiliaries, attributes."""
    added = [
        {name: value for name, value in vars(owner).items() if name[0] != "_" and name not in own_names}
        for owner, own_names in ((trajectory, _OF_TRAJECTORY), (trajectory.ts, ("aux",)))
    ]
    auxiliaries = [auxiliary.get_description() for auxiliary in trajectory._auxs.values()]  # at the current frame
    return [*trajectory.transformations, *auxiliaries, *filter(None, added)]


def _topology_state(topology: Any) -> dict[str, Any]:
    """Return what user code can change in a topology, by the names that it uses for it."""
    values: dict[str, Any] = {"add_TopologyAttr": [attribute.attrname for attribute in topology.attrs]}
    values |= dict.fromkeys(("residue", "residues", "segment", "segments"), (topology.tt._AR, topology.tt._RS))
    for attribute in topology.attrs:
        fields = {name: value for name, value in vars(attribute).items() if name not in ("top", "_cache", "namedict")}
        content = [
            (len(value), value[-1:]) if isinstance(value, list) else value
            for value in fields.values()
            if not isinstance(value, np.ndarray) or value.dtype != object
        ]
        values |= dict.fromkeys((attribute.attrname, attribute.singular), content)
    return values


def _process_state(here: bool) -> dict[str, Any]:
    """Return process-wide state of Python and numpy; with `here`, also what differs between processes."""
    values: dict[str, Any] = {"numpy.geterr()": np.geterr()}
    if "decimal" in sys.modules:
        context = sys.modules["decimal"].getcontext()
        values["decimal.getcontext()"] = (context.prec, context.rounding)
    if here:
        try:
            values["os.getcwd()"] = os.getcwd()
        except OSError:  # the directory was removed
            values["os.getcwd()"] = ""
        values["os.environ"] = dict(os.environ)
        for label, module, name in (("random", "random", "_inst"), ("numpy.random", "numpy.random.mtrand", "_rand")):
            if module in sys.modules:
                values[label] = getattr(sys.modules[module], name)
    return values
