"""Digests of Python values: `ValueDigests`, and `topology_digest()`; the same in every process for what is the same.

A value counts by the bytes that pickle makes of it. What these would tell otherwise in another process counts by a text
of its own: strings (pickle writes whether two are one object), sets (whose order differs), arrays (by what is in them,
wherever that lies), groups of atoms, and modules, classes and functions: by name, by what they hold, and by their code
if no other process can import them. What an object computed for later use (cached properties) does not count.
"""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import enum
import functools
import hashlib
import io
import logging
import os
import pickle
import re
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.digests.attributes import PlainMember, added, is_note, is_special, noted, own_attributes
from himach.digests.code_text import code_names, code_text
from himach.digests.file_text import file_text
from himach.digests.texts import PLAIN, bytes_text, dtype_text, list_text, named_ufunc, refused
from himach.errors import HimachError
from himach.user_code import SCRIPT_MODULE, file_of, is_found, is_installed, is_library, is_own

__all__ = ["MADE", "UnstableError", "ValueDigests", "topology_digest"]

#: What a class has beside what is written in it, and what looks like a method.
MADE = frozenset({"__dict__", "__weakref__", "__annotate__", "__annotate_func__", "_abc_impl"})
#: Attributes of a topology that come from the rest.
_DERIVED = frozenset({"top", "_cache"})
#: The attributes of those names of which `values` are made: each name once, and its place for each atom.
_INTERNED = frozenset({"nmidx", "name_lookup"})
#: The classes of MDAnalysis that are groups of atoms, or single ones.
_ATOMS = frozenset({"AtomGroup", "ResidueGroup", "SegmentGroup", "Atom", "Residue", "Segment"})
#: What properties, methods and functions that were wrapped are made of.
_WRAPPED = ("fget", "fset", "fdel", "__func__", "func", "__wrapped__", "py_func", "targetoptions")
_WRAPPERS = (property, staticmethod, classmethod, functools.cached_property)
_LOCKS = (type(threading.Lock()), type(threading.RLock()))
#: What counts as being there, and no more.
_STREAMS = ("stdout", "stderr", "stdin", "__stdout__", "__stderr__", "__stdin__")

Handler = Callable[[Any], str | None]


class UnstableError(HimachError):
    """A value of which pickle makes other bytes after a journey through pickle."""


class ValueDigests:
    """Digests of values.

    Parameters
    ----------
    known
        Things that count by a name alone, by these names.
    skipped
        Tells which attributes do not count of a class, and of its instances.
    home
        The module whose name does not count.
    owned
        Tells which modules' functions and classes count by what they hold, too.
    here
        Whether digests are for this process alone: then objects of libraries that pickle cannot take apart count by
        which they are, and so do trajectories.

    Attributes
    ----------
    modules
        Names of modules whose things were met.
    functions, classes
        Those that were met and that no other process can import. The globals that functions use do not count in their
        digests.
    names
        All that code which was met mentions.
    codes, arrays, identities
        Those of such modules, all arrays, and how many things that count by which they are, were met since somebody
        emptied these lists.
    """

    def __init__(
        self,
        known: Iterable[tuple[str, Any]] = (),
        skipped: Callable[[type], frozenset[str]] = lambda cls: frozenset(),
        home: str = "",
        owned: Callable[[str], bool] = is_own,
        here: bool = False,
    ) -> None:
        self.modules: set[str] = set()
        self.functions: dict[int, types.FunctionType] = {}
        self.codes: list[types.CodeType] = []
        self.arrays: list[npt.NDArray[Any]] = []
        self.names: set[str] = set()
        self.classes: dict[int, type] = {}
        self.identities = 0
        self.here = here
        self.owned = owned
        streams = [(f"sys.{name}", getattr(sys, name)) for name in _STREAMS if getattr(sys, name) is not None]
        self._known = {id(thing): (f"known {name}", thing) for name, thing in [*streams, *known]}
        self._skipped = skipped
        self._home = home
        self._handlers: dict[type, Handler | None] = dict.fromkeys((int, float, bool, type(None)))
        self._handlers[str] = lambda text: f"'{text}"  # a new object, so that pickle does not know it again
        self._handlers[bytes] = bytes_text  # of which pickle writes whether two are one object, too
        self._importable: dict[str, bool] = {}
        self._open: dict[int, int] = {}
        self._things: dict[str, Any] = {}

    def digest(self, value: Any, *, stable: bool = False) -> str:
        """Return a digest (hex) of a value; if it must be `stable`, only where a journey through pickle keeps it.

        Raises
        ------
        UnstableError
            If it is not stable.
        Exception
            If pickle cannot take it apart, whatever that raises.
        """
        data = self._pickled(value)
        if stable and self._pickled(self._unpickled(data)) != data:
            raise UnstableError("what pickle makes of it differs from time to time")
        return hashlib.sha256(data).hexdigest()[:40]

    def _pickled(self, value: Any) -> bytes:
        buffer = io.BytesIO()
        pickler = _Pickler(buffer, 4)
        pickler.text_of, pickler.reduced = self._text_of, self._reduced
        pickler.dump(value)
        return buffer.getvalue()

    def _unpickled(self, data: bytes) -> Any:
        unpickler = _Unpickler(io.BytesIO(data))
        unpickler.things = self._things
        return unpickler.load()

    def _text_of(self, value: Any) -> str | None:
        """Return the text by which a value counts in place of what pickle makes of it; None: it is left to pickle."""
        kind = type(value)
        known = self._known.get(id(value))
        if known is not None:
            text: str | None = known[0]
        else:
            if kind not in self._handlers:
                self._handlers[kind] = self._handler(kind)
            handler = self._handlers[kind]
            text = None if handler is None else handler(value)
        if text is not None and kind is not str:
            self._things[text] = value
        return text

    def _handler(self, kind: type) -> Handler | None:
        """Return what makes the text of values of a type."""
        if kind in (list, tuple):
            return list_text
        if kind.__name__ == "_memoryviewslice":  # of Cython, somebody's own kind in each module
            return lambda view: self._parts("view", np.asarray(view))
        if kind is np.ndarray:
            return self._array
        if kind.__module__ == "itertools":  # some versions of Python pickle them, others do not
            return refused
        for types_, handler in (
            (type, self._class),
            (types.FunctionType, self._function),
            (types.ModuleType, self._module),
            (types.MethodType, self._method),
            ((set, frozenset), self._set),
            (np.dtype, lambda dtype: f"dtype {dtype_text(dtype)}"),
            ((types.MemberDescriptorType, types.GetSetDescriptorType), lambda slot: f"slot {slot.__name__}"),
            ((*_LOCKS, Executor), lambda lock: f"lock {kind.__qualname__}"),
            (types.MappingProxyType, lambda proxy: self._parts("proxy", dict(proxy))),
            (memoryview, lambda view: self._parts("view", view.tobytes(), view.format, view.shape)),
            (weakref.ref, lambda reference: self._parts("reference", reference())),
            (re.Match, lambda match: self._parts("match", match.re, match.string, match.regs)),
            (contextvars.ContextVar, lambda variable: self._parts("variable", variable.name, variable.get(None))),
            (ctypes.CDLL, self._identity if self.here else refused),
            (threading.local, lambda local: self._parts("local", kind, vars(local))),
            (logging.Logger, lambda logger: self._parts("logger", logger.name, added(logger, logging.root))),
            (enum.Enum, lambda member: self._parts("member", kind, member.name, added(member, PlainMember.MEMBER))),
        ):
            if issubclass(kind, types_):
                return handler
        if "numpy.ma" in sys.modules and issubclass(kind, np.ma.MaskedArray):  # numpy.ma takes a while to import
            return lambda masked: self._parts(
                "masked", kind, masked.data, np.ma.getmaskarray(masked), masked.fill_value
            )
        names = {f"{cls.__module__.partition('.')[0]}.{cls.__name__}" for cls in kind.__mro__}
        if self.here and "MDAnalysis.ProtoReader" in names:
            return self._identity
        if "scipy.cKDTree" in names:  # which pickle makes of the pointers in it, too
            return lambda tree: self._parts("tree", tree.data, tree.indices, tree.leafsize, tree.boxsize)
        if "MDAnalysis.Universe" in names or _is_mdanalysis(kind):
            return self._atoms_handler(kind)
        wraps = hasattr(kind, "__call__") or hasattr(kind, "__get__")  # noqa: B004
        if is_special(kind) and self.owned(kind.__module__) and not is_library(kind.__module__):
            return lambda value: (
                self._wrapper(value) if wraps and hasattr(value, "__qualname__") else self._special(value)
            )
        if kind is np.ufunc:
            return self._identity if self.here else named_ufunc
        return self._wrapper if wraps else None

    def _special(self, value: Any) -> str:
        """Return the text of an object whose own way of being pickled may leave things out."""
        return self._once(value, lambda: self._parts("own", type(value), value.__reduce_ex__(4), own_attributes(value)))

    def _reduced(self, value: Any) -> Any:
        """Return what pickle is to make of an object, without what it computed for later use."""
        kind = type(value)
        library = is_library(kind.__module__)
        if self.here and (library or kind.__module__ in ("ctypes", "_ctypes")) and not hasattr(kind, "__next__"):
            try:
                value.__reduce_ex__(4)
            except Exception:  # whatever it raises that cannot be taken apart
                return str, (self._identity(value),)
        if not hasattr(value, "__dict__") or is_special(kind):
            return NotImplemented
        drop = set(self._skipped(kind))
        if self.here or library:
            drop |= {name for name in vars(value) if isinstance(getattr(kind, name, None), functools.cached_property)}
        if library:
            drop |= {name for name, each in vars(value).items() if is_note(name, each)}
        if drop.isdisjoint(vars(value)):
            return NotImplemented
        function, arguments, state, *more = value.__reduce_ex__(4)
        attributes, slots = state if isinstance(state, tuple) else (state, None)
        attributes = {name: each for name, each in attributes.items() if name not in drop}
        kept = attributes if self.here else attributes or None  # in another process as of an object that has none
        return function, arguments, kept if slots is None else (kept, slots), *more

    def _identity(self, value: Any) -> str:
        self.identities += 1
        return f"{type(value).__qualname__} at {id(value)}"

    # -- containers ---------------------------------------------------------------------------------------------------

    def _method(self, method: types.MethodType) -> str:
        if type(method.__self__).__module__ == "multiprocessing.context":  # which learns its start method by use
            return f"method {method.__func__.__qualname__}"
        return self._parts("method", method.__func__, method.__self__)

    def _parts(self, name: str, *parts: Any) -> str:
        return f"{name} {' '.join(hashlib.sha256(self._pickled(part)).hexdigest()[:40] for part in parts)}"

    def _set(self, values: Any) -> str:
        if PLAIN.issuperset(map(type, values)):
            members = [f"{type(value).__name__} {value!r}" for value in values]
        else:
            members = [self.digest(value) for value in values]
        return self._parts("set", type(values), sorted(members), getattr(values, "__dict__", None))

    def _array(self, array: npt.NDArray[Any]) -> str | None:
        self.arrays.append(array)
        if array.dtype.hasobject:
            return None
        content = hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        return f"array {dtype_text(array.dtype)} {array.shape} {content.hexdigest()}"

    # -- code ---------------------------------------------------------------------------------------------------------

    def _module(self, module: types.ModuleType) -> str:
        self.modules.add(module.__name__)
        if sys.modules.get(module.__name__) is module:
            return f"module {module.__name__}"
        return self._parts("file", module.__name__, file_text(module.__file__ or ""))  # which no import finds

    def imported(self, thing: Any) -> str | None:
        """Return the text of what every process imports by its name."""
        name, qualname = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
        name, qualname = name or "builtins", qualname or getattr(thing, "__name__", None)
        if not isinstance(name, str) or not isinstance(qualname, str) or not self.importable(name):
            return None
        found: Any = sys.modules[name]
        with contextlib.suppress(AttributeError):
            for part in qualname.split("."):
                found = getattr(found, part)
            if found is thing:
                self.modules.add(name)
                return f"named {'' if name == self._home else name}.{qualname}"
        return None

    def importable(self, name: str) -> bool:
        """Tell whether every process finds a module by its name: then what is in it does."""
        if name not in sys.modules or name == "__main__":
            return False
        if name not in self._importable:
            top = name.partition(".")[0]
            known = top in sys.stdlib_module_names or top.startswith(SCRIPT_MODULE) or is_installed(file_of(top))
            self._importable[name] = known or is_found(name)
        return self._importable[name]

    def _wrapper(self, thing: Any) -> str | None:
        """Return the text of what was wrapped around a function, as by functools.lru_cache, numba or property."""
        if not isinstance(thing, _WRAPPERS) and not hasattr(thing, "__qualname__"):
            return None
        text = self.imported(thing)
        parts = [getattr(thing, name, None) for name in _WRAPPED]
        if any(part is not None for part in parts):
            return self._parts(f"wrapped {text}", type(thing), *parts)
        return text

    def _function(self, function: types.FunctionType) -> str:
        text = self.imported(function)
        if text and not self.owned(function.__module__):
            return text
        return self._once(function, lambda: self._function_text(text, function))

    def _class(self, cls: type) -> str:
        text = self.imported(cls)
        if text and not self.owned(cls.__module__):
            return text
        return self._once(cls, lambda: self._class_text(text or f"class {cls.__qualname__}", cls))

    def _once(self, thing: Any, text_of: Callable[[], str]) -> str:
        """Return a text of what may lie in itself: so many levels up, then."""
        if id(thing) in self._open:
            return f"above {len(self._open) - self._open[id(thing)]}"
        self._open[id(thing)] = len(self._open)
        try:
            return text_of()
        finally:
            del self._open[id(thing)]

    def _function_text(self, name: str | None, function: types.FunctionType) -> str:
        code = function.__code__
        cells = {}
        for free, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            if free == "dispatch_cache" and code.co_filename == functools.__file__:  # what singledispatch remembers
                continue
            with contextlib.suppress(ValueError):  # not assigned yet
                cells[free] = cell.cell_contents
        self.codes.append(code)
        names = code_names(code)
        self.names |= names
        self.modules |= names & sys.modules.keys()
        if not name:
            home = sys.modules.get(function.__module__ or "")
            if home is None or not self.importable(home.__name__) or vars(home) is not function.__globals__:
                self.functions[id(function)] = function
            name = code_text(code)
        own = {name: value for name, value in vars(function).items() if name != "_clear_cache"}  # of singledispatch
        held = (function.__defaults__, function.__kwdefaults__, cells, own)
        return self._parts(f"function {name}", *held) if any(held) else f"function {name}"

    def _class_text(self, name: str, cls: type) -> str:
        self.modules.add(cls.__module__)
        if name.startswith("class "):
            self.classes[id(cls)] = cls
        names = sorted(vars(cls).keys() - MADE - self._skipped(cls))
        members = {name: vars(cls)[name] for name in names if not _dunder(name) or hasattr(vars(cls)[name], "__get__")}
        return self._parts(name, cls.__bases__, type(cls), members)

    # -- MDAnalysis ---------------------------------------------------------------------------------------------------

    def _atoms_handler(self, kind: type) -> Handler | None:
        names = {cls.__name__ for cls in kind.__mro__}
        if "UpdatingAtomGroup" in names:
            return lambda group: self._parts(
                "updating",
                group._base_group,
                group._selection_strings,
                [vars(one) for one in group._selections],
                noted(group),
            )
        if names & _ATOMS:
            of_class = sorted(names & _ATOMS)
            return lambda group: self._parts("atoms", of_class, np.asarray(group.ix), group.universe, noted(group))
        return self._universe if "Universe" in names else None

    def _universe(self, universe: Any) -> str:
        ts = universe.trajectory.ts
        if self.here:  # one of several frames is read again, and which one is a matter of the frame at hand
            alone = len(universe.trajectory) == 1 or type(universe.trajectory).__module__.startswith("himach.")
            here = [np.array(ts.positions), ts.dimensions] if alone and ts.has_positions else []
            return self._parts(self._identity(universe), *here)
        trajectory = universe.trajectory
        seen = (len(trajectory), ts.frame, np.array(ts.positions), ts.dimensions, [*trajectory.transformations])
        files = [
            file_text(os.fspath(file))
            for file in getattr(trajectory, "filenames", None) or [trajectory.filename]
            if file is not None
        ]
        rest = (files, getattr(trajectory, "coordinate_array", None))
        return self._parts("universe", topology_digest(universe._topology), *seen, *rest)


class _Pickler(pickle.Pickler):
    text_of: Handler
    reduced: Handler

    def persistent_id(self, value: Any) -> str | None:
        return self.text_of(value)

    def reducer_override(self, value: Any) -> Any:
        return self.reduced(value)


class _Unpickler(pickle.Unpickler):
    things: dict[str, Any]

    def persistent_load(self, text: str) -> Any:
        return text[1:] if text not in self.things else self.things[text]


def _dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _is_mdanalysis(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "MDAnalysis"


def topology_digest(topology: Any) -> str:
    """Return a digest (hex) of all that a topology of MDAnalysis says, guessed or not."""
    digests = ValueDigests()
    table = topology.tt
    parts = [digests.digest((table.n_atoms, table.n_residues, table.n_segments, table._AR, table._RS))]
    by_name = {
        f"{type(attribute).__name__}.{name}": (attribute, name)
        for attribute in topology.attrs
        for name in vars(attribute)
    }
    for name, (attribute, field) in sorted(by_name.items()):
        value = vars(attribute)[field]
        if field in _DERIVED or (field == "values" and vars(attribute).keys() >= _INTERNED):
            continue
        parts.append(f"{name} {digests.digest(value)}")
    return digests.digest(parts)
