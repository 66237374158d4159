"""Digests of values: `Values.digest()`, the same in every process for values that are the same.

What is a function, class or module is handed to somebody else (`reach`), who looks at its code. What cannot be looked
into is listed (`Values.opaque`).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import struct
import sys
import types
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from MDAnalysis import Universe

__all__ = ["Values", "topology_digest"]

_PLAIN = frozenset({int, float, complex, str, bytes, bool, type(None), type(Ellipsis), type(NotImplemented), range})
_BUILTIN_BASES: tuple[Any, ...] = (
    list,
    tuple,
    dict,
    set,
    frozenset,
    str,
    bytes,
    bytearray,
    int,
    float,
    complex,
    np.ndarray,
)
_HEAP_TYPE = 1 << 9  # of a class that Python code made
#: Attributes of a topology that come from the rest.
_DERIVED = frozenset({"top", "_cache"})
#: The attributes of those names of which `values` are made: each name once, and its place for each atom.
_INTERNED = frozenset({"nmidx", "name_lookup"})
#: The classes of MDAnalysis that are groups of atoms, and single ones.
_GROUPS = frozenset({"AtomGroup", "ResidueGroup", "SegmentGroup"})
_SINGLE = frozenset({"Atom", "Residue", "Segment"})


class Values:
    """Digests of values.

    Parameters
    ----------
    reach
        Called with each function, class and module that is found; returns a name for it.
    universe
        The Universe of the analysis: its atoms are known by their indices. Those of others count with their positions.
    known
        Things that count by a name alone.

    Attributes
    ----------
    opaque
        Types of what cannot be looked into.
    """

    def __init__(
        self, reach: Callable[[Any], str], universe: Universe | None = None, known: Iterable[tuple[Any, str]] = ()
    ) -> None:
        self._reach = reach
        self._universe = universe
        self._known = {id(thing): (name, thing) for name, thing in ((name, thing) for thing, name in known)}
        if universe is not None:
            trajectory = universe.trajectory
            for thing, name in ((universe, "universe"), (trajectory, "trajectory"), (trajectory.ts, "ts")):
                self._known[id(thing)] = (name, thing)
        self._done: dict[int, tuple[bytes, Any]] = {}  # with the things, so that no other gets the same id
        self._open: dict[int, int] = {}
        self.opaque: list[str] = []

    def digest(self, value: Any) -> bytes:
        """Return a digest of a value; what of it cannot be looked into comes to `opaque`, and counts by its type."""
        if type(value) in _PLAIN:
            return _hash("plain", _text(value))
        place = id(value)
        if place in self._known:
            return _hash("known", self._known[place][0])
        if place in self._done:
            return self._done[place][0]
        if place in self._open:  # it lies in itself: so many levels up
            return _hash("above", str(len(self._open) - self._open[place]))
        self._open[place] = len(self._open)
        try:
            found = self._digest(value)
        except Exception:  # of somebody's class that does not show itself; or it is too deep
            self.opaque.append(_type_name(value))
            found = _hash("opaque", _type_name(value))
        finally:
            del self._open[place]
        self._done[place] = found, value
        return found

    def _digest(self, value: Any) -> bytes:
        found = self._digest_code(value)
        if found is not None:
            return found
        kind = type(value)
        if kind in (list, tuple, dict, set, frozenset, bytearray, slice, memoryview, types.MappingProxyType):
            return self._digest_container(value, kind.__name__)
        if isinstance(value, np.generic):
            if value.dtype.hasobject:
                return _hash("fields", str(value.dtype), self.digest(value.item()))
            return _hash("scalar", str(value.dtype.descr if value.dtype.names else value.dtype.str), value.tobytes())
        if kind is np.ndarray:
            return self._digest_array(value)
        if isinstance(value, logging.Logger | logging.LoggerAdapter):
            return _hash("logger")
        if kind.__module__.partition(".")[0] == "MDAnalysis" and (found := self._digest_atoms(value)) is not None:
            return found
        return self._digest_object(value)

    def _digest_code(self, value: Any) -> bytes | None:
        """Return the digest of what stands for code, with what was given to it; None for other values."""
        if isinstance(value, types.FunctionType):
            return self._digest_function(value)
        if isinstance(value, types.BuiltinFunctionType) and not isinstance(value.__self__, types.ModuleType | None):
            return _hash("method", value.__name__, self.digest(value.__self__))
        if isinstance(value, type | types.ModuleType | types.BuiltinFunctionType | np.ufunc):
            return _hash("code", self._reach(value))
        if isinstance(value, types.MethodType):
            return _hash("method", value.__func__.__name__, self.digest(value.__func__), self.digest(value.__self__))
        if isinstance(value, functools.partial):
            return _hash("partial", *map(self.digest, (value.func, value.args, value.keywords)))
        for name in ("__wrapped__", "py_func"):  # as functools.lru_cache and numba.njit have it
            if callable(value) and hasattr(value, name):
                options = getattr(value, "targetoptions", None)
                return _hash("wrapper", _type_name(value), *map(self.digest, (getattr(value, name), options)))
        return None

    def _digest_function(self, function: types.FunctionType) -> bytes:
        """Return the digest of a function by what it is called, and of what it was given when it was made."""
        cells = {}
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # not assigned yet
                cells[name] = cell.cell_contents
        given = (function.__defaults__, function.__kwdefaults__, cells, function.__dict__)
        return _hash("function", self._reach(function), *map(self.digest, given))

    def _digest_container(self, value: Any, name: str) -> bytes:
        if isinstance(value, slice):
            return _hash(name, *map(self.digest, (value.start, value.stop, value.step)))
        if isinstance(value, bytearray | memoryview):
            return _hash(name, bytes(value))
        if isinstance(value, set | frozenset):
            return _hash(name, *sorted(map(self.digest, value)))
        parts: Iterable[Any] = value
        if isinstance(value, dict | types.MappingProxyType):  # in its order, which map() may depend on
            parts = [*value.keys(), *value.values()]
        if set(map(type, parts)) <= _PLAIN:  # a topology has some that are long; their texts tell all of them apart
            return _hash(name, repr(list(parts)))
        return _hash(name, *map(self.digest, parts))

    def _digest_array(self, array: npt.NDArray[Any]) -> bytes:
        about = (str(array.dtype.descr if array.dtype.names else array.dtype.str), str(array.shape))
        if array.dtype.hasobject:
            if array.dtype.names:
                return _hash("array", *about, self.digest(array.tolist()))
            return _hash("array", *about, self._digest_container(array.ravel().tolist(), "list"))
        return _hash("array", *about, np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)

    def _digest_atoms(self, value: Any) -> bytes | None:
        """Return the digest of a group of atoms, or of a Universe; None for MDAnalysis's other objects."""
        from MDAnalysis import Universe
        from MDAnalysis.core.groups import UpdatingAtomGroup

        names = {cls.__name__ for cls in type(value).__mro__}
        if isinstance(value, UpdatingAtomGroup):
            made_of = (value._base_group, value._selection_strings)
            return _hash("updating", *map(self.digest, made_of))
        if names & (_GROUPS | _SINGLE):
            of_class = sorted(names & (_GROUPS | _SINGLE))
            return _hash("atoms", *of_class, self.digest(np.asarray(value.ix)), self.digest(value.universe))
        if isinstance(value, Universe):
            ts = value.trajectory.ts
            seen = (len(value.trajectory), ts.frame, np.array(ts.positions), ts.dimensions)
            return _hash("universe", topology_digest(value._topology), *map(self.digest, seen))
        return None

    def _digest_object(self, value: Any) -> bytes:
        kind = type(value)
        layers = [cls for cls in kind.__mro__ if cls is not object]
        own = all(cls.__flags__ & _HEAP_TYPE or cls in _BUILTIN_BASES for cls in layers)
        home = sys.modules.get(kind.__module__)
        installed = "-packages" in (getattr(home, "__file__", None) or "") or kind.__module__.partition(".")[0] in (
            sys.stdlib_module_names
        )
        if own and not installed:
            return _hash("object", self.digest(kind), *self._inherited(value), self.digest(attributes(value)))
        if "numpy.ma" in sys.modules and isinstance(value, np.ma.MaskedArray):  # which takes a while to import
            parts = (value.data, np.ma.getmaskarray(value), value.fill_value)
            return _hash("masked", _type_name(kind), *map(self.digest, parts))
        if isinstance(value, np.ndarray):
            return _hash("array", self.digest(kind), self.digest(value.view(np.ndarray)), self.digest(vars(value)))
        made_of = value.__reduce_ex__(4)
        if isinstance(made_of, str):  # the name of a global
            return _hash("global", self._reach(value), made_of)
        return _hash("object", *(self.digest(list(each) if hasattr(each, "__next__") else each) for each in made_of))

    def _inherited(self, value: Any) -> Iterable[bytes]:
        """Give what an object is as a list, an array, ..."""
        for base in _BUILTIN_BASES:
            if isinstance(value, base):
                if issubclass(base, np.ndarray):
                    yield self._digest_array(value.view(np.ndarray))
                elif base in _PLAIN:
                    yield _hash("plain", _text(_as_plain(value, base)))
                else:
                    yield self._digest_container(value, base.__name__)


def attributes(thing: Any) -> dict[str, Any]:
    """Return an object's attributes by name, those in slots too, without asking properties."""
    found: dict[str, Any] = dict(getattr(thing, "__dict__", {}))
    for cls in type(thing).__mro__:
        for name, member in vars(cls).items():
            if isinstance(member, types.MemberDescriptorType) and name != "__dict__":
                try:
                    found[f"{cls.__name__}.{name}"] = member.__get__(thing)
                except AttributeError:  # it is not set
                    continue
    return dict(sorted(found.items()))


def topology_digest(topology: Any) -> str:
    """Return a digest (hex) of all that a topology of MDAnalysis says, guessed or not."""
    values = Values(_type_name)
    table = topology.tt
    parts = [values.digest((table.n_atoms, table.n_residues, table.n_segments, table._AR, table._RS))]
    by_name = {
        f"{type(attribute).__name__}.{name}": (attribute, name)
        for attribute in topology.attrs
        for name in vars(attribute)
    }
    for name, (attribute, field) in sorted(by_name.items()):
        value = vars(attribute)[field]
        if field in _DERIVED or (field == "values" and vars(attribute).keys() >= _INTERNED):
            continue
        parts.append(_hash(name, values.digest(value)))
    return _hash("topology", *parts).hex()


def _type_name(value: Any) -> str:
    kind = value if isinstance(value, type) else type(value)
    return f"{kind.__module__}.{kind.__qualname__}"


def _as_plain(value: Any, base: Any) -> Any:
    return base.__new__(base, value)


def _text(value: Any) -> str:
    return f"{type(value).__name__} {value!r}"


def _hash(name: str, *parts: str | bytes | memoryview) -> bytes:
    """Return a digest of parts, each with its length."""
    result = hashlib.blake2b(name.encode(), digest_size=20)
    for part in parts:
        content = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        size = content.nbytes if isinstance(content, memoryview) else len(content)
        result.update(struct.pack("<q", size))
        result.update(content)
    return result.digest()
