"""Durations as people and SLURM write them: `parse_duration` reads ``55m``, ``1h30m``, ``55:00``, ``1-12``."""

import math
import re

from himach.errors import UsageError

UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
WORDS = ("d(?:ays?)?", "h(?:ours?)?", "m(?:in(?:utes?)?)?", "s(?:ec(?:onds?)?)?")
_NUMBER = r"(\d+(?:\.\d*)?|\.\d+)"
#: How a duration may be written, and the units of its numbers.
FORMS = {
    _NUMBER: "s",
    r"(\d+)-(\d+)(?::(\d+))?(?::(\d+))?": "dhms",
    r"(?:(\d+):)?(\d+):(\d+)": "hms",
    "".join(rf"(?:{_NUMBER}\s*{word}\s*)?" for word in WORDS): "dhms",
}


def parse_duration(text: str) -> float:
    """Return a duration in seconds."""
    text = text.strip()
    for form, units in FORMS.items():
        if text and (match := re.fullmatch(form, text, re.IGNORECASE)):
            numbers = zip(units, match.groups(), strict=True)
            return sum(UNITS[unit] * float(number) for unit, number in numbers if number)
    raise UsageError(f"{text!r} is no length of time; write for example 55m, 1h30m, 3300 (seconds) or 00:55:00")


def parse_seconds(value: float | str, name: str) -> float:
    """Return the seconds of an argument `name`, a number or a text; raise UsageError unless positive and finite."""
    try:
        seconds = parse_duration(value) if isinstance(value, str) else float(value)
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from None
    except (TypeError, ValueError):
        raise UsageError(f"{name} is a number of seconds or a text such as '55m', not {value!r}") from None
    if not (seconds > 0 and math.isfinite(seconds)):
        raise UsageError(f"{name} must be longer than nothing, not {value!r}")
    return seconds
