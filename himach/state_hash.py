"""Hashes of Python values, `StateHasher` and `topology_digest()`: equal for equal values, in every process.

A value is hashed by its pickle. Values whose pickles differ between processes are hashed by a text: strings, sets,
arrays by content, groups of atoms, functions and classes by name, code and contents.
"""

import contextlib
import ctypes
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
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.analysis import GIVEN, MAPPING, Analysis
from himach.files import content_digest
from himach.user_code import SCRIPT_MODULE, is_found, is_installed, is_library, is_own, module_file

#: Methods that run after map() and combine(), whose code does not count; those before, which count by their effects.
LATER = frozenset({"reduce", "reduce_many", "finish", "plot"})
BEFORE = frozenset({"setup", "atoms", "__init__"})
#: Attributes of an analysis that himach manages.
HIMACHS = frozenset({MAPPING, GIVEN, "frames", "dt", "caches"})
#: Attributes of a class that Python generates.
MADE = frozenset({"__dict__", "__weakref__", "__annotate__", "__annotate_func__", "_abc_impl"})
#: Stands for any name; then names that let code access computed names.
ANY = "*"
REFLECTION = re.compile(
    r"globals|locals|eval|exec|vars|dir|__globals__|__dict__|[gs]etattr|attrgetter|methodcaller|__getattribute__|modules"
    r"|getmembers|__import__|import_module|spec_from_file_location|run_path|format|format_map"
)
#: Attributes of every group of atoms; the MDAnalysis classes of groups and of their single items.
_OF_GROUP = frozenset(
    {"_ix", "_u", "_cache", "_selections", "_selection_strings", "_base_group", "_lastupdate", "_derived_class"}
    | {"convert_to"}
)
_ATOMS = frozenset({"AtomGroup", "ResidueGroup", "SegmentGroup", "Atom", "Residue", "Segment"})
#: Attributes that hold the functions of wrappers.
_WRAPPED = ("fget", "fset", "fdel", "__func__", "func", "__wrapped__", "py_func")
_WRAPPERS = (property, staticmethod, classmethod, functools.cached_property, type(functools.cache(len)))
_REDUCERS = tuple((name, getattr(object, name)) for name in ("__reduce_ex__", "__reduce__", "__getstate__"))
#: Largest file, in bytes, that is hashed by content; others by size and modification time.
LARGE = 1 << 30

Handler = Callable[[Any], str | None]


@functools.lru_cache(4096)
def code_names(code: types.CodeType) -> frozenset[str]:
    """Return the names in code and nested code; with ANY if it may compute names."""
    inner = [code_names(const) for const in code.co_consts if isinstance(const, types.CodeType)]
    names = frozenset(code.co_names).union(*inner)
    return names | {ANY} if any(map(REFLECTION.fullmatch, names)) else names


def _code_text(code: types.CodeType) -> str:
    """Return a text of code without its docstring, file and lines; it depends on the version of Python."""
    consts = code.co_consts
    if code.co_flags & 0x2 and consts and isinstance(consts[0], str):  # of a function
        consts = (None, *consts[1:])
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & 0xFF)
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    return repr((code.co_name, counts, names, code.co_code, code.co_exceptiontable, _constant(consts)))


def _constant(value: Any) -> str:
    if isinstance(value, types.CodeType):
        return _code_text(value)
    if isinstance(value, frozenset):  # its order differs between processes
        return f"frozenset {sorted(map(_constant, value))}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_constant, value))})"
    return f"{type(value).__name__} {value!r}"


class StateHasher:
    """Computes hashes of values."""

    def __init__(self, known: Iterable[tuple[str, Any]] = (), *, homes: Sequence[str] = (), here: bool = False) -> None:
        self.names: set[str] = set()
        self.spaces: dict[int, dict[str, Any]] = {}
        self.identities = 0
        self.here = here
        self._homes = homes
        streams = [(f"sys.{name}", getattr(sys, name)) for name in ("stdout", "stderr", "stdin")]
        self._known = {id(value): (f"known {name}", value) for name, value in [*streams, *known] if value is not None}
        self._handlers: dict[type, Handler | None] = dict.fromkeys((int, float, bool, type(None)))
        self._handlers[str] = lambda text: f"'{text}"  # pickle records whether two strings are the same object
        self._handlers[bytes] = lambda value: f"bytes {hashlib.sha256(value).hexdigest()}"
        self._open: dict[int, int] = {}

    def digest(self, value: Any) -> str:
        """Return the hash (hex) of a value; raise any error of pickle for a value that cannot be pickled."""
        buffer = io.BytesIO()
        pickler = _Pickler(buffer, 4)
        pickler.to_text, pickler.reduced = self._to_text, self._reduced
        pickler.dump(value)
        return hashlib.sha256(buffer.getbuffer()).hexdigest()[:40]

    def _to_text(self, value: Any) -> str | None:
        """Return the text that replaces a value's pickle; None to use the pickle."""
        if (named := self._known.get(id(value))) is not None:
            return str(named[0])
        kind = type(value)
        if kind not in self._handlers:
            self._handlers[kind] = self._handler(kind)
        handler = self._handlers[kind]
        return None if handler is None else handler(value)

    def _handler(self, kind: type) -> Handler | None:
        """Return the function that makes texts of values of a type."""
        for types_, handler in (
            (type, self._class),
            (types.FunctionType, self._function),
            (types.ModuleType, self._module),
            (types.MethodType, self._method),
            (_WRAPPERS, self._wrapper),
            ((set, frozenset), self._set),
            (np.ndarray, self._array),
            (np.ufunc, self._ufunc),
            (types.MemberDescriptorType, lambda slot: f"slot {slot.__name__}"),
            (types.MappingProxyType, lambda proxy: self._parts("proxy", dict(proxy))),
            ((type(threading.Lock()), type(threading.RLock()), Executor), lambda lock: f"lock {kind.__qualname__}"),
            (logging.Logger, lambda logger: f"logger {logger.name}"),
        ):
            if issubclass(kind, types_):
                return handler
        if issubclass(kind, (re.Match, ctypes.CDLL, ctypes._CFuncPtr)):  # type: ignore[attr-defined]
            return self._identity if self.here else _refuse
        if kind.__name__ == "_memoryviewslice":  # of Cython, a separate class in each module
            return lambda view: self._parts("view", np.asarray(view))
        if kind.__name__ == "cKDTree" and kind.__module__.startswith("scipy."):  # its pickle contains pointers
            return lambda tree: self._parts("tree", tree.data, tree.indices, tree.leafsize, tree.boxsize)
        names = {cls.__name__ for cls in kind.__mro__ if cls.__module__.partition(".")[0] == "MDAnalysis"}
        if "UpdatingAtomGroup" in names:
            return self._updating
        if "SelectionParser" in names:  # one of all selections, whose state is that of the last one that it read
            return lambda parser: "parser"
        if names & _ATOMS:
            label = f"atoms {sorted(names & _ATOMS)}"
            return lambda group: self._parts(label, np.asarray(group.ix), group.universe, _notes(group))
        if "Universe" in names:
            return self._universe
        if self.here and "ProtoReader" in names:
            return self._identity
        if self._reads(_module_name(kind)) and _is_special(kind):
            return self._special
        return None

    def _special(self, value: Any) -> str:
        """Return the text of an object whose pickle may be incomplete."""
        if hasattr(value, "__qualname__") and (name := self._name(value)):  # a Cython function
            return name
        return self._once(value, lambda: self._parts("own", type(value), value.__reduce_ex__(4), own_attributes(value)))

    def _reduced(self, value: Any) -> Any:
        """Return the reduction of an object for pickle, without cached values."""
        kind = type(value)
        library = is_library(_module_name(kind))
        if self.here and library and not hasattr(kind, "__next__"):
            try:
                value.__reduce_ex__(4)
            except Exception:  # not picklable; any error may occur
                return str, (self._identity(value),)
        attributes = {} if _is_special(kind) else getattr(value, "__dict__", {})
        drop = HIMACHS | value.cache_names() if isinstance(value, Analysis) else frozenset()
        if attributes and (self.here or library):
            computed = (name for name in attributes if isinstance(getattr(kind, name, None), functools.cached_property))
            drop = drop.union(computed)
        if attributes and library:
            drop = drop.union(name for name, attribute in attributes.items() if _is_note(name, attribute, self.here))
        if drop.isdisjoint(attributes):
            return NotImplemented
        function, arguments, state, *more = value.__reduce_ex__(4)
        attributes, slots = state if isinstance(state, tuple) else (state, None)
        attributes = {name: attribute for name, attribute in attributes.items() if name not in drop} or None
        return function, arguments, attributes if slots is None else (attributes, slots), *more

    def _identity(self, value: Any) -> str:
        self.identities += 1
        return f"{type(value).__qualname__} at {id(value)}"

    def _parts(self, name: str, *parts: Any) -> str:
        return f"{name} {' '.join(map(self.digest, parts))}"

    def _once(self, value: Any, to_text: Callable[[], str]) -> str:
        """Return a text of a value that may contain itself; refer to it by the number of levels above."""
        if id(value) in self._open:
            return f"above {len(self._open) - self._open[id(value)]}"
        self._open[id(value)] = len(self._open)
        try:
            return to_text()
        finally:
            del self._open[id(value)]

    def _set(self, values: Any) -> str:
        return self._parts("set", type(values), sorted(map(self.digest, values)), getattr(values, "__dict__", None))

    def _array(self, array: npt.NDArray[Any]) -> str | None:
        kind = type(array)
        if "numpy.ma" in sys.modules and isinstance(array, np.ma.MaskedArray):  # importing numpy.ma is slow
            return self._parts("masked", kind, array.data, np.ma.getmaskarray(array), array.fill_value)
        if array.dtype.hasobject:
            return None
        if kind is not np.ndarray:
            return self._parts("array", kind, array.view(np.ndarray), own_attributes(array))
        content = hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        return (
            f"array {array.dtype.descr if array.dtype.names else array.dtype.str} {array.shape} {content.hexdigest()}"
        )

    def _ufunc(self, function: Any) -> str | None:
        name: str = function.__name__
        if any(getattr(sys.modules.get(home), name, None) is function for home in ("numpy", "scipy.special")):
            return f"ufunc {name}"
        return self._identity(function) if self.here else None  # pickle finds none of frompyfunc()

    # -- code ---------------------------------------------------------------------------------------------------------

    def _module(self, module: types.ModuleType) -> str:
        if self._reads(module.__name__):
            self.spaces[id(vars(module))] = vars(module)
        if sys.modules.get(module.__name__) is module:
            return f"module {module.__name__}"
        return self._parts("file", module.__name__, _file_text(module.__file__ or ""))  # not importable

    def _reads(self, module: str) -> bool:
        """Return whether functions and classes of a module also count by their contents, like the user's."""
        return is_own(module) or module in self._homes or not is_importable(module)

    def _name(self, obj: Any) -> str | None:
        """Return the name by which every process can import an object; None if there is none."""
        module = _module_name(obj)
        qualname = getattr(obj, "__qualname__", None) or getattr(obj, "__name__", None)
        if not is_importable(module):
            return None
        value: Any = sys.modules[module]
        with contextlib.suppress(AttributeError):
            for part in str(qualname).split("."):
                value = getattr(value, part)
            if value is obj:
                return f"named {'' if module in self._homes[:1] else module}.{qualname}"
        return None

    def _wrapper(self, wrapper: Any) -> str | None:
        parts = [getattr(wrapper, name, None) for name in _WRAPPED]
        return self._parts(f"wrapped {self._name(wrapper)}", type(wrapper), *parts)

    def _method(self, method: types.MethodType) -> str:
        if type(method.__self__).__module__ == "multiprocessing.context":  # its start method is set on first use
            return f"method {method.__func__.__qualname__}"
        return self._parts("method", method.__func__, method.__self__)

    def _function(self, function: types.FunctionType) -> str:
        name = self._name(function)
        if name and not self._reads(_module_name(function)):
            return name
        return self._once(function, lambda: self._function_text(name, function))

    def _function_text(self, name: str | None, function: types.FunctionType) -> str:
        code = function.__code__
        self.names |= code_names(code)
        space = function.__globals__
        if "__name__" not in space or self._reads(space["__name__"]):
            self.spaces[id(space)] = space
        cells = {}
        for free, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            if free != "dispatch_cache":  # cache of singledispatch
                with contextlib.suppress(ValueError):  # not assigned yet
                    cells[free] = cell.cell_contents
        own = {name: value for name, value in vars(function).items() if name != "_clear_cache"}  # of singledispatch
        parts = (function.__defaults__, function.__kwdefaults__, cells, own)
        return self._parts(f"function {name or _code_text(code)}", *parts)

    def _class(self, cls: type) -> str:
        name = self._name(cls) or f"class {cls.__qualname__}"
        if not self._reads(_module_name(cls)):
            return name
        return self._once(cls, lambda: self._class_text(name, cls))

    def _class_text(self, name: str, cls: type) -> str:
        skipped: frozenset[str] = MADE
        if issubclass(cls, Analysis):
            later = frozenset() if ANY in self.names else (LATER | BEFORE) - self.names
            skipped = MADE | HIMACHS | cls.cache_names() | later
        own = vars(cls)
        members = {
            name: own[name]
            for name in sorted(own.keys() - skipped)
            if not is_dunder(name) or hasattr(own[name], "__get__")
        }
        return self._parts(name, cls.__bases__, type(cls), members)

    # -- MDAnalysis ---------------------------------------------------------------------------------------------------

    def _updating(self, group: Any) -> str:
        selections = [vars(selection) for selection in group._selections]
        return self._parts("updating", group._base_group, group._selection_strings, selections, _notes(group))

    def _universe(self, universe: Any) -> str:
        trajectory = universe.trajectory
        ts = trajectory.ts
        if self.here:  # with several frames, positions are read again, and are those of any frame
            alone = len(trajectory) == 1 or type(trajectory).__module__.startswith("himach.")
            state = [np.array(ts.positions), ts.dimensions] if alone and ts.has_positions else []
            return self._parts(self._identity(universe), *state)
        state = [len(trajectory), ts.frame, np.array(ts.positions), ts.dimensions, [*trajectory.transformations]]
        names = getattr(trajectory, "filenames", None) or [trajectory.filename]
        files = [_file_text(os.fspath(file)) for file in names if file is not None]
        array = getattr(trajectory, "coordinate_array", None)
        return self._parts("universe", topology_digest(universe._topology), *state, files, array)


class _Pickler(pickle.Pickler):
    to_text: Handler
    reduced: Handler

    def persistent_id(self, value: Any) -> str | None:
        return self.to_text(value)

    def reducer_override(self, value: Any) -> Any:
        return self.reduced(value)


def own_attributes(value: Any) -> dict[str, Any]:
    """Return an object's own attributes, including slots."""
    slots = {
        name: getattr(value, name)
        for cls in type(value).__mro__
        if vars(cls).get("__slots__")
        for name, member in vars(cls).items()
        if isinstance(member, types.MemberDescriptorType) and hasattr(value, name)
    }
    return {**slots, **getattr(value, "__dict__", {})}


def _module_name(obj: Any) -> str:
    """Return the module name of an object; "builtins" if it is no str, as in classes of Cython functions."""
    module = getattr(obj, "__module__", None)
    return module if isinstance(module, str) else "builtins"


def _is_special(kind: type) -> bool:
    """Return whether a class customizes pickling."""
    return any(getattr(kind, name) is not usual for name, usual in _REDUCERS)


def is_importable(module: str) -> bool:
    """Return whether other processes find a module by its name: then it counts by its name and its file."""
    if module not in sys.modules or module == "__main__":
        return False
    top = module.partition(".")[0]
    everywhere = top in sys.stdlib_module_names or top.startswith(SCRIPT_MODULE) or is_installed(module_file(top))
    return everywhere or _is_found(module, module_file(module), tuple(sys.path))


@functools.lru_cache(4096)
def _is_found(module: str, file: str, path: tuple[str, ...]) -> bool:
    return is_found(module)


def _refuse(value: Any) -> str:
    raise TypeError(f"cannot pickle {type(value).__qualname__!r} object")


def is_dunder(name: str) -> bool:
    """Return whether a name has two underscores at both ends."""
    return name.startswith("__") and name.endswith("__")


def _notes(group: Any) -> dict[str, Any]:
    """Return attributes that were added to a group of atoms."""
    return {name: value for name, value in vars(group).items() if name not in _OF_GROUP}


def _is_note(name: str, value: Any, here: bool) -> bool:
    """Return whether an attribute of a library's object is a cache."""
    # Within a process, any private attribute may be one, except containers, which libraries change in place. Between
    # runs, setup() leaves the same ones, and they may hold data: SciPy splines keep theirs in tuples.
    containers = (list, dict, set, bytearray, np.ndarray)
    return name.startswith("_") and ("cache" in name or "memo" in name or (here and not isinstance(value, containers)))


def _file_text(file: str) -> str:
    """Return the digest of a file; for a large one, its size and modification time."""
    try:
        status = os.stat(file)
    except OSError as error:
        return type(error).__name__
    if status.st_size > LARGE:
        return f"{status.st_size} {status.st_mtime_ns}"
    return _content(file, status.st_size, status.st_mtime_ns)


@functools.lru_cache(64)
def _content(file: str, size: int, written: int) -> str:
    return content_digest(file)


def topology_digest(topology: Any) -> str:
    """Return a digest (hex) of all attributes of an MDAnalysis topology, guessed or not."""
    hasher, table = StateHasher(), topology.tt
    parts = [hasher.digest((table.n_atoms, table.n_residues, table.n_segments, table._AR, table._RS))]
    for attribute in sorted(topology.attrs, key=lambda attribute: type(attribute).__name__):
        fields = vars(attribute)
        derived = {"top", "_cache"} | ({"values"} if fields.keys() >= {"nmidx", "name_lookup"} else set())
        names = sorted(fields.keys() - derived)
        parts += [f"{type(attribute).__name__}.{name} {hasher.digest(_as_array(fields[name]))}" for name in names]
    return hasher.digest(parts)


def _as_array(value: Any) -> Any:
    """Return a long list of integers or of equal tuples of them as an array, which is hashed at once."""
    if not isinstance(value, list | tuple) or len(value) < 100:
        return value
    try:
        array = np.array(value)
    except ValueError:  # tuples of several lengths
        return value
    return array if array.dtype.kind in "iub" else value
