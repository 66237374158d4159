"""What an analysis keeps: everything that can change and can be reached from its attributes, each with a copy.

`kept_by()` lists it once, as `Kept`: lists, dicts, sets, arrays, objects, random generators and iterators, however deep
they lie in one another. Each copy is one level deep, because what lies inside is listed by itself: so that a check is a
flat loop of comparisons, in which what has not changed is mostly found identical.
"""

from __future__ import annotations

import array
import functools
import random
import sys
import types
import zlib
from collections import ChainMap, UserDict, UserList, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from operator import length_hint
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from himach.analysis import MAPPING, Analysis

__all__ = ["Kept", "kept_by"]

#: Things that are watched, at most: beyond, a copy of all would cost more than it tells.
MOST = 100_000
#: Arrays of more bytes are known by a checksum, so that no large one is in memory twice.
LARGE = 1 << 24
#: Packages whose objects are left alone: groups of atoms follow the frame; loggers, locks and files are no results.
OPAQUE = frozenset({"MDAnalysis", "himach", *sys.stdlib_module_names})
#: Longest key that a path shows.
LONGEST = 60

Child = tuple[str, Any]  # how a script goes there from its parent, and what is there


@dataclass(slots=True)
class Kept:
    """One thing that must stay as it is.

    Attributes
    ----------
    path
        How the user's script names it, such as ``self.seen`` or ``self.d['x']``.
    thing, kind, copy
        It, how it is compared, and the state that it must be in.
    first
        The state that it was in before `renew`.
    """

    path: str
    thing: Any
    kind: Kind
    copy: Any
    first: Any = None

    @property
    def changed(self) -> bool:
        """Whether it is in another state than its copy; what cannot be compared any more has changed."""
        try:
            return not self.kind.same(self.thing, self.copy)
        except Exception:
            return True

    @property
    def changed_path(self) -> str:
        """The path of what changed in it, where that is one entry or attribute."""
        try:
            now, before = self.kind.entries(self.thing), self.kind.entries(self.copy)
            (entry,) = [entry for entry in now.keys() | before.keys() if not _alike(now, before, entry)]
        except Exception:  # several, or things without entries
            return self.path
        return self.path + entry

    def renew(self) -> None:
        """Take its state for the one that it had, and remember that one for `restore`."""
        self.first, self.copy = self.copy, self.kind.copied(self.thing)

    def release(self) -> None:
        """Let it be written to again, if `restore` made it read-only."""
        if isinstance(self.thing, np.ndarray) and isinstance(self.first, tuple):
            self.thing.flags.writeable = True

    def restore(self) -> None:
        """Put it back into the state before `renew`, as far as that can be done."""
        try:
            self.kind.restore(self.thing, self.first)
            self.copy = self.kind.copied(self.thing)
        except Exception:  # of somebody's class
            return


class Kind(NamedTuple):
    """How things of some type are copied, compared with the copy, restored from it; and what lies inside them."""

    name: str
    copied: Callable[[Any], Any]
    same: Callable[[Any, Any], bool]
    inside: Callable[[Any], Iterable[Child]] = lambda thing: ()
    restore: Callable[[Any, Any], None] = lambda thing, copy: None
    entries: Callable[[Any], dict[str, Any]] = lambda thing: {}


def kept_by(analysis: Analysis) -> list[Kept]:
    """List what the attributes of an analysis and of its class lead to, but for those that `caches` names.

    What belongs to MDAnalysis (groups of atoms follow the frame), modules, types, and what other libraries keep in
    attributes that are caches by their name is left out.
    """
    home = type(analysis).__module__.partition(".")[0]
    found: list[Kept] = []
    todo: list[Child] = [(cls.__name__, _Class(cls)) for cls in _own_classes(analysis)]
    todo.append(("self", _Root(analysis)))
    seen: dict[int, Any] = {id(analysis): analysis}  # with the things, so that no other gets the same id
    while todo and len(found) < MOST:
        path, thing = todo.pop()
        if id(thing) in seen:
            continue
        seen[id(thing)] = thing
        kind = _kind(thing, home)
        if kind is None:
            continue
        try:
            if kind.name:
                found.append(Kept(path, thing, kind, kind.copied(thing)))
            todo += [(path + step, inner) for step, inner in kind.inside(thing) if not _is_leaf(inner)]
        except Exception:  # of somebody's class that does not show itself
            continue
    return found


class _Root:
    """The attributes of an analysis, as a thing of their own."""

    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis
        self.ignored = frozenset({MAPPING, *analysis.cache_names(), *_lazy(type(analysis))})

    def state(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self.analysis).items() if name not in self.ignored}


class _Class:
    """The attributes of a class, as a thing of their own."""

    def __init__(self, cls: type) -> None:
        self.cls = cls

    def state(self) -> dict[str, Any]:
        ignored: frozenset[str] = self.cls.cache_names() if issubclass(self.cls, Analysis) else frozenset()
        return {name: value for name, value in vars(self.cls).items() if not (_dunder(name) or name in ignored)}


def _own_classes(analysis: Analysis) -> list[type]:
    classes = type(analysis).__mro__
    return [cls for cls in classes[: classes.index(Analysis)] if not cls.__module__.startswith("himach.")]


_LEAVES = frozenset({int, float, complex, str, bytes, bool, type(None), range, slice, type, types.ModuleType})


def _is_leaf(thing: Any) -> bool:
    return type(thing) in _LEAVES or isinstance(thing, np.generic | type)


def _alike(now: dict[str, Any], before: dict[str, Any], entry: str) -> bool:
    if entry not in now or entry not in before:
        return False
    try:
        return now[entry] is before[entry] or bool(now[entry] == before[entry])
    except Exception:  # arrays, for one, compare element by element
        return False


def _dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _lazy(cls: type) -> frozenset[str]:
    """Return the names of a class's cached properties: what they keep does not change."""
    return frozenset(
        name
        for base in cls.__mro__
        for name, value in vars(base).items()
        if isinstance(value, functools.cached_property)
    )


# -- arrays -----------------------------------------------------------------------------------------------------------


def _words(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the bytes of an array as one row of the largest words that divide them."""
    flat = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    return flat.view(np.uint64) if flat.nbytes % 8 == 0 else flat


def _array_copy(values: npt.NDArray[Any]) -> Any:
    values = values.view(np.ndarray)
    return np.array(values, order="C") if values.nbytes <= LARGE else (values.shape, _checksum(values))


def _checksum(values: npt.NDArray[Any]) -> int:
    return zlib.crc32(_words(values))


def _array_same(values: npt.NDArray[Any], copy: Any) -> bool:
    values = values.view(np.ndarray)
    if isinstance(copy, tuple):
        return (values.shape, _checksum(values)) == copy
    if values.shape != copy.shape or values.dtype != copy.dtype:
        return False
    return values.nbytes == 0 or np.array_equal(_words(values), _words(copy))


def _array_restore(values: npt.NDArray[Any], copy: Any) -> None:
    if isinstance(copy, tuple):
        values.flags.writeable = False  # who writes to it is told by numpy's error
    else:
        values.view(np.ndarray)[...] = copy


def _objects_restore(values: npt.NDArray[Any], copy: list[Any]) -> None:
    if not values.dtype.names:
        values.flat[:] = copy


def _masked(values: npt.NDArray[Any]) -> Iterator[Child]:
    if isinstance(values, np.ma.MaskedArray) and isinstance(values.mask, np.ndarray):
        yield ".mask", values.mask


def _writable(values: npt.NDArray[Any]) -> bool:
    """Tell whether anybody can write to the memory of an array."""
    while True:
        if values.flags.writeable:
            return True
        if not isinstance(values.base, np.ndarray):
            return False
        values = values.base


# -- objects ----------------------------------------------------------------------------------------------------------


def _attributes(thing: Any) -> dict[str, Any]:
    """Return an object's attributes, without asking properties."""
    if isinstance(thing, _Root | _Class):
        return thing.state()
    found: dict[str, Any] = {}
    for cls in type(thing).__mro__:
        slots = vars(cls).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            member = vars(cls).get(name)  # private names have another here; they are left out
            if isinstance(member, types.MemberDescriptorType) and hasattr(thing, name):
                found[name] = member.__get__(thing)
    found |= getattr(thing, "__dict__", {})
    if isinstance(thing, Analysis):
        found.pop(MAPPING, None)  # himach's own
    return found


def _object_same(thing: Any, copy: dict[str, Any]) -> bool:
    now = _attributes(thing)
    if now.keys() == copy.keys():
        return all(now[name] is value or now[name] == value for name, value in copy.items())
    lazy = _lazy(type(thing)) - copy.keys()
    return now.keys() - lazy == copy.keys() and all(_alike(now, copy, name) for name in copy)


def _object_inside(thing: Any) -> Iterator[Child]:
    for name, value in _attributes(thing).items():
        if not (isinstance(thing, _Class) and isinstance(value, types.FunctionType)):
            yield f".{name}", value


def _object_restore(thing: Any, copy: dict[str, Any]) -> None:
    if isinstance(thing, _Class):
        return
    attributes = vars(thing.analysis if isinstance(thing, _Root) else thing)
    for name in _attributes(thing).keys() - copy.keys():
        attributes.pop(name, None)
    attributes.update(copy)


def _object_entries(thing: Any) -> dict[str, Any]:
    attributes = thing if isinstance(thing, dict) else _attributes(thing)
    return {f".{name}": value for name, value in attributes.items()}


def _foreign_copy(thing: Any) -> dict[str, Any]:
    """Return the public attributes of another library's object; others may be what it remembers for speed."""
    return {name: value for name, value in _attributes(thing).items() if not name.startswith("_")}


def _foreign_same(thing: Any, copy: dict[str, Any]) -> bool:
    now = _foreign_copy(thing)
    return now.keys() - (_lazy(type(thing)) - copy.keys()) == copy.keys() and all(
        _alike(now, copy, name) for name in copy
    )


def _foreign_inside(thing: Any) -> Iterator[Child]:
    for name, value in _attributes(thing).items():
        if "cache" not in name.lower() and "memo" not in name.lower():
            yield f".{name}", value


@functools.lru_cache
def _is_foreign(module: str, home: str) -> bool:
    """Tell whether a module is of an installed library, and not of the one that the analysis comes from."""
    if module.partition(".")[0] == home:
        return False
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return "site-packages" in file or "dist-packages" in file


# -- what else changes ------------------------------------------------------------------------------------------------


def _dict_same(thing: dict[Any, Any], copy: dict[Any, Any]) -> bool:
    if dict.__eq__(thing, copy):
        return True
    # Looking up a key that is not there adds one to a defaultdict, without a change of what it says.
    if not isinstance(thing, defaultdict) or thing.default_factory is None or not copy.keys() <= thing.keys():
        return False
    added = {key: thing.default_factory() for key in thing.keys() - copy.keys()}
    return dict.__eq__(thing, copy | added)


def _dict_restore(thing: dict[Any, Any], copy: dict[Any, Any]) -> None:
    dict.clear(thing)
    dict.update(thing, copy)


def _keyed(thing: dict[Any, Any]) -> dict[str, Any]:
    return {f"[{key!r}]" if len(repr(key)) <= LONGEST else "[...]": value for key, value in thing.items()}


def _dict_inside(thing: dict[Any, Any]) -> Iterator[Child]:
    if not set(map(type, thing.values())) <= _LEAVES:
        yield from _keyed(thing).items()
    if type(thing) is not dict:
        yield from _foreign_inside(thing)


def _listed(thing: Iterable[Any]) -> dict[str, Any]:
    return {f"[{place}]": value for place, value in enumerate(thing)}


def _list_inside(thing: Iterable[Any]) -> Iterable[Child]:
    return () if set(map(type, thing)) <= _LEAVES else _listed(thing).items()


def _list_restore(thing: Any, copy: Any) -> None:
    thing[:] = copy


def _set_restore(thing: set[Any], copy: set[Any]) -> None:
    set.clear(thing)
    set.update(thing, copy)


def _deque_restore(thing: deque[Any], copy: deque[Any]) -> None:
    thing.clear()
    thing.extend(copy)


def _closure(function: Any) -> Iterator[Child]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f" (its {name})", cell.cell_contents
        except ValueError:  # not assigned yet
            continue


def _partial(function: Any) -> Iterator[Child]:
    yield "", (function.func, function.args, function.keywords)


def _random_state(generator: Any) -> Any:
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.RandomState):
        return _plain_state(generator.get_state(legacy=False))
    return _plain_state(generator.bit_generator.state)


def _plain_state(state: Any) -> Any:
    if isinstance(state, dict):
        return {name: _plain_state(value) for name, value in state.items()}
    return state.tobytes() if isinstance(state, np.ndarray) else state


def _position(iterator: Any) -> Any:
    """Return how far an iterator has gone, as far as it tells."""
    if isinstance(iterator, types.GeneratorType):
        frame = iterator.gi_frame
        return None if frame is None else (frame.f_lasti, dict(frame.f_locals))
    return repr(iterator), length_hint(iterator, -1)


def _pandas(thing: Any) -> bool:
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(thing, pandas.Series | pandas.DataFrame)


_ARRAY = Kind("an array", _array_copy, _array_same, _masked, _array_restore)
_OBJECTS = Kind(
    "an array",
    lambda thing: thing.ravel().tolist(),
    lambda thing, copy: thing.ravel().tolist() == copy,
    lambda thing: _list_inside(thing.ravel().tolist()),
    _objects_restore,
)
_LIST = Kind("a list", lambda thing: thing[:], list.__eq__, _list_inside, _list_restore)
_DICT = Kind("a dict", dict, _dict_same, _dict_inside, _dict_restore, _keyed)
_SET = Kind("a set", set, set.__eq__, lambda thing: (("", each) for each in thing), _set_restore)
_DEQUE = Kind("a deque", deque, lambda thing, copy: bool(thing == copy), _list_inside, _deque_restore)
_BUFFER = Kind("a buffer", lambda thing: thing[:], lambda thing, copy: bool(thing == copy), restore=_list_restore)
_OBJECT = Kind("an object", _attributes, _object_same, _object_inside, _object_restore, _object_entries)
_FOREIGN = Kind("an object", _foreign_copy, _foreign_same, _foreign_inside)
_FRAME = Kind("a table", lambda thing: thing.copy(), lambda thing, copy: thing.equals(copy))
_RANDOM = Kind("a random generator", _random_state, lambda thing, copy: _random_state(thing) == copy)
_ITERATOR = Kind("an iterator", _position, lambda thing, copy: _position(thing) == copy)
# These do not change themselves.
_TUPLE = Kind("", lambda thing: None, lambda thing, copy: True, _list_inside)
_FROZEN = Kind("", lambda thing: None, lambda thing, copy: True, lambda thing: (("", each) for each in thing))
_METHOD = Kind("", lambda thing: None, lambda thing, copy: True, lambda thing: [("", thing.__self__)])
_PARTIAL = Kind("", lambda thing: None, lambda thing, copy: True, _partial)
_FUNCTION = Kind("a function", lambda thing: dict(_closure(thing)), lambda f, copy: dict(_closure(f)) == copy, _closure)

_BY_TYPE: tuple[tuple[Any, Kind], ...] = (
    (list, _LIST),
    (dict, _DICT),
    (set, _SET),
    (deque, _DEQUE),
    (tuple, _TUPLE),
    (frozenset, _FROZEN),
    ((bytearray, array.array), _BUFFER),
    ((np.random.Generator, np.random.RandomState, random.Random), _RANDOM),
    (types.MethodType, _METHOD),
    (functools.partial, _PARTIAL),
    ((_Root, _Class, Analysis, types.SimpleNamespace, ChainMap, UserDict, UserList), _OBJECT),
)


def _kind(thing: Any, home: str) -> Kind | None:
    """Return how a thing is watched; None if it is not."""
    if isinstance(thing, np.ndarray):
        return (_OBJECTS if thing.dtype.hasobject else _ARRAY) if _writable(thing) else None
    for types_, kind in _BY_TYPE:
        if isinstance(thing, types_):
            return kind
    if _pandas(thing):
        return _FRAME
    if isinstance(thing, types.FunctionType):
        module = thing.__module__ or ""
        ours = thing.__closure__ and module.partition(".")[0] not in OPAQUE and not _is_foreign(module, home)
        return _FUNCTION if ours else None
    cls = type(thing)
    package = cls.__module__.partition(".")[0]
    if package in ("builtins", "itertools"):
        return _ITERATOR if hasattr(cls, "__next__") else None
    if package in OPAQUE:
        return None
    return _FOREIGN if _is_foreign(cls.__module__, home) else _OBJECT
