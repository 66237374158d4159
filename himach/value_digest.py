"""Digests of Python values: `ValueDigests`, and `topology_digest()`; the same in every process for what is the same.

A value counts by the bytes that pickle makes of it. What these would tell otherwise in another process counts by a text
of its own: strings (pickle writes whether two are one object), sets (whose order differs), arrays (by what is in them,
wherever that lies), groups of atoms, and modules, classes and functions: by name, or by their code if no other process
can import them.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import hashlib
import io
import pickle
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.errors import HimachError

__all__ = ["MADE", "SCRIPT_MODULE", "UnstableError", "ValueDigests", "all_codes", "topology_digest"]

#: Beginning of the names of modules that scripts are, which every rank of a run loads.
SCRIPT_MODULE = "himach_script_"
#: Values whose repr() tells all of them.
_PLAIN = frozenset({int, float, complex, str, bytes, bool, type(None)})
#: What a class has beside what is written in it, and what looks like a method.
MADE = frozenset({"__dict__", "__weakref__", "__annotate__", "__annotate_func__", "_abc_impl"})
#: Attributes of a topology that come from the rest.
_DERIVED = frozenset({"top", "_cache"})
#: The attributes of those names of which `values` are made: each name once, and its place for each atom.
_INTERNED = frozenset({"nmidx", "name_lookup"})
#: The classes of MDAnalysis that are groups of atoms, or single ones.
_ATOMS = frozenset({"AtomGroup", "ResidueGroup", "SegmentGroup", "Atom", "Residue", "Segment"})

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
        Tells which attributes of a class do not count.
    home
        The module whose name does not count.

    Attributes
    ----------
    modules
        Names of modules whose things were met, or which code that was met imports.
    functions
        Those that were met and that no other process can import. The globals that they use do not count in their
        digests.
    """

    def __init__(
        self,
        known: Iterable[tuple[str, Any]] = (),
        skipped: Callable[[type], frozenset[str]] = lambda cls: frozenset(),
        home: str = "",
    ) -> None:
        self._home = home
        self.modules: set[str] = set()
        self.functions: dict[int, types.FunctionType] = {}
        self._known = {id(thing): (f"known {name}", thing) for name, thing in known}
        self._skipped = skipped
        self._handlers: dict[type, Handler | None] = dict.fromkeys((int, float, bool, type(None)))
        self._handlers[str] = lambda text: f"'{text}"  # a new object, so that pickle does not know it again
        self._handlers[bytes] = _bytes  # of which pickle writes whether two are one object, too
        self._tops: dict[str, bool] = {}
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
        pickler.text_of = self._text_of
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
        for types_, handler in (
            (type, self._class),
            (types.FunctionType, self._function),
            (types.ModuleType, self._module),
            (types.MethodType, lambda method: None),
            ((set, frozenset), self._set),
            (np.dtype, lambda dtype: f"dtype {_dtype_text(dtype)}"),
            (property, lambda made: self._parts("property", made.fget, made.fset, made.fdel)),
            ((staticmethod, classmethod), lambda made: self._parts(kind.__name__, made.__func__)),
            (functools.cached_property, lambda made: self._parts("cached", made.func)),
            ((types.MemberDescriptorType, types.GetSetDescriptorType), lambda slot: f"slot {slot.__name__}"),
        ):
            if issubclass(kind, types_):
                return handler
        if kind in (list, tuple):
            return self._listed
        if kind is np.ndarray:
            return _array
        if "numpy.ma" in sys.modules and issubclass(kind, np.ma.MaskedArray):  # numpy.ma takes a while to import
            return lambda masked: self._parts(
                "masked", kind, masked.data, np.ma.getmaskarray(masked), masked.fill_value
            )
        if kind.__module__.partition(".")[0] == "MDAnalysis" or _is_universe(kind):
            return self._atoms_handler(kind)
        if hasattr(kind, "__call__"):  # noqa: B004
            return self._callable
        return None

    # -- containers ---------------------------------------------------------------------------------------------------

    def _parts(self, name: str, *parts: Any) -> str:
        return f"{name} {' '.join(hashlib.sha256(self._pickled(part)).hexdigest()[:40] for part in parts)}"

    def _listed(self, values: Any) -> str | None:
        """Return the text of a long list of plain values, which is a matter of repr() alone."""
        if len(values) < 100 or not _PLAIN.issuperset(map(type, values)):
            return None
        return f"{type(values).__name__} {hashlib.sha256(repr(values).encode('utf-8', 'surrogatepass')).hexdigest()}"

    def _set(self, values: Any) -> str:
        if _PLAIN.issuperset(map(type, values)):
            members = [f"{type(value).__name__} {value!r}" for value in values]
        else:
            members = [self.digest(value) for value in values]
        more = getattr(values, "__dict__", None)
        return self._parts("set", type(values), sorted(members), more)

    # -- code ---------------------------------------------------------------------------------------------------------

    def _module(self, module: types.ModuleType) -> str:
        self.modules.add(module.__name__)
        return f"module {module.__name__}"

    def imported(self, thing: Any) -> str | None:
        """Return the text of what every process imports by its name."""
        name, qualname = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
        name, qualname = name or "builtins", qualname or getattr(thing, "__name__", None)
        if not isinstance(name, str) or not isinstance(qualname, str) or not self._importable(name):
            return None
        found: Any = sys.modules[name]
        with contextlib.suppress(AttributeError):
            for part in qualname.split("."):
                found = getattr(found, part)
            if found is thing:
                self.modules.add(name)
                return f"named {'' if name == self._home else name}.{qualname}"
        return None

    def _importable(self, name: str) -> bool:
        """Tell whether every process finds a module by its name: then what is in it does."""
        if name not in sys.modules or name == "__main__":
            return False
        top = name.partition(".")[0]
        if top not in self._tops:
            known = top in sys.stdlib_module_names or top.startswith(SCRIPT_MODULE)
            self._tops[top] = known or any(finder.find_spec(top, None) for finder in sys.meta_path)
        return self._tops[top]

    def _function(self, function: types.FunctionType) -> str:
        return self.imported(function) or self._once(function, self._function_text)

    def _class(self, cls: type) -> str:
        return self.imported(cls) or self._once(cls, self._class_text)

    def _callable(self, thing: Any) -> str | None:
        """Return the text of a function that was wrapped, as by functools.lru_cache or numba."""
        if not hasattr(thing, "__qualname__"):
            return None
        wrapped = getattr(thing, "__wrapped__", getattr(thing, "py_func", None))
        text = self.imported(thing)
        if text is None and wrapped is not None:
            return self._parts("wrapped", type(thing), wrapped, getattr(thing, "targetoptions", None))
        return text

    def _once(self, thing: Any, text_of: Callable[[Any], str]) -> str:
        """Return a text of what may lie in itself: so many levels up, then."""
        if id(thing) in self._open:
            return f"above {len(self._open) - self._open[id(thing)]}"
        self._open[id(thing)] = len(self._open)
        try:
            return text_of(thing)
        finally:
            del self._open[id(thing)]

    def _function_text(self, function: types.FunctionType) -> str:
        code, home = function.__code__, function.__module__ or ""
        cells = {}
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # not assigned yet
                cells[name] = cell.cell_contents
        if self._importable(home) and vars(sys.modules[home]) is function.__globals__:
            self.modules.add(home)
        else:
            self.functions[id(function)] = function
            self.modules |= _imports(code)
        given = (function.__defaults__, function.__kwdefaults__, cells, vars(function))
        return self._parts("function", _code_text(code), *given)

    def _class_text(self, cls: type) -> str:
        if self._importable(cls.__module__):
            self.modules.add(cls.__module__)
        names = sorted(vars(cls).keys() - MADE - self._skipped(cls))
        members = {name: vars(cls)[name] for name in names if not _dunder(name) or hasattr(vars(cls)[name], "__get__")}
        return self._parts(f"class {cls.__qualname__}", cls.__bases__, type(cls), members)

    # -- MDAnalysis ---------------------------------------------------------------------------------------------------

    def _atoms_handler(self, kind: type) -> Handler | None:
        names = {cls.__name__ for cls in kind.__mro__}
        if "UpdatingAtomGroup" in names:
            return lambda group: self._parts("updating", group._base_group, group._selection_strings)
        if names & _ATOMS:
            of_class = sorted(names & _ATOMS)
            return lambda group: self._parts("atoms", of_class, np.asarray(group.ix), group.universe)
        return self._universe if _is_universe(kind) else None

    def _universe(self, universe: Any) -> str:
        ts = universe.trajectory.ts
        seen = (len(universe.trajectory), ts.frame, np.array(ts.positions), ts.dimensions)
        return self._parts("universe", topology_digest(universe._topology), *seen)


class _Pickler(pickle.Pickler):
    text_of: Handler

    def persistent_id(self, value: Any) -> str | None:
        return self.text_of(value)


class _Unpickler(pickle.Unpickler):
    things: dict[str, Any]

    def persistent_load(self, text: str) -> Any:
        return text[1:] if text not in self.things else self.things[text]


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


def all_codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Give a code object and those within it."""
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from all_codes(const)


def _imports(code: types.CodeType) -> set[str]:
    """Return the names of modules that code imports when it runs."""
    parts = all_codes(code)
    return {str(each.argval) for part in parts for each in dis.get_instructions(part) if each.opname == "IMPORT_NAME"}


def _code_text(code: types.CodeType) -> str:
    """Return what code does, without its docstring, file and lines; it holds for one version of Python."""
    consts = list(code.co_consts)
    if code.co_flags & 0x2 and consts and isinstance(consts[0], str):  # of a function
        consts[0] = None
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & 0xFF)
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    return repr((code.co_name, counts, names, code.co_code, code.co_exceptiontable, list(map(_constant, consts))))


def _constant(value: Any) -> str:
    if isinstance(value, types.CodeType):
        return _code_text(value)
    if isinstance(value, frozenset):  # whose order is another in every process
        return f"frozenset {sorted(map(_constant, value))}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_constant, value))})"
    return f"{type(value).__name__} {value!r}"


def _dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _dtype_text(dtype: np.dtype[Any]) -> str:
    return str(dtype.descr if dtype.names else dtype.str)


def _bytes(value: bytes) -> str:
    return f"bytes {value.hex() if len(value) < 32 else hashlib.sha256(value).hexdigest()}"


def _array(array: npt.NDArray[Any]) -> str | None:
    if array.dtype.hasobject:
        return None
    content = hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return f"array {_dtype_text(array.dtype)} {array.shape} {content.hexdigest()}"


def _is_universe(kind: type) -> bool:
    return any(cls.__module__ == "MDAnalysis.core.universe" and cls.__name__ == "Universe" for cls in kind.__mro__)
