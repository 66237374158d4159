"""What an object has of its own, `own_attributes()`, and what of it somebody put there or is a note for speed."""

from __future__ import annotations

import enum
import types
from typing import Any

import numpy as np

__all__ = ["PlainMember", "added", "is_note", "is_special", "noted", "own_attributes"]

#: What every group has of its own.
_OF_GROUP = frozenset(
    {"_ix", "_u", "_cache", "_selections", "_selection_strings", "_base_group", "_lastupdate", "_derived_class"}
    | {"convert_to"}  # which MDAnalysis leaves there when it is first asked for
)
#: How pickle takes objects apart whose class does not say how.
_BY_DEFAULT = tuple((name, getattr(object, name)) for name in ("__reduce_ex__", "__reduce__", "__getstate__"))
#: What libraries change in place, so that it is more than a note for speed.
_CONTAINERS = (list, dict, set, bytearray, np.ndarray)


def own_attributes(value: Any) -> dict[str, Any]:
    """Return what an object has of its own, in slots too."""
    slots = {
        name: getattr(value, name)
        for cls in type(value).__mro__
        if vars(cls).get("__slots__")
        for name, member in vars(cls).items()
        if isinstance(member, types.MemberDescriptorType) and hasattr(value, name)
    }
    return {**slots, **getattr(value, "__dict__", {})}


def noted(group: Any) -> dict[str, Any]:
    """Return what somebody put on a group of atoms."""
    return {name: value for name, value in vars(group).items() if name not in _OF_GROUP}


class PlainMember(enum.Enum):
    """What every member of an enumeration has."""

    MEMBER = 0


def added(value: Any, usual: Any) -> dict[str, Any]:
    """Return the attributes of an object that another one of its kind does not have."""
    return {name: each for name, each in vars(value).items() if name not in vars(usual) and name != "manager"}


def is_note(name: str, value: Any) -> bool:
    """Tell whether an attribute of a library's object is what that remembers for speed."""
    return name.startswith("_") and (not isinstance(value, _CONTAINERS) or "cache" in name or "memo" in name)


def is_special(kind: type) -> bool:
    """Tell whether a class says itself how pickle takes its objects apart."""
    return any(getattr(kind, name) is not each for name, each in _BY_DEFAULT)
