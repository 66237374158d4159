"""Names: of files and directories, safe on every file system and each once; of the formats of tables and figures."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from importlib.util import find_spec

from himach.errors import UsageError

LONGEST_NAME = 180  # bytes; file systems allow 255 with the suffix
TABLES, FIGURES = ("csv", "parquet", "nc", "xvg"), ("svg", "pdf", "png")
#: Modules that formats need, and the extras that bring them.
NEEDED = {"parquet": ("pyarrow", "himach[parquet]"), "nc": ("xarray", "himach[xarray]")}


def unique_labels(labels: Iterable[str]) -> list[str]:
    """Return labels as names of their own for directories and outcomes: those that come again get -2, -3."""
    return unique_names([str(label) for label in labels])


def unique_names(names: Sequence[str], suffixes: Sequence[str] = (), taken: Iterable[str] = ()) -> list[str]:
    """Return safe file names, each once; a name that is safe as it is keeps it, others make way by -2, -3."""
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
    """Return a safe file name that is a matter of the name alone; one that is safe as it is keeps it."""
    safe = _safe(name)
    return name if safe == name else f"{safe}-{hashlib.sha256(name.encode(errors='replace')).hexdigest()[:8]}"


def _safe(name: str) -> str:
    """Return a name without separators, control characters or a leading dot, short enough for a file system."""
    text = "".join(c if c.isalnum() or c in " ._-+=,()[]@%" else "_" for c in name).strip(" ")
    text = text.encode(errors="replace")[:LONGEST_NAME].decode(errors="ignore")
    return f"_{text[1:]}" if text.startswith((".", "-")) else text or "_"


def table_formats(requested: str | Sequence[str]) -> tuple[str, ...]:
    """Return the formats of tables, each once, of a list of them or of a text such as ``"parquet,nc"``.

    CSV is always among them, and the first: it is what himach itself reads.
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
    """Return the formats of plots, each once, of a list of them or of a text such as ``"svg,pdf"``."""
    formats = tuple(dict.fromkeys(_words(requested)))
    unknown = [word for word in formats if word not in FIGURES]
    if unknown or not formats:
        raise UsageError(f"figure {', '.join(unknown) or 'of no format'}: plots are {', '.join(FIGURES)}")
    return formats


def _words(requested: str | Sequence[str]) -> list[str]:
    return [str(word).strip().lower() for word in (requested.split(",") if isinstance(requested, str) else requested)]
