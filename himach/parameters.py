"""Types and parsing of an analysis's parameters: `Parameter`, an annotated class attribute."""

import contextlib
import inspect
import json
import math
import re
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar

import numpy as np

from himach.atoms import Atoms, is_atom_group
from himach.errors import UsageError

#: A length with its unit; units in Å.
_LENGTH = re.compile(r"(?<![\w.])([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(nm|pm|Å|A)\b")
_ANGSTROMS = {"nm": Decimal(10), "pm": Decimal("0.01"), "Å": Decimal(1), "A": Decimal(1)}


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
        return self._convert(self._in_angstroms(text), repr(text), is_text=True)

    def check(self, value: Any) -> Any:
        """Convert `value` to the parameter's type, or raise UsageError that names the parameter."""
        if isinstance(value, str) and (text := self._in_angstroms(value)) != value:
            return self.parse(text)
        return self._convert(value, f"{value!r} ({type(value).__name__})")

    def _convert(self, value: Any, shown: str, is_text: bool = False) -> Any:
        """Return a value as one of the type; raise UsageError also for a NaN, which equals nothing, if unexpected."""
        try:
            value = _convert(self.type, value, is_text)
        except (TypeError, ValueError, KeyError):
            hint = "; write its selection, such as 'name CA'" if hasattr(value, "select_atoms") else ""
            raise UsageError(f"parameter {self.name}: {shown} is not {_article(self.type_name)}{hint}") from None
        if _has_nan(value) and not _has_nan(self.default):
            raise UsageError(f"parameter {self.name}: {value!r} is no number to compute with")
        return value

    def _in_angstroms(self, text: str) -> Any:
        """Return the numbers in Å of lengths such as ``0.45nm``; raise UsageError if the parameter is no length."""
        if not _has_floats(self.type) or not _LENGTH.search(text):
            return text
        if self.doc and "Å" not in self.doc:
            raise UsageError(f"parameter {self.name}: {text!r} is a length, and this is none in Å: {self.doc}")
        return _LENGTH.sub(lambda match: str(float(Decimal(match[1]) * _ANGSTROMS[match[2]])), text)


def _has_nan(value: Any) -> bool:
    return any(map(_has_nan, value)) if isinstance(value, list) else isinstance(value, float) and math.isnan(value)


_SCALARS = (str, int, float, bool)
_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def _has_floats(hint: Any) -> bool:
    """Return whether a type includes numbers with fractions, and no text."""
    members = typing.get_args(hint) or (hint,)
    return str not in members and (float in members or any(map(_has_floats, typing.get_args(hint))))


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


def _convert(hint: Any, value: Any, is_text: bool = False) -> Any:
    """Return a value, or its text, as one of a type; raise TypeError, ValueError or KeyError."""
    members = _union(hint)
    if members is not None:
        if type(None) in members and (value.lower() in ("none", "") if is_text else value is None):
            return None
        for member in members:
            with contextlib.suppress(TypeError, ValueError, KeyError):
                if member is not type(None):
                    return _convert(member, value, is_text)
        raise ValueError(value)
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return {str(choice) if is_text else choice: choice for choice in typing.get_args(hint)}[value]
    if origin is list:
        (member,) = typing.get_args(hint)
        if is_text and not value.startswith("["):
            return [_convert(member, part.strip(), True) for part in value.split(",")] if value else []
        items = json.loads(value) if is_text else value
        if isinstance(items, str) or not isinstance(items, Iterable):
            raise TypeError
        return [_convert(member, item) for item in items]
    if is_atom_group(hint):
        return Atoms.from_value(json.loads(value) if is_text and value.startswith(("[", "{")) else value)
    if is_text:
        return _TRUTH[value.lower()] if hint is bool else hint(value)
    value = value.item() if isinstance(value, np.generic) else value
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
