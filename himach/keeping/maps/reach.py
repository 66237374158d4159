"""What an analysis's pairs depend on: `Reach` goes from its methods to all code and constants that these use.

From setup(), map(), atoms() and combine() it follows names: of globals, attributes, modules; to functions and classes,
as long as they are the user's: of the analysis's own package or folder, or of no installed library.
"""

from __future__ import annotations

import builtins
import functools
import hashlib
import importlib
import importlib.util
import os
import sys
import sysconfig
import types
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import himach
from himach.analysis import MAPPING, Analysis
from himach.keeping.maps.code import Codes, CodeUse
from himach.keeping.maps.state import Values

if TYPE_CHECKING:
    from MDAnalysis import Universe

__all__ = ["Found", "Reach", "content_digest"]

#: What runs after map() and combine(), and is followed only where these name it.
LATER = frozenset({"reduce", "reduce_many", "finish", "plot"})
#: Attributes of an analysis that himach looks after.
OWN = frozenset({MAPPING, "frames", "dt", "caches", "then"})
#: Attributes that every Universe has; a topology has a digest of its own.
_OF_UNIVERSE = frozenset({"atoms", "residues", "segments", "filename", "name", "trajectory"})
#: Longest text by which a constant is shown.
LONGEST = 60
#: What a class has beside what is written in it.
_MADE = frozenset(
    {
        *("__doc__", "__module__", "__dict__", "__weakref__", "__qualname__", "__firstlineno__", "__slotnames__"),
        *("__static_attributes__", "__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__"),
        *("__abstractmethods__", "_abc_impl", "__dataclass_fields__", "__dataclass_params__", "__orig_bases__"),
        *("__parameters__", "__classdictcell__", "__classcell__"),
    }
)

#: What a module is called, and where it lies.
_MODULES_OWN = frozenset({"__name__", "__file__", "__path__", "__package__", "__spec__", "__loader__", "__doc__"})

#: Digest, and the text by which a difference is shown; "" for none.
Found = dict[str, tuple[str, str]]


class Reach:
    """What the pairs of an analysis depend on, beside its parameters and its data.

    Parameters
    ----------
    analysis
        After setup().
    universe
        Its own.

    Attributes
    ----------
    code
        Functions (``helper()``), classes and compiled modules.
    constants
        Globals and attributes of classes.
    state
        Attributes of the analysis that map() or combine() name.
    opaque
        Those of the latter two that nobody can look into, with their types.
    attributes
        Names of attributes that map() and combine() use, and what they call; those of setup() and atoms() too where
        something is opaque.
    """

    def __init__(self, analysis: Analysis, universe: Universe) -> None:
        self._analysis = analysis
        self._universe = universe
        self._owned = Owned(type(analysis))
        self._parameters = {parameter.attribute for parameter in analysis.parameters().values()}
        self._codes = Codes()
        self._values = Values(self._reached, universe, [(analysis, "self")])
        self._found: dict[str, dict[str, set[tuple[bytes, str]]]] = {
            kind: defaultdict(set) for kind in ("code", "constants", "state")
        }
        self.opaque: dict[str, str] = {}
        self.attributes: set[str] = set()
        self._words: set[str] = set()
        self._all = False
        self._todo: list[tuple[Any, str]] = []
        self._seen: dict[Any, Any] = {}
        self._own: list[type] = [
            cls
            for cls in type(analysis).__mro__
            if cls is not Analysis and (issubclass(cls, Analysis) or self._is_ours(cls))
        ]
        self._follow(["map", "combine"], keep_state=True)
        later = set(self.attributes)
        self._follow(["setup", "atoms", "__init__"], keep_state=False)
        if not self.opaque:
            self.attributes = later
        self.code, self.constants, self.state = (_settled(found) for found in self._found.values())

    # -- where it goes ------------------------------------------------------------------------------------------------

    def _follow(self, roots: Iterable[str], *, keep_state: bool) -> None:
        """Go from methods of the analysis to all that they use, until nothing new is found."""
        for name in roots:
            self._go_to_members(name, first=True)
        for cls in self._own:
            for name, member in vars(cls).items():
                if _dunder(name) and name not in _MADE and name != "__init__" and _is_code(member):
                    self._go_to_members(name)
        before = -1
        while before != (before := self._go_on(keep_state)):
            pass

    def _go_on(self, keep_state: bool) -> int:
        while self._todo:
            thing, label = self._todo.pop()
            if isinstance(thing, types.FunctionType):
                self._go_into_function(thing, label)
            elif isinstance(thing, type):
                self._go_into_class(thing)
            else:
                self._go_into_module(thing)
        named = {name for cls in self._own for name in vars(cls) if not _dunder(name)}
        for name in sorted(named & self.attributes if not self._all else named - (LATER - self.attributes)):
            self._go_to_members(name)
        if keep_state:
            self._keep_state()
        return len(self._seen) + len(self._todo)

    def _keep_state(self) -> None:
        ignored = OWN | self._analysis.cache_names() | self._parameters
        used = self.attributes | self._words | {"map", "combine"}
        for name, value in vars(self._analysis).items():
            if name not in ignored and (self._all or name in used) and ("state", name) not in self._seen:
                self._seen["state", name] = value
                self._add("state", f"self.{name}", value)
        for name, value in vars(self._universe).items():
            if name in used and name not in _OF_UNIVERSE and ("universe", name) not in self._seen:
                self._seen["universe", name] = value
                self._add("state", f"universe.{name}", value)
        if not {"__name__", "__qualname__"}.isdisjoint(self.attributes):
            self._add_digest("constants", "the class's name", type(self._analysis).__qualname__.encode())

    def _go_to_members(self, name: str, first: bool = False) -> None:
        """Go to what the classes of the analysis have under a name: the first of them, or all, for super()."""
        if name in OWN or name in self._parameters:
            return
        defined = [cls for cls in self._own if name in vars(cls)]
        for place, cls in enumerate(defined[:1] if first else defined):
            member = vars(cls)[name]
            label = name if place == 0 else f"{cls.__name__}.{name}"
            self._go_to_member(cls, name, label, member)

    def _go_to_member(self, cls: type, name: str, label: str, member: Any) -> None:
        if (cls, name) in self._seen or isinstance(member, types.MemberDescriptorType | types.GetSetDescriptorType):
            return
        self._seen[cls, name] = member
        functions = list(_functions_of(member))
        for function in functions:
            self._go_to(function, f"{label}()")
        if not functions:
            self._add("constants", label, member)

    def _go_to(self, thing: Any, label: str) -> None:
        if id(thing) not in self._seen:
            self._seen[id(thing)] = thing
            self._todo.append((thing, label))

    def _go_into_function(self, function: types.FunctionType, label: str) -> None:
        use = self._codes.read(function.__code__)
        self._add_digest("code", label, use.digest)
        self._add("code", label, function)
        self._note(use)
        file = function.__code__.co_filename
        for chain in sorted(use.chains):
            self._go_along(function.__globals__, chain, file)
        for name, level, taken in sorted(use.imports):
            self._go_to_import(function, name, level, taken)
        if use.imports_by_name:
            for text in sorted(use.literals):
                if all(part.isidentifier() for part in text.split(".")):
                    self._go_to_import(function, text, 0, (), asked=False)
        if use.reflects_module:
            for name in sorted(function.__globals__):
                if not _dunder(name):
                    self._go_along(function.__globals__, (name,), file)

    def _note(self, use: CodeUse) -> None:
        self.attributes |= use.attributes
        self._words |= use.words
        if use.reflects:
            self._all = True
            self.attributes |= {text for text in use.literals if text.isidentifier()}

    def _go_along(self, names: dict[str, Any], chain: tuple[str, ...], file: str) -> None:
        """Go to what a global name, with attributes taken of it, stands for."""
        first, *rest = chain
        if first in _MODULES_OWN:
            return
        if first not in names:
            if first not in vars(builtins):
                self._add_digest("constants", f"{first}{self._owned.told(file)}", b"missing")
            self.attributes |= {*rest, *({"len"} & {first})}
            return
        value, name = names[first], first
        while isinstance(value, types.ModuleType) and rest:
            if not self._is_ours(value) and name == first:
                self._add_digest("constants", first, value.__name__.encode())
            module, name = value, rest.pop(0)
            file = getattr(module, "__file__", None) or ""
            if self._is_ours(module) and not file.endswith(".py") and file:
                self._reached(module)  # compiled
            if name not in vars(module) and self._is_ours(module) and "__getattr__" in vars(module):
                self._go_along(vars(module), ("__getattr__",), file)
            try:
                value = getattr(module, name)
            except Exception:
                return
            if not self._is_ours(module) and not self._is_ours(value):
                return  # an installed library's; what is taken of it is in the code
        self.attributes |= set(rest)
        self._go_to_global(name, value, file)

    def _go_to_global(self, name: str, value: Any, file: str) -> None:
        where = self._owned.told(file)
        if isinstance(value, type | types.ModuleType) or (
            isinstance(value, types.FunctionType) and "<" not in value.__qualname__ and not value.__closure__
        ):
            self._add_digest("constants", f"{name}{where}", self._reached(value).encode())
        else:
            kind, brackets = ("code", "()") if callable(value) else ("constants", "")
            self._add(kind, f"{name}{brackets}{where}", value)

    def _go_to_import(
        self, function: types.FunctionType, name: str, level: int, taken: tuple[str, ...], asked: bool = True
    ) -> None:
        """Go to what a function imports when it runs; or may, by this string (not `asked` for)."""
        package = function.__globals__.get("__package__") or ""
        try:
            full = importlib.util.resolve_name("." * level + name, package) if level else name
            top = full.partition(".")[0]
            if top in sys.stdlib_module_names or (top == "himach" and not self._owned.in_himach):
                return
            spec = importlib.util.find_spec(top)
            if spec is None or not self._owned.has(spec.origin or "<folder>", top):
                return
            module = importlib.import_module(full)
        except Exception:  # map() will say so, or live without it
            if asked:
                self._add_digest("constants", name, b"missing")
            return
        for each in taken:
            if each != "*" and not hasattr(module, each):
                self._go_to_import(function, f"{full}.{each}", 0, ())
            elif each != "*":
                self._go_along(vars(module), (each,), getattr(module, "__file__", None) or "")
        if not taken or "*" in taken:
            self._reached(module)
            if top != full and not taken:  # `import a.b` gives a
                self._reached(importlib.import_module(top))

    def _go_into_class(self, cls: type) -> None:
        label = f"{cls.__qualname__}{self._owned.told(self._owned.file_of(cls))}"
        bases = [self._reached(base) for base in (*cls.__bases__, type(cls))]
        self._add_digest("code", label, repr(bases).encode())
        for name, member in list(vars(cls).items()):
            if name not in _MADE:
                self._go_to_member(cls, name, f"{cls.__qualname__}.{name}", member)

    def _go_into_module(self, module: types.ModuleType) -> None:
        """Go to all that a module defines, as it is handed on as a whole."""
        file = getattr(module, "__file__", None) or ""
        if not file.endswith(".py"):
            self._add_digest("code", os.path.basename(file).partition(".")[0], content_digest(file).encode())
            self._all = True  # whatever attributes it reads
            return
        for name in sorted(vars(module)):
            if not _dunder(name):
                self._go_along(vars(module), (name,), file)

    def _reached(self, thing: Any) -> str:
        """Go to a function, class or module if it is the user's; return what it is called, wherever it lies."""
        if not self._is_ours(thing):
            return (
                f"{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', getattr(thing, '__name__', ''))}"
            )
        if isinstance(thing, types.ModuleType):
            self._go_to(thing, "")
            return thing.__name__.rpartition(".")[2]
        file = self._owned.file_of(thing)
        name = getattr(thing, "__qualname__", type(thing).__qualname__)
        label = f"{name}{self._owned.told(file)}"
        if isinstance(thing, types.FunctionType):
            self._go_to(thing, f"{name}(){self._owned.told(file)}")
            return f"{label} {self._codes.read(thing.__code__).digest.hex()}" if "<" in name else label
        module = sys.modules.get(_module(thing))
        if module is not None and not (getattr(module, "__file__", None) or ".py").endswith(".py"):
            self._go_to(module, "")  # compiled
        elif isinstance(thing, type) and thing not in self._own:
            self._go_to(thing, "")
        return label

    def _is_ours(self, thing: Any) -> bool:
        if isinstance(thing, types.ModuleType):
            return self._owned.has(getattr(thing, "__file__", None) or "", thing.__name__)
        if not isinstance(thing, type | types.FunctionType | types.BuiltinFunctionType) and not callable(thing):
            return False
        return self._owned.has(self._owned.file_of(thing), _module(thing) or "builtins")

    # -- what it finds ------------------------------------------------------------------------------------------------

    def _add(self, kind: str, label: str, value: Any) -> None:
        digest = self._values.digest(value)
        if self._values.opaque:
            self.opaque[label] = self._values.opaque[-1]
            self._values.opaque.clear()
        text = repr(value) if _shows(value) else ""
        self._found[kind][label].add((digest, text if len(text) <= LONGEST else ""))

    def _add_digest(self, kind: str, label: str, digest: bytes) -> None:
        self._found[kind][label].add((digest, ""))


class Owned:
    """Tells what is the user's from what is installed."""

    def __init__(self, cls: type[Analysis]) -> None:
        own = [each for each in cls.__mro__ if issubclass(each, Analysis) and each is not Analysis]
        self.in_himach = any(each.__module__.startswith("himach.") for each in own)
        self._own_file = self.file_of(cls)
        self._homes = [home for home in map(_home, own) if home]
        paths = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
        self._installed = [_folder(path) for path in (*paths, os.path.dirname(himach.__file__))]

    def has(self, file: str, module: str) -> bool:
        """Tell whether what is defined in this file, or in a module of this name, is the user's."""
        if not os.path.isabs(file) or not _real(file):
            known = sys.modules.get(module)
            file = getattr(known, "__file__", None) or ""
            top = module.partition(".")[0]
            if top in sys.stdlib_module_names and top != "__main__":
                return False
            if not file or not _real(file):
                return top not in ("himach", "")
        path = os.path.realpath(file)
        installed = max(
            (len(root) for root in [*self._installed, *_packages(path)] if path.startswith(root)), default=0
        )
        return not installed or any(len(home) >= installed and path.startswith(home) for home in self._homes)

    def told(self, file: str) -> str:
        """Return `` in tools.py`` for a file other than the analysis's own; nothing for a notebook's cell."""
        if not _real(file) or _real(file) == _real(self._own_file):
            return ""
        return f" in {os.path.basename(file)}"

    @staticmethod
    def file_of(thing: Any) -> str:
        """Return the file that a function or class was written in, in whichever process; "" if none is known."""
        if isinstance(thing, types.FunctionType):
            return thing.__code__.co_filename
        if isinstance(thing, type):
            functions = [function for member in vars(thing).values() for function in _functions_of(member)]
            for function in functions:
                if function.__module__ == thing.__module__ and function.__qualname__.startswith(thing.__qualname__):
                    return function.__code__.co_filename
        return getattr(sys.modules.get(_module(thing)), "__file__", None) or ""


def _module(thing: Any) -> str:
    """Return the name of the module of a function or class; "" where what it tells is none, as of extension types."""
    name = getattr(thing, "__module__", None)
    return name if isinstance(name, str) else ""


@functools.lru_cache(1024)
def _real(file: str) -> str:
    """Return where a file lies; "" if there is none."""
    return os.path.realpath(file) if os.path.isfile(file) else ""


def _home(cls: type) -> str:
    """Return the folder whose code is an analysis's own: its script's, or all of its package."""
    top = cls.__module__.partition(".")[0]
    file = getattr(sys.modules.get(cls.__module__ if top == "himach" else top), "__file__", None)
    file = file or Owned.file_of(cls)
    return _folder(os.path.dirname(file)) if os.path.isfile(file) else ""


def _folder(path: str) -> str:
    return os.path.join(os.path.realpath(path), "")


def _packages(path: str) -> Iterator[str]:
    """Give the folders of installed packages that a path lies in."""
    for name in ("site-packages", "dist-packages"):
        head, found, _ = path.rpartition(f"/{name}/")
        if found:
            yield f"{head}{found}"


def _functions_of(member: Any) -> Iterator[types.FunctionType]:
    """Give the functions that an attribute of a class is, or is made of."""
    if isinstance(member, types.FunctionType):
        yield member
    elif isinstance(member, staticmethod | classmethod):
        yield from _functions_of(member.__func__)
    elif isinstance(member, property):
        for function in (member.fget, member.fset, member.fdel):
            yield from _functions_of(function)
    elif isinstance(member, functools.cached_property | functools.partialmethod):
        yield from _functions_of(member.func)
    elif callable(member) and not isinstance(member, type):
        yield from _functions_of(getattr(member, "__wrapped__", getattr(member, "py_func", None)))


def _is_code(member: Any) -> bool:
    return next(_functions_of(member), None) is not None


def _dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def content_digest(file: str) -> str:
    """Return the SHA-256 (hex) of a file, or why it cannot be read."""
    try:
        with open(file, "rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except OSError as error:
        return type(error).__name__


def _shows(value: Any) -> bool:
    """Tell whether a value has a text that is short and the same in every process."""
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if type(value) in (list, tuple):
        return len(value) <= LONGEST and all(map(_shows, value))
    return type(value) in (int, float, complex, bool, str, bytes, type(None), range)


def _settled(found: dict[str, set[tuple[bytes, str]]]) -> Found:
    """Return one digest a label: several things may have one, such as functions that one function made."""
    return {
        label: (
            hashlib.sha256(b"".join(sorted(hashlib.sha256(digest).digest() for digest, _ in things))).hexdigest()[:40],
            "".join(sorted({text for _, text in things})) if len({text for _, text in things}) == 1 else "",
        )
        for label, things in sorted(found.items())
    }
