"""Formats of tables, as a run is asked for them: `table_formats()`."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from himach.errors import UsageError

__all__ = ["FORMATS", "table_formats"]

FORMATS = ("csv", "parquet", "nc", "xvg")
#: Modules that formats need, and the extras that bring them.
NEEDED = {"parquet": ("pyarrow", "himach[parquet]"), "nc": ("xarray", "himach[xarray]")}


def table_formats(asked: str | Sequence[str]) -> tuple[str, ...]:
    """Return the formats of tables, each once, of a list of them or of a text such as ``"parquet,nc"``.

    CSV is always among them, and the first: it is what himach itself reads.

    Raises
    ------
    UsageError
        If one is none that tables have, or what it needs is not installed.
    """
    words = asked.split(",") if isinstance(asked, str) else asked
    formats = tuple(dict.fromkeys(["csv", *(str(word).strip().lower() for word in words)]))
    unknown = [repr(word) for word in formats if word not in FORMATS]
    if unknown:
        raise UsageError(f"table {', '.join(unknown)}: tables are {', '.join(FORMATS)}")
    for name in formats:
        module, extra = NEEDED.get(name, (None, ""))
        if module is not None and find_spec(module) is None:
            raise UsageError(f"table {name!r} needs {module}, which is not installed: pip install '{extra}'")
    return formats
