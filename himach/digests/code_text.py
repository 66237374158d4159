"""What code does, as text: `code_text()`, and the names in it, `code_names()`."""

from __future__ import annotations

import functools
import re
import types
from collections.abc import Iterator
from typing import Any

__all__ = ["ANY", "REFLECTION", "code_names", "code_text"]

#: Stands for any name; names by which code gets at things whose names it makes up.
ANY = "*"
REFLECTION = re.compile(
    r"globals|locals|eval|exec|vars|dir|__globals__|__dict__|getattr|attrgetter|methodcaller|__getattribute__|getmembers|modules"
    r"|__import__|import_module|spec_from_file_location|run_path|format|format_map"
)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _codes(const)


@functools.lru_cache(4096)
def code_names(code: types.CodeType) -> frozenset[str]:
    """Return the names in code, and in code within it; with ANY, where it makes names up."""
    names: frozenset[str] = frozenset().union(*(part.co_names for part in _codes(code)))
    return names | {ANY} if any(map(REFLECTION.fullmatch, names)) else names


def code_text(code: types.CodeType) -> str:
    """Return what code does, without its docstring, file and lines; it holds for one version of Python."""
    consts = list(code.co_consts)
    if code.co_flags & 0x2 and consts and isinstance(consts[0], str):  # of a function
        consts[0] = None
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & 0xFF)
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    return repr((code.co_name, counts, names, code.co_code, code.co_exceptiontable, list(map(_constant, consts))))


def _constant(value: Any) -> str:
    if isinstance(value, types.CodeType):
        return code_text(value)
    if isinstance(value, frozenset):  # whose order is another in every process
        return f"frozenset {sorted(map(_constant, value))}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_constant, value))})"
    return f"{type(value).__name__} {value!r}"
