"""What map() can reach beside the frame: `reached()` names it, value by value, as setup() left it.

It is compared where pairs are kept (is it the map of an earlier run?), and during the map phase (does map() leave it as
it is?).
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from himach.analysis import GIVEN, MAPPING, Analysis
from himach.digests.attributes import own_attributes
from himach.digests.code_text import ANY, code_names
from himach.digests.values import MADE, ValueDigests
from himach.user_code import is_own

if TYPE_CHECKING:
    from MDAnalysis import Universe

__all__ = ["BEFORE", "LATER", "Reached", "later_than", "own_classes", "reached", "skipped", "used"]

#: What runs after map() and combine(): what is written in it does not count.
LATER = frozenset({"reduce", "reduce_many", "reduce_blocks", "finish", "plot"})
#: What runs before map().
BEFORE = frozenset({"setup", "atoms", "__init__"})
#: Attributes of an analysis that himach looks after.
_HIMACHS = frozenset({MAPPING, GIVEN, "frames", "dt", "caches", "then"})
#: Attributes that every Universe has, and its trajectory; a topology has a digest of its own.
_OF_UNIVERSE = frozenset(
    {"atoms", "residues", "segments", "filename", "name", "trajectory", "_cache", "_context", "_kwargs", "_topology"}
    | {"_class_bases", "_classes", "_trajectory"}
)
_OF_TRAJECTORY = frozenset({"filename", "n_frames", "n_atoms", "kinds", "ts"})
#: Names by which code sets attributes whose names it makes up.
_SETTING = frozenset({"setattr", "exec", "eval", "__setattr__"})
#: What code of others brings about where a user's code mentions it.
_MOVING = frozenset({"modules", "stdout", "stderr", "stdin"})
#: What the world outside tells a process.
_OUTSIDE = frozenset(
    {"environ", "environb", "argv", "path", "orig_argv", "executable", "prefix", "path_importer_cache"}
)
#: Names by which code gets at globals whose names it makes up.
_SPACES = frozenset({"globals", "eval", "exec", "vars", "modules", "__globals__", "__import__", "import_module"})
#: What a notebook's shell has among a user's names.
_OF_SHELL = frozenset({"In", "Out", "exit", "quit", "get_ipython"})
#: Where MDAnalysis keeps the classes that it knows.
_REGISTRIES = frozenset({"_SELECTIONDICT", "_CONVERTERS", "_TOPOLOGY_ATTRS", "_GUESSERS", "_OPERATIONS"})
#: What Python and numpy begin with.
_USUAL = (
    {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"},
    {"prec": 28, "rounding": "ROUND_HALF_EVEN"},
)


class Reached(NamedTuple):
    """A value that map() can reach.

    Attributes
    ----------
    kind
        "state", what setup() left on the analysis and its Universe; "computed", that of a cached property; "globals"
        and "code" of modules and classes; "library", values in others'; "process", what Python keeps.
    label
        How the user's script names it, such as ``self.seen``.
    name
        The last name in that; "" where it is reached without being named.
    value
        It.
    """

    kind: str
    label: str
    name: str
    value: Any


#: What can be reached, and the code that its digest met.
Coded = tuple[Reached, Collection[CodeType]]


def reached(analysis: Analysis, universe: Universe | None, values: ValueDigests) -> Iterator[Reached]:
    """Give what map() can reach: attributes, those of classes, globals of a user's own modules and functions.

    Parameters
    ----------
    analysis
        Whose map() it is.
    universe
        Its own, if it has one.
    values
        With which each value is digested before the next is asked for: what that meets comes later.
    """
    caches = analysis.cache_names()
    for name, value in own_attributes(analysis).items():
        if name not in _HIMACHS | caches:
            computed = isinstance(getattr(type(analysis), name, None), functools.cached_property)
            yield Reached("computed" if computed else "state", f"self.{name}", name, value)
    if "then" not in caches:
        yield Reached("state", "self.then", "then", analysis.then)
    for name, value in {} if universe is None else _universe_state(universe).items():
        yield Reached("state", f"universe.{name}", name if name != "trajectory" else "", value)
    classes = own_classes(analysis)
    values.modules.update(cls.__module__ for cls in classes)
    seen: set[tuple[int, str]] = set()
    yield from _members(classes, "", seen)
    for one in _members(_registered(values, universe), "", seen):
        yield one._replace(name="")  # which MDAnalysis calls
    yield from _globals(values, caches, classes[0].__module__, seen)
    yield from _libraries(values, caches)
    yield from _of_python(caches, values.here)
    if universe is not None:
        yield from _hidden(universe, values.names - caches)
    if universe is not None and values.here:
        yield from _topology(universe, values.names)


def used(found: Iterable[Coded]) -> tuple[set[str], list[Coded]]:
    """Tell what map() and combine() come to, as far as names tell.

    Parameters
    ----------
    found
        What can be reached, each with the code that its digest met.

    Returns
    -------
    tuple
        The names in all code that they may run; and what has such a name, or none, as in `found`.
    """
    names, waiting = {"map", "combine"}, list(found)
    come: list[Coded] = []
    while now := [(one, codes) for one, codes in waiting if _runs(one.name, names)]:
        waiting = [(one, codes) for one, codes in waiting if not _runs(one.name, names)]
        come += now
        names = names.union(*(code_names(code) for _, codes in now for code in codes))
    return names, come


def _runs(name: str, names: set[str]) -> bool:
    return name in names or not name or (_dunder(name) and name != "__init__") or (ANY in names and name not in BEFORE)


def own_classes(analysis: Analysis) -> list[type]:
    """Return the classes of an analysis, or of one of MDAnalysis that it runs, below those that all have."""
    cls = getattr(type(analysis), "foreign", None) or type(analysis)
    return [
        base for base in cls.__mro__ if base not in Analysis.__mro__ and base.__module__ != "MDAnalysis.analysis.base"
    ]


def skipped(cls: type, later: frozenset[str] = LATER) -> frozenset[str]:
    """Return the attributes of a class, and of its instances, that do not count, where methods run `later`."""
    if not issubclass(cls, Analysis):
        return MADE
    codes = [getattr(member, "__code__", None) for name, member in vars(cls).items() if name not in LATER]
    return MADE | _HIMACHS | later_than(later, map(code_names, filter(None, codes))) | cls.cache_names()


def later_than(later: frozenset[str], names: Iterable[Collection[str]]) -> frozenset[str]:
    """Return what of methods that run later still does, where code mentions names, or any."""
    named = frozenset().union(*names)
    return frozenset() if ANY in named else later - named


def _universe_state(universe: Universe) -> dict[str, Any]:
    """Return what setup() may have added to a Universe, by name: transformations, auxiliaries, attributes."""
    trajectory = universe.trajectory
    found = _public(universe, _OF_UNIVERSE)
    added = [_public(trajectory, _OF_TRAJECTORY), _public(trajectory.ts, ("aux",))]
    auxiliaries = [each.get_description() for each in trajectory._auxs.values()]  # they are at the present frame
    return {**found, "trajectory": [*trajectory.transformations, *auxiliaries, *filter(None, added)]}


def _public(thing: Any, known: Collection[str] = ()) -> dict[str, Any]:
    return {name: value for name, value in vars(thing).items() if name[0] != "_" and name not in known}


def _globals(values: ValueDigests, caches: frozenset[str], home: str, seen: set[tuple[int, str]]) -> Iterator[Reached]:
    """Give the globals of own modules and functions, those too that what was met meanwhile leads to."""
    before = 0
    while before != (before := len(seen)):
        places = [(vars(sys.modules[name]), frozenset(vars(sys.modules[name]))) for name in _owned(values)]
        places += [(each.__globals__, _globals_of(each)) for each in list(values.functions.values())]
        for namespace, names in places:
            module = str(namespace.get("__name__"))
            where = f" in {module}" if module != home else ""
            for name in sorted(names & namespace.keys() - caches):
                value = namespace[name]
                if isinstance(value, type) and values.owned(value.__module__):
                    yield from _members([base for base in value.__mro__ if values.owned(base.__module__)], where, seen)
                elif (id(namespace), name) not in seen and name.isidentifier() and not _dunder(name):
                    seen.add((id(namespace), name))
                    yield _named(f"{name}{where}", name, value)


def _hidden(universe: Universe, names: set[str]) -> Iterator[Reached]:
    """Give what somebody put on a Universe under names that begin with an underscore, where code mentions them."""
    for name in sorted(vars(universe).keys() & names - _OF_UNIVERSE):
        if name[0] == "_":
            yield Reached("state", f"universe.{name}", name, vars(universe)[name])


def _libraries(values: ValueDigests, caches: frozenset[str]) -> Iterator[Reached]:
    """Give what user's code mentions of modules and classes that are not its own, and may have put there."""
    names = values.names - caches - _MOVING
    if not values.here:
        names -= _OUTSIDE
    groups = [(cls.__name__, vars(cls)) for cls in _groups()]
    for module in sorted(_mentioned({*values.modules, "builtins"} & sys.modules.keys(), names)):
        if is_own(module) or module.partition(".")[0] == "himach":
            continue
        spaces: list[tuple[str, Mapping[str, Any]]] = [(module, vars(sys.modules[module])), *groups]
        groups = []
        for name in sorted(names & spaces[0][1].keys()):
            cls = spaces[0][1][name]
            if isinstance(cls, type) and not values.owned(cls.__module__):
                spaces.append((f"{module}.{name}", vars(cls)))
        for where, space in spaces:
            for name in sorted(names & space.keys()):
                if not _dunder(name) and _is_put(space[name], values):
                    kind = "code" if callable(space[name]) else "library"
                    yield Reached(kind, f"{where}.{name}", name, space[name])


def _mentioned(modules: set[str], names: set[str]) -> set[str]:
    """Return modules, and those that code gets at from them by names."""
    found, waiting = set(modules), list(modules)
    while waiting:
        space = vars(sys.modules[waiting.pop()])
        within = {space[name].__name__ for name in names & space.keys() if isinstance(space[name], ModuleType)}
        waiting += within & sys.modules.keys() - found
        found |= within & sys.modules.keys()
    return found


def _is_put(value: Any, values: ValueDigests) -> bool:
    """Tell whether a user's code may have put a value into a library, as far as that can be told."""
    if isinstance(value, type | FunctionType):
        module = value.__module__ or ""
        return values.owned(module) and module.partition(".")[0] != "himach"
    return not isinstance(value, ModuleType) and not callable(value) and not hasattr(value, "__get__")


def _globals_of(function: FunctionType) -> frozenset[str]:
    """Return the names of globals that a function uses; all that are public, where it makes names up."""
    names = code_names(function.__code__)
    if names.isdisjoint(_SPACES):
        return names
    return names.union(name for name in function.__globals__ if name[0] != "_" and name not in _OF_SHELL)


def _groups() -> list[type]:
    """Return the classes of MDAnalysis on which methods may be put."""
    groups = sys.modules.get("MDAnalysis.core.groups")
    universe = sys.modules.get("MDAnalysis.core.universe")
    if groups is None or universe is None:
        return []
    classes = [groups.AtomGroup, groups.ResidueGroup, groups.SegmentGroup, groups.Atom, groups.Residue, groups.Segment]
    return list(dict.fromkeys(base for cls in [*classes, universe.Universe] for base in cls.__mro__[:-1]))


def _registered(values: ValueDigests, universe: Universe | None) -> list[type]:
    """Return the classes of a user's own of which MDAnalysis knows: selections, ..., and their bases.

    Of readers, those that have read the frames, and all where code mentions their table; parsers made the topology,
    which has a digest of its own.
    """
    readers: dict[str, Any] = getattr(sys.modules.get("MDAnalysis"), "_READERS", {})
    kinds = readers if "_READERS" in values.names else getattr(getattr(universe, "trajectory", None), "kinds", ())
    spaces = [vars(sys.modules[name]) for name in ("MDAnalysis", "MDAnalysis.core.selection") if name in sys.modules]
    tables = [table for space in spaces for name, table in space.items() if name in _REGISTRIES]
    tables.append({kind: readers.get(kind) for kind in kinds})
    found = {id(cls): cls for table in tables for cls in table.values() if isinstance(cls, type)}
    own = [cls for cls in found.values() if not cls.__module__.startswith("MDAnalysis.")]
    return [base for cls in own for base in cls.__mro__ if values.owned(base.__module__)]


def _of_python(caches: frozenset[str], here: bool) -> Iterator[Reached]:
    """Give what Python and numpy keep for the whole process; that of which no later run knows only `here`."""
    found: dict[str, Any] = {"numpy.geterr()": np.geterr()}
    if "decimal" in sys.modules:
        context = sys.modules["decimal"].getcontext()
        found["decimal.getcontext()"] = {"prec": context.prec, "rounding": context.rounding}
    if here:
        found["os.getcwd()"] = _folder()
        for name, module, place in (("random", "random", "_inst"), ("numpy.random", "numpy.random.mtrand", "_rand")):
            if module in sys.modules:
                found[name] = getattr(sys.modules[module], place)
    for name in found.keys() - caches:
        if here or found[name] not in _USUAL:
            yield Reached("process", name, "" if not here else name, found[name])


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it is gone
        return ""


def _topology(universe: Universe, names: Collection[str]) -> Iterator[Reached]:
    """Give what a user's code can write into a topology, as far as it mentions that."""
    topology = universe._topology
    yield Reached("state", "universe.atoms, their attributes", "", [each.attrname for each in topology.attrs])
    anything = not _SETTING.isdisjoint(names)
    if anything or any("residue" in name or "segment" in name for name in names):
        yield Reached("state", "universe.residues", "", (topology.tt._AR, topology.tt._RS))
    for each in topology.attrs:
        if anything or each.singular in names or any(each.attrname in name for name in names):
            held = [value for name, value in vars(each).items() if name not in ("top", "_cache", "namedict")]
            content = [
                (len(one), list(one[-1:])) if isinstance(one, list) else one
                for one in held
                if not isinstance(one, np.ndarray) or one.dtype != object or len(one) < len(universe.atoms)
            ]
            yield Reached("state", f"universe.atoms.{each.attrname}", "", content)


def _members(classes: Iterable[type], where: str, seen: set[tuple[int, str]]) -> Iterator[Reached]:
    """Give what is written in classes that were not seen before."""
    for cls in classes:
        if (id(cls), "") in seen:
            continue
        seen.add((id(cls), ""))
        name, left_out = cls.__qualname__.rpartition(">.")[2], skipped(cls)
        yield Reached("code", f"{name}{where}", "", ([base.__qualname__ for base in cls.__bases__], type(cls)))
        for member, value in list(vars(cls).items()):
            if member not in left_out and (hasattr(value, "__get__") or not _dunder(member)):
                yield _named(f"{name}.{member}{where}", member, value)


def _named(label: str, name: str, value: Any) -> Reached:
    is_code = isinstance(value, FunctionType | type) or hasattr(type(value), "__get__")
    return Reached("code" if is_code else "globals", label, name, value)


def _owned(values: ValueDigests) -> list[str]:
    """Return the modules that were met; what no other process can import counts by the functions that lead there."""
    return sorted(name for name in values.modules if values.importable(name) and values.owned(name))


def _dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")
