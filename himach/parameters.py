"""Types and parsing of an analysis's parameters: `Parameter`, an annotated class attribute."""

from __future__ import annotations

import inspect
import json
import math
import re
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from himach.atoms import Atoms, is_atom_group
from himach.errors import UsageError


@dataclass(frozen=True)
class Parameter:
    """One parameter of an analysis: an annotated class attribute."""

    REQUIRED: ClassVar[object] = inspect.Parameter.empty  # a class: stays the same object when pickled

    name: str
    type: Any  # its annotation: str, int, float, bool, AtomGroup, a Literal, a list of these, or one of these or None
    default: Any  # its value in the class; `Parameter.REQUIRED` if there is none
    doc: str  # its entry in the Parameters section of the class's docstring, on one line
    attribute: str  # the instance's attribute with its value

    @property
    def required(self) -> bool:
        """Whether the parameter has no default."""
        return self.default is Parameter.REQUIRED

    @property
    def type_name(self) -> str:
        """Readable name of the type."""
        return type_name(self.type)

    @property
    def groups(self) -> bool:
        """Whether its type includes groups of atoms."""
        return _has_groups(self.type)

    def parse(self, text: str) -> Any:
        """Convert text of the command line to a value; raise UsageError that names the parameter."""
        try:
            value = _parse(self.type, text)
        except (ValueError, KeyError, TypeError):
            raise UsageError(f"parameter {self.name}: {text!r} is not {_article(self.type_name)}") from None
        return self._numbers(value)

    def check(self, value: Any) -> Any:
        """Convert `value` to the parameter's type, or raise UsageError that names the parameter."""
        try:
            value = _convert(self.type, value)
        except (TypeError, ValueError):
            raise UsageError(
                f"parameter {self.name}: {value!r} ({type(value).__name__}) is not {_article(self.type_name)}"
            ) from None
        return self._numbers(value)

    def _numbers(self, value: Any) -> Any:
        """Return `value`; raise UsageError for a NaN, which equals nothing, unless the default has one."""
        if _has_nan(value) and not _has_nan(self.default):
            raise UsageError(f"parameter {self.name}: {value!r} is no number to compute with")
        return value


def _has_nan(value: Any) -> bool:
    return any(map(_has_nan, value)) if isinstance(value, list) else isinstance(value, float) and math.isnan(value)


_SCALARS = (str, int, float, bool)


def _union(hint: Any) -> tuple[Any, ...] | None:
    """Return the members of a union; None for another type."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return typing.get_args(hint)
    return None


def supported(hint: Any) -> bool:
    """Return whether the command line can set a parameter of this type."""
    members = _union(hint)
    if members is not None:
        return all(member is type(None) or supported(member) for member in members)
    if typing.get_origin(hint) is typing.Literal:
        return True
    if is_atom_group(hint):
        return True
    if typing.get_origin(hint) is list:
        return supported(typing.get_args(hint)[0])
    return hint in _SCALARS


def _has_groups(hint: Any) -> bool:
    return is_atom_group(hint) or any(_has_groups(member) for member in typing.get_args(hint))


def recorded(value: Any) -> Any:
    """Return a parameter's value for a record, with atoms as their selections or indices."""
    if isinstance(value, Atoms):
        return value.value
    return [recorded(item) for item in value] if isinstance(value, list) else value


def selected(value: Any, universe: Any, parameter: str) -> Any:
    """Return a parameter's value with atoms as groups of a Universe; raise UsageError like `Atoms.select`."""
    if isinstance(value, Atoms):
        return value.select(universe, parameter)
    return [selected(item, universe, parameter) for item in value] if isinstance(value, list) else value


def type_name(hint: Any) -> str:
    """Return the readable name of a type."""
    members = _union(hint)
    if members is not None:
        return " or ".join("None" if member is type(None) else type_name(member) for member in members)
    if typing.get_origin(hint) is typing.Literal:
        return " or ".join(repr(choice) for choice in typing.get_args(hint))
    if typing.get_origin(hint) is list:
        return f"list of {type_name(typing.get_args(hint)[0])}"
    return getattr(hint, "__name__", str(hint))


def _article(type_name: str) -> str:
    return f"an {type_name}" if type_name[0] in "iA" else type_name if type_name.startswith("'") else f"a {type_name}"


def _parse(hint: Any, text: str) -> Any:
    members = _union(hint)
    if members is not None:
        if type(None) in members and text.lower() in ("none", ""):
            return None
        for member in members:
            if member is not type(None):
                try:
                    return _parse(member, text)
                except ValueError:
                    continue
        raise ValueError(text)
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return {str(choice): choice for choice in typing.get_args(hint)}[text]
    if origin is list:
        (member,) = typing.get_args(hint)
        if text.startswith("["):
            return _convert(hint, json.loads(text))
        return [_parse(member, part.strip()) for part in text.split(",")] if text else []
    if is_atom_group(hint):
        return Atoms.of(json.loads(text) if text.startswith(("[", "{")) else text)
    if hint is bool:
        return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[text.lower()]
    return hint(text)


def _convert(hint: Any, value: Any) -> Any:
    members = _union(hint)
    if members is not None:
        if value is None and type(None) in members:
            return None
        for member in members:
            if member is not type(None):
                try:
                    return _convert(member, value)
                except TypeError:
                    continue
        raise TypeError
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        if value not in typing.get_args(hint):
            raise ValueError
        return value
    if origin is list:
        if isinstance(value, str) or not isinstance(value, Iterable):
            raise TypeError
        (member,) = typing.get_args(hint)
        return [_convert(member, item) for item in value]
    return Atoms.of(value) if is_atom_group(hint) else _converted(hint, value)


def _converted(hint: type, value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise TypeError
    return value


def parameter_docs(docstring: str) -> dict[str, str]:
    """Return the entries of a numpy-style Parameters section, each on one line."""
    lines = inspect.cleandoc(docstring).splitlines()
    titled = [at for at in range(1, len(lines)) if set(lines[at].strip()) == {"-"} and lines[at - 1][:1].strip()]
    start = next((at + 1 for at in titled if lines[at - 1].strip() == "Parameters"), len(lines))
    stop = next((at - 1 for at in titled if at > start), len(lines))
    docs: dict[str, str] = {}
    current = ""
    for line in lines[start:stop]:
        match = re.match(r"^(\w+)\s*(:.*)?$", line)
        if match:
            current = match.group(1)
            docs[current] = ""
        elif current and line.startswith(" "):
            docs[current] = f"{docs[current]} {line.strip()}".strip()
    return docs
