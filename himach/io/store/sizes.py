"""Sizes as text: `parse_size` reads ``2GB`` and ``500MiB``, `show_size` writes ``2.0 GB``."""

import re

from himach.errors import UsageError

_PREFIXES = "kMGTP"
_SIZE = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(?:([kmgtp])(i?))?b?\s*", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Return the bytes of a size: a number, then nothing, B, kB, MB, GB, TB, PB or KiB, MiB, ..."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise UsageError(f"{text!r} is no size; write for example 2GB, 500MiB or 1000000000")
    number, prefix, binary = match.groups()
    power = _PREFIXES.lower().index(prefix.lower()) + 1 if prefix else 0
    return int(float(number) * (1024 if binary else 1000) ** power) if prefix else int(float(number))


def show_size(nbytes: float) -> str:
    """Return a size with two or three digits and a decimal unit."""
    if nbytes < 1000:
        return f"{nbytes:.0f} B"
    size = float(nbytes)
    for prefix in _PREFIXES:
        size /= 1000
        if size < 999.5 or prefix == _PREFIXES[-1]:
            break
    return f"{size:.{1 if size < 99.95 else 0}f} {prefix}B"
