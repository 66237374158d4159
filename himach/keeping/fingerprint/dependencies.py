"""What the code of an analysis consists of: `DependencyTracer`, own modules as a whole; and versions of installed ones.

A module is one's own if it is neither installed nor himach's. From the modules of the analysis the tracer goes to all
that they import, anywhere in their text: so it does not depend on what else a process has loaded. What modules that are
loaded without being named so do to an analysis is seen by nobody, unless code imports by names that it makes up.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import CodeType, ModuleType

from himach.analysis import Analysis
from himach.value_digest import all_codes

__all__ = [
    "GLOBAL_REFLECTION",
    "LATER",
    "REFLECTION",
    "DependencyTracer",
    "Source",
    "code_names",
    "content_digest",
    "is_installed",
    "is_own",
    "versions",
]

#: Of what kernels compute, and of what is kept: another one means another map.
FORMAT = "2"
#: What runs after map() and combine(): what is written in it does not count.
LATER = frozenset({"reduce", "reduce_many", "finish", "plot"})
#: Names by which code imports modules whose names it makes up.
_IMPORTING = frozenset({"__import__", "import_module", "spec_from_file_location", "run_path"})
#: Names by which code gets at globals whose names it makes up; at attributes, too.
GLOBAL_REFLECTION = frozenset({"globals", "locals", "eval", "exec", "vars", "__dict__"})
REFLECTION = GLOBAL_REFLECTION | {"getattr", "attrgetter", "methodcaller", "__getattribute__", "getmembers"}
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True)
class Source:
    """A module of one's own.

    Attributes
    ----------
    file
        Where it lies.
    digest
        Of its syntax tree, or of the content of what is no Python text.
    imports
        Names of what it imports; of what may be an attribute of a module, too.
    codes
        Its code, also within functions and classes.
    """

    file: str
    digest: str
    imports: frozenset[str] = frozenset()
    codes: list[CodeType] = field(default_factory=list)


class DependencyTracer:
    """Goes from modules to all those of one's own that they import.

    Attributes
    ----------
    sources
        What was found, by the modules' names.
    unnamed
        What else is loaded, where code imports modules whose names it makes up.
    """

    def __init__(self) -> None:
        self.sources: dict[str, Source] = {}
        self.unnamed: dict[str, Source] = {}
        self._seen: set[str] = set()

    def follow(self, names: Iterable[str]) -> None:
        """Go to these modules and on from them, as far as they are one's own."""
        todo = sorted(names)
        while todo:
            name = todo.pop()
            if name in self._seen or name == "__main__":
                continue
            self._seen.add(name)
            file = _file_of(name)
            if not is_own(name, file):
                continue
            source = self.sources[name] = read_source(name, file)
            todo += sorted(source.imports)
            importing = [code for code in source.codes if not _IMPORTING.isdisjoint(code.co_names)]
            todo += [const for code in importing for const in code.co_consts if isinstance(const, str)]
            if importing:
                self._add_loaded()

    def _add_loaded(self) -> None:
        """Take in all modules of one's own that are loaded: any may be meant."""
        for name in sorted(sys.modules.keys() - self._seen):
            if is_own(name, file := _loaded_file(name)):
                self.unnamed.setdefault(name, Source(file, content_digest(file)))


def read_source(name: str, file: str) -> Source:
    """Return what a module is, by its file; one that is no Python text counts by its bytes."""
    try:
        if not file.endswith(".py"):
            raise ValueError
        with open(file, "rb") as text:
            tree = ast.parse(text.read())
        imports = frozenset(_imports(tree, name, file))
        _strip(tree, _later_classes(name))
        digest = hashlib.sha256(ast.dump(tree).encode("utf-8", "surrogatepass")).hexdigest()[:40]
        code = compile(ast.fix_missing_locations(tree), file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, OSError, RecursionError):
        return Source(file, content_digest(file))
    return Source(file, digest, imports, list(all_codes(code)))


def _strip(tree: ast.Module, analyses: frozenset[str]) -> None:
    """Take docstrings out of a syntax tree, and of analyses what methods do that run after map()."""
    later: dict[ast.FunctionDef, list[ast.stmt]] = {}
    for node in ast.walk(tree):
        if isinstance(node, _DEFINITIONS) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        if isinstance(node, ast.ClassDef) and node.name in analyses:
            methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
            later.update({method: method.body for method in methods if method.name in LATER})
    if ast.get_docstring(tree, clean=False) is not None:
        del tree.body[0]
    for method in later:
        method.body = [ast.Pass()]
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and _may_be_analysis(node.value)}
    for method, body in later.items():
        if method.name in used:
            method.body = body


def _may_be_analysis(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "super"
    return isinstance(node, ast.Name) and node.id not in ("functools", "np", "numpy", "plt")


def _later_classes(module: str) -> frozenset[str]:
    """Return the names of a loaded module's analyses."""
    found = vars(sys.modules[module]).values() if module in sys.modules else ()
    return frozenset(cls.__name__ for cls in found if isinstance(cls, type) and issubclass(cls, Analysis))


def _imports(tree: ast.AST, module: str, file: str) -> Iterator[str]:
    """Give the names of all that a module imports, wherever in its text."""
    package = module if os.path.basename(file) == "__init__.py" else module.rpartition(".")[0]
    yield from _parents(module)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from (alias.name, *_parents(alias.name))
        elif isinstance(node, ast.ImportFrom):
            try:
                base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            except ImportError:
                continue
            yield from (base, *_parents(base), *(f"{base}.{alias.name}" for alias in node.names))


def _parents(module: str) -> Iterator[str]:
    while module := module.rpartition(".")[0]:
        yield module


def _loaded_file(name: str) -> str:
    file = getattr(sys.modules.get(name), "__file__", None)
    return file if isinstance(file, str) else ""


def _file_of(name: str) -> str:
    """Return a module's file; "" if there is none, as of what is no module."""
    if name in sys.modules:
        return _loaded_file(name)
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names or (
        top in sys.modules and top != name and not hasattr(sys.modules[top], "__path__")
    ):
        return ""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):  # of an attribute of a module
        return ""
    return (spec.origin if spec is not None and spec.has_location else None) or ""


@functools.lru_cache(4096)
def is_own(name: str, file: str) -> bool:
    """Tell whether a module is neither installed nor of himach or Python."""
    return name.partition(".")[0] != "himach" and bool(file) and os.path.isfile(file) and not is_installed(file)


@functools.lru_cache(4096)
def is_installed(file: str) -> bool:
    """Tell whether a file belongs to an installed package or to Python."""
    path = os.path.realpath(file)
    return bool(re.search(r"/(site|dist)-packages/", path)) or path.startswith(_python())


@functools.cache
def _python() -> tuple[str, ...]:
    """Return the folders of installed packages and of Python's own."""
    paths = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return tuple(os.path.join(os.path.realpath(path), "") for path in paths)


def code_names(code: CodeType) -> set[str]:
    """Return the names in a function's code; where it makes names up, those in its strings, too."""
    names: set[str] = set()
    for part in all_codes(code):
        names.update(part.co_names)
    if not REFLECTION.isdisjoint(names):
        for part in all_codes(code):
            names.update(re.findall(r"\w+", " ".join(const for const in part.co_consts if isinstance(const, str))))
    return names


def versions() -> dict[str, str]:
    """Return the versions of Python, and of the installed packages that this process has loaded."""
    tops = {name for name in sys.modules if "." not in name and not name.startswith("_")} - sys.stdlib_module_names
    found = {name: _version(name) for name in sorted(tops) if _has_version(sys.modules[name])}
    python = ".".join(map(str, sys.version_info[:2]))
    return {"himach's format": FORMAT, "Python": python, "himach": _version("himach"), **found}


def _has_version(module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and is_installed(file)


@functools.cache
def _version(name: str) -> str:
    version = vars(sys.modules[name]).get("__version__")
    if isinstance(version, str):
        return version
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return content_digest(_loaded_file(name))[:12]


def content_digest(file: str) -> str:
    """Return the SHA-256 (hex) of a file, or why it cannot be read."""
    try:
        with open(file, "rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except OSError as error:
        return type(error).__name__
