"""A record in the shape that runs give it: `shaped()` leaves out what is not as it should be, whoever wrote it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

__all__ = ["as_dict", "shaped"]

#: Fields that are dicts.
DICTS = ("dataset", "system", "versions", "times", "seconds", "units", "uncertainty", "faulty", "universe", "digests")
#: Fields of what is told of a table or a mean that are numbers, or None.
NUMBERS = ("level", "blocks", "n_eff", "start_ps", "replicas", "mean", "low", "high")


def shaped(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record whose parts have their shape: those that have another one are not there, numbers are None.

    A record knows no nan, which is None there, and has infinities as text, which become numbers again.
    """
    found = {key: value for key, value in record.items() if key not in DICTS or isinstance(value, dict)}
    if found.get("confidence", "off") != "off":
        found["confidence"] = _number(found["confidence"])
    if "system" in found:
        found["system"] = _system(found["system"])
    if "uncertainty" in found:
        found["uncertainty"] = {name: _told(one) for name, one in found["uncertainty"].items() if isinstance(one, dict)}
    if "ensemble" in found:
        members = found["ensemble"] if isinstance(found["ensemble"], list) else []
        members = [{**member} for member in members if isinstance(member, dict)]
        for member in members:
            if "system" in member:
                member["system"] = _system(as_dict(member["system"]))
        found["ensemble"] = members
        if not members:
            del found["ensemble"]
    return found


def as_dict(value: Any) -> dict[str, Any]:
    """Return what should be a dict, as one."""
    return value if isinstance(value, dict) else {}


def _told(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is told of a table: of its least sure column, and of the means of others."""
    means = as_dict(told.get("means"))
    return {**_mean(told), "means": {name: _mean(mean) for name, mean in means.items() if isinstance(mean, dict)}}


def _mean(told: Mapping[str, Any]) -> dict[str, Any]:
    found = {key: _number(value) if key in NUMBERS else value for key, value in told.items()}
    found["method"] = str(told.get("method", ""))
    halves = told.get("halves")
    if "halves" in found:
        found["halves"] = _numbers(halves, 3)
    return found


def _system(told: Mapping[str, Any]) -> dict[str, Any]:
    residues = as_dict(told.get("residues"))
    return {
        **told,
        "atoms": _number(told.get("atoms")),
        "residues": {kind: count for kind, count in residues.items() if isinstance(count, int)},
        "box": _numbers(told.get("box"), 6),
        "time_ps": _numbers(told.get("time_ps"), 2),
        "dt_ps": _number(told.get("dt_ps")),
    }


def _numbers(values: Any, n: int) -> list[float] | None:
    """Return so many numbers; None if there are not as many."""
    numbers = [_number(value) for value in values] if isinstance(values, list) else []
    known = [number for number in numbers if number is not None]
    return known if len(known) == len(numbers) == n else None


def _number(value: Any) -> float | int | None:
    """Return a number, an infinity told as text among them; None if it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return None if math.isnan(number) else value if isinstance(value, int) else number
