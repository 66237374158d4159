"""Digests of a map's code, `sources()` of user modules, `versions()` of packages, `OpenedFiles` by an audit hook."""

import ast
import functools
import hashlib
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import source_from_cache
from pathlib import Path
from types import FrameType
from typing import Any

from himach.analysis import MAPPING, Analysis
from himach.files import content_digest
from himach.state_hash import ANY, LATER, REFLECTION, is_importable
from himach.user_code import is_installed, is_user_code, module_file, own_modules

#: Version of the kernels' results and of the file format; a new one invalidates kept pairs.
FORMAT = "6"
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def sources(home: str) -> dict[str, tuple[str, str]]:
    """Return the digest and the file of each loaded user module, by name."""
    files = {name: file for name, file in own_modules().items() if is_importable(name)}
    digests = {name: (source_digest(file), file) for name, file in files.items() if name != home}
    if home in files:
        beside = (_mentions(file) for name, file in files.items() if name != home)
        later = LATER.difference(*beside)
        digests["the script"] = (source_digest(files[home], _analyses(home), later), files[home])
    return digests


def source_digest(file: str, analyses: frozenset[str] = frozenset(), later: frozenset[str] = LATER) -> str:
    """Return a digest of a file: of its syntax without docstrings and, unless mentioned, bodies of `later` methods."""
    try:
        if not file.endswith(".py"):
            raise ValueError
        with open(file, "rb") as text:
            return _text_digest(text.read(), analyses, later)
    except (SyntaxError, ValueError, OSError, RecursionError):
        return content_digest(file)


@functools.lru_cache(maxsize=1024)  # analyses of a run, and runs of a notebook, share modules
def _text_digest(text: bytes, analyses: frozenset[str], later: frozenset[str]) -> str:
    tree = ast.parse(text)
    _strip(tree, analyses, later)
    return hashlib.sha256(ast.dump(tree).encode("utf-8", "surrogatepass")).hexdigest()[:40]


def _mentions(file: str) -> frozenset[str]:
    """Return the methods that run after map() and that a Python file mentions."""
    try:
        text = Path(file).read_bytes()
        if not file.endswith(".py") or not any(name.encode() in text for name in LATER):
            return frozenset()
        nodes = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute))
        return LATER.intersection(node.attr for node in nodes if node.attr != "plot")
    except (SyntaxError, ValueError, OSError, RecursionError):
        return frozenset()


def _analyses(module: str) -> frozenset[str]:
    values = vars(sys.modules[module]).values()
    return frozenset(cls.__name__ for cls in values if isinstance(cls, type) and issubclass(cls, Analysis))


def _strip(tree: ast.Module, analyses: frozenset[str], later: frozenset[str]) -> None:
    bodies: dict[ast.FunctionDef, list[ast.stmt]] = {}
    documented = any(name in ("__doc__", "getdoc") for name in _names(tree))
    for node in ast.walk(tree):
        if documented or not isinstance(node, (*_DEFINITIONS, ast.Module)):
            pass
        elif ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        if isinstance(node, ast.ClassDef) and node.name in analyses:
            methods = [child for child in node.body if isinstance(child, ast.FunctionDef) and child.name in later]
            bodies.update({method: method.body for method in methods if not method.decorator_list})
    for method in bodies:
        method.body = [ast.Pass()]
    named = set(_names(tree))
    for method, body in bodies.items():
        if method.name in named or ANY in named:
            method.body = body


def _names(tree: ast.Module) -> Iterator[str]:
    """Yield the names that code mentions, also in strings; ANY if it computes names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(r"\w+", node.value)
        elif isinstance(node, ast.Attribute | ast.Name):
            name = node.attr if isinstance(node, ast.Attribute) else node.id
            reflects = name not in ("format", "__dict__") and REFLECTION.fullmatch(name)
            yield ANY if reflects else name


def versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages that are loaded."""
    tops = {name for name in sys.modules if "." not in name and not name.startswith("_")} - sys.stdlib_module_names
    packages = {name: _version(name) for name in sorted(tops) if is_installed(module_file(name))}
    python = ".".join(map(str, sys.version_info[:2]))
    return {"himach's format": FORMAT, "Python": python, "himach": _version("himach"), **packages}


@functools.cache
def _version(name: str) -> str:
    version = vars(sys.modules[name]).get("__version__")
    if isinstance(version, str):
        return version
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return content_digest(module_file(name))[:12]


#: Audit events whose first argument is a file.
_EVENTS = frozenset({"open", "sqlite3.connect", "ctypes.dlopen"})
#: Suffixes of files that MDAnalysis writes next to trajectories.
_ASIDE = ("_offsets.npz", ".lock")

_watching: "list[OpenedFiles]" = []


class OpenedFiles:
    """Records opened files."""

    def __init__(self, ignored: Iterable[str] = ()) -> None:
        self.digests: dict[str, str] = {}
        self.mapping: Sequence[Mapping[str, Any]] = ()  # attributes of each analysis; MAPPING tells whether map() runs
        self._ignored = frozenset(map(os.path.realpath, ignored))
        self._recording = False
        self._busy = False

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record what is opened inside."""
        self._recording = True
        with self.watching():
            try:
                yield
            finally:
                self._recording = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Record what map() opens inside."""
        if not _hooked:
            _hooked.append(True)
            sys.addaudithook(_hook)
        _watching.append(self)
        try:
            yield
        finally:
            _watching.remove(self)

    def note(self, file: Any, mode: Any = "r", flags: Any = 0, *_: Any) -> None:
        """Record a file if the analysis reads it."""
        if self._busy or not (self._recording or any(state.get(MAPPING) for state in self.mapping)):
            return
        if isinstance(file, int) or (isinstance(flags, int) and flags & os.O_ACCMODE == os.O_WRONLY):
            return
        self._busy = True  # ignores what this method opens
        try:
            path = os.path.realpath(os.fsdecode(file))
            opener = sys._getframe(2)
            importing = opener.f_code.co_filename.startswith("<frozen importlib")
            if importing and self._recording:  # modules loaded before map() are in the fingerprint
                return
            if importing and path.endswith(".pyc"):
                path = source_from_cache(path)
            aside = path in self.digests or path in self._ignored or path.endswith(_ASIDE) or is_installed(path)
            for_traceback = opener.f_globals.get("__name__") in ("linecache", "tokenize")  # the lines of a traceback
            aside |= for_traceback and path.endswith(".py")
            if not aside and stat.S_ISREG(os.stat(path).st_mode) and _is_analysis(opener):
                self.digests[path] = content_digest(path)
        except (OSError, TypeError, ValueError):
            return
        finally:
            self._busy = False


def _is_analysis(frame: FrameType | None) -> bool:
    """Return whether user code opens the file, directly or through libraries, rather than himach."""
    while frame is not None:
        module = frame.f_globals.get("__name__") or ""
        if f"{module}.".startswith("himach.") and not module.startswith("himach.examples"):
            return False
        if is_user_code(frame.f_code.co_filename):
            return True
        frame = frame.f_back
    return False


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _watching and event in _EVENTS:
        for files in _watching:
            files.note(*arguments)


_hooked: list[bool] = []
