"""What code is: `Codes.read()` gives a digest of one code object, and the names that it uses.

What counts is the code that runs. Its source is looked up, and compiled again: where that gives the very instructions
that run, the digest is of the syntax tree, in which there are no comments, formatting or docstrings, and no version of
Python. Otherwise (no source any more, edited since, or rewritten by a tool) it is of instructions, constants and names.
"""

from __future__ import annotations

import ast
import dis
import hashlib
import linecache
import os
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any

__all__ = ["CodeUse", "Codes"]

#: Names by which code gets at things whose names it makes up.
_REFLECTION = frozenset({"getattr", "attrgetter", "methodcaller", "vars", "__dict__", "__getattribute__", "getmembers"})
#: Names by which code gets at anything in its module.
_GLOBAL_REFLECTION = frozenset({"globals", "eval", "exec", "locals"})
#: Names by which code imports modules whose names are strings.
_IMPORTING = frozenset({"__import__", "import_module", "modules"})
_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS", "LOAD_CLASSDEREF", "STORE_GLOBAL")
_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD")
#: Fields of a syntax tree that say nothing of what is done.
_SILENT = frozenset({"kind", "type_comment", "type_ignores"})


@dataclass(frozen=True)
class CodeUse:
    """What a code object, with those within it, uses.

    Attributes
    ----------
    digest
        Of what it does.
    chains
        Global names, each with the attributes that are taken of it right away: ``("np", "linalg", "norm")``.
    imports
        Modules that it imports: name, level, and what it takes from each; nothing: the module itself.
    attributes
        Names of all attributes that it reads or sets, but for those in `chains`.
    literals
        Strings in it, but for docstrings.
    words
        The words of these strings.
    """

    digest: bytes
    chains: frozenset[tuple[str, ...]]
    imports: frozenset[tuple[str, int, tuple[str, ...]]]
    attributes: frozenset[str]
    literals: frozenset[str]
    words: frozenset[str]

    @property
    def names(self) -> frozenset[str]:
        """All names of `chains`, and attributes."""
        return self.attributes.union(*self.chains)

    @property
    def reflects(self) -> bool:
        """Whether attributes may be read whose names are nowhere in it."""
        return not _REFLECTION.isdisjoint(self.names)

    @property
    def imports_by_name(self) -> bool:
        """Whether it may import modules by names that are strings."""
        return not _IMPORTING.isdisjoint(self.names)

    @property
    def reflects_module(self) -> bool:
        """Whether any global of its module may be read."""
        return not _GLOBAL_REFLECTION.isdisjoint(self.names)


class Codes:
    """Reads code objects; sources are read and compiled once each."""

    def __init__(self) -> None:
        self._sources: dict[str, dict[tuple[str, int], list[tuple[CodeType, ast.AST]]]] = {}

    def read(self, code: CodeType) -> CodeUse:
        """Return what a code object does and uses."""
        chains: set[tuple[str, ...]] = set()
        imports: set[tuple[str, int, tuple[str, ...]]] = set()
        attributes: set[str] = set()
        literals: set[str] = set()
        for part in _all_codes(code):
            _scan(part, chains, imports, attributes)
            literals.update(_strings(part))
        words = frozenset(word for text in literals for word in re.findall(r"\w+", text))
        return CodeUse(
            self._digest(code), frozenset(chains), frozenset(imports), frozenset(attributes), frozenset(literals), words
        )

    def _digest(self, code: CodeType) -> bytes:
        node = self._node(code)
        text = f"{sys.flags.optimize} " + (_plain(code) if node is None else _dumped(node))
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()

    def _node(self, code: CodeType) -> ast.AST | None:
        """Return the piece of source that this code was compiled from; None if there is none that gives this code."""
        if code.co_filename not in self._sources:
            self._sources[code.co_filename] = _definitions(code.co_filename)
        runs = _plain(code)
        found = [
            node
            for (name, _), several in self._sources[code.co_filename].items()
            if name == code.co_qualname and len({id(node) for _, node in several}) == 1
            for compiled, node in several
            if _plain(compiled) == runs
        ]
        alike = len(found) == 1 or len({_dumped(node) for node in found}) == 1
        return found[0] if alike else None


def _definitions(filename: str) -> dict[tuple[str, int], list[tuple[CodeType, ast.AST]]]:
    """Return code and syntax tree of all functions in a source, by qualified name and first line.

    Where several are of one name in one line, as lambdas may be, all of them are listed.
    """
    found: dict[tuple[str, int], list[tuple[CodeType, ast.AST]]] = defaultdict(list)
    try:
        source = _source(filename)
        nodes: dict[tuple[str, int], list[ast.AST]] = defaultdict(list)
        tree = ast.parse(source)
        for name, node in _functions(tree, ""):
            nodes[name, _first_line(node)].append(node)
        units: list[Any] = [tree]
        if not os.path.isfile(filename):  # notebooks compile the statements of a cell one by one, which may differ
            units += [ast.Module([statement], []) for statement in tree.body]
        for unit in units:
            for code in _all_codes(compile(unit, filename, "exec", dont_inherit=True)):
                for node in nodes.get((code.co_qualname, code.co_firstlineno), ()):
                    found[code.co_qualname, code.co_firstlineno].append((code, node))
    except (SyntaxError, ValueError, OSError, RecursionError):
        return {}
    return found


def _source(filename: str) -> str | bytes:
    """Return a source as it is on the disk; of a notebook's cell or what was typed, as Python keeps it."""
    if os.path.isfile(filename):
        with open(filename, "rb") as file:
            return file.read()
    return "".join(linecache.getlines(filename))


def _functions(tree: ast.AST, inside: str) -> Iterator[tuple[str, ast.AST]]:
    """Give the qualified names of functions, as Python makes them, and their trees."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{inside}{node.name}", node
            yield from _functions(node, f"{inside}{node.name}.<locals>.")
        elif isinstance(node, ast.Lambda):
            yield f"{inside}<lambda>", node
            yield from _functions(node, f"{inside}<lambda>.<locals>.")
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{inside}{node.name}.")
        else:
            yield from _functions(node, inside)


def _first_line(node: Any) -> int:
    return min(int(each.lineno) for each in (node, *getattr(node, "decorator_list", ())))


def _dumped(node: ast.AST) -> str:
    """Return a syntax tree as text: without places and docstrings, the same in every version of Python."""
    text: list[str] = []
    _dump(node, text.append)
    return "".join(text)


def _dump(node: Any, write: Callable[[str], None]) -> None:
    if isinstance(node, ast.AST):
        write(f"({type(node).__name__}")
        documented = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and _documented(node.body)
        for name in node._fields:
            value = getattr(node, name, None)
            if value is None or value == [] or name in _SILENT:
                continue
            write(f" {name}=")
            _dump(value[1:] if documented and name == "body" else value, write)
        write(")")
    elif isinstance(node, list):
        for each in node:
            _dump(each, write)
            write(",")
    else:
        write(f"{type(node).__name__} {node!r}")


def _documented(body: list[ast.stmt]) -> bool:
    first = body[0]
    return isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)


def _plain(code: CodeType) -> str:
    """Return what a code object does as text, without file and lines; it holds for one version of Python."""
    consts = [_plain(const) if isinstance(const, CodeType) else _constant(const) for const in code.co_consts]
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & 0xFF)
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    made_of = (sys.version_info[:2], code.co_name, counts, names, code.co_code, code.co_exceptiontable, consts)
    return repr(made_of)


def _constant(value: Any) -> str:
    if isinstance(value, frozenset):  # whose order is another in every process
        return f"frozenset {sorted(map(_constant, value))}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_constant, value))})"
    return f"{type(value).__name__} {value!r}"


def _all_codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _all_codes(const)


def _strings(code: CodeType) -> Iterator[str]:
    """Give the strings among the constants, but for the docstring."""
    consts = list(code.co_consts)
    is_function = bool(code.co_flags & 0x2) and not code.co_name.startswith("<")  # optimized: no module and no class
    todo: list[Any] = consts[1:] if is_function and consts and isinstance(consts[0], str) else consts
    while todo:
        value = todo.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, tuple | frozenset):
            todo += value


def _scan(code: CodeType, chains: set[Any], imports: set[Any], attributes: set[str]) -> None:
    """Add what the instructions of a code object name."""
    chain: tuple[str, ...] = ()
    consts: list[Any] = []
    for each in _instructions(code):
        name = each.argval
        if chain and each.opname in _ATTRIBUTE:
            chain = (*chain, name)
            continue
        if chain:
            chains.add(chain)
            chain = ()
        if each.opname in _GLOBAL:
            chain = (name,)
        elif each.opname == "IMPORT_NAME":
            level, taken = consts if len(consts) == 2 else (0, None)
            imports.add((name, level or 0, tuple(taken or ())))
        elif each.opcode in dis.hasname and each.opname != "IMPORT_FROM":
            attributes.add(name)
        consts = [*consts[-1:], each.argval] if each.opname in ("LOAD_CONST", "LOAD_SMALL_INT") else consts
    if chain:
        chains.add(chain)


def _instructions(code: CodeType) -> Iterable[dis.Instruction]:
    skipped = ("EXTENDED_ARG", "PUSH_NULL", "CACHE")
    return (each for each in dis.get_instructions(code) if each.opname not in skipped)
