"""Names: of files and directories, unique and safe on every file system; of formats of tables and figures."""

import hashlib
from collections.abc import Iterable, Sequence
from importlib.util import find_spec

from himach.errors import UsageError

LONGEST_NAME = 180  # bytes; file systems allow 255 with the suffix
TABLES, FIGURES = ("csv", "parquet", "nc", "xvg"), ("svg", "pdf", "png")
#: Modules that formats need, and the extras that install them.
NEEDED = {"parquet": ("pyarrow", "himach[parquet]"), "nc": ("xarray", "himach[xarray]")}


def unique_names(names: Sequence[str], suffixes: Sequence[str] = (), taken: Iterable[str] = ()) -> list[str]:
    """Return unique safe names of files and outcomes; safe names are kept where possible, others get -2, -3."""
    suffixes = suffixes or [""] * len(names)
    safe = [_safe(name) for name in names]
    used = set(taken)
    unique = [""] * len(names)
    for i in sorted(range(len(names)), key=lambda i: safe[i] != names[i]):
        number = 1
        while not unique[i] or unique[i] in used:
            unique[i] = f"{safe[i]}{'' if number == 1 else f'-{number}'}{suffixes[i]}"
            number += 1
        used.add(unique[i])
    return unique


def lasting_name(name: str) -> str:
    """Return a safe file name that depends on the name alone; a safe name is kept."""
    safe = _safe(name)
    return name if safe == name else f"{safe}-{hashlib.sha256(name.encode(errors='replace')).hexdigest()[:8]}"


def _safe(name: str) -> str:
    """Return a name without separators, control characters or a leading dot, short enough for a file system."""
    text = "".join(c if c.isalnum() or c in " ._-+=,()[]@%" else "_" for c in name).strip(" ")
    text = text.encode(errors="replace")[:LONGEST_NAME].decode(errors="ignore")
    return f"_{text[1:]}" if text.startswith((".", "-")) else text or "_"


def table_formats(requested: str | Sequence[str]) -> tuple[str, ...]:
    """Return the formats of tables without duplicates, from a list or a text such as ``"parquet,nc"``.

    CSV is always the first, because himach itself reads it.
    """
    formats = tuple(dict.fromkeys(["csv", *_words(requested)]))
    unknown = [repr(word) for word in formats if word not in TABLES]
    if unknown:
        raise UsageError(f"table {', '.join(unknown)}: tables are {', '.join(TABLES)}")
    for name in formats:
        module, extra = NEEDED.get(name, (None, ""))
        if module is not None and find_spec(module) is None:
            raise UsageError(f"table {name!r} needs {module}, which is not installed: pip install '{extra}'")
    return formats


def figure_formats(requested: str | Sequence[str]) -> tuple[str, ...]:
    """Return the formats of plots without duplicates, from a list or a text such as ``"svg,pdf"``."""
    formats = tuple(dict.fromkeys(_words(requested)))
    unknown = [word for word in formats if word not in FIGURES]
    if unknown or not formats:
        raise UsageError(f"figure {', '.join(unknown) or 'of no format'}: plots are {', '.join(FIGURES)}")
    return formats


def _words(requested: str | Sequence[str]) -> list[str]:
    return [str(word).strip().lower() for word in (requested.split(",") if isinstance(requested, str) else requested)]
