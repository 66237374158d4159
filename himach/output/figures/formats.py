"""Formats of plots, as a run is asked for them: `figure_formats()`."""

from __future__ import annotations

from collections.abc import Sequence

from himach.errors import UsageError

__all__ = ["FORMATS", "figure_formats"]

FORMATS = ("svg", "pdf", "png")


def figure_formats(asked: str | Sequence[str]) -> tuple[str, ...]:
    """Return the formats of plots, each once, of a list of them or of a text such as ``"svg,pdf"``.

    Raises
    ------
    UsageError
        If one is none that plots have, or none is asked for.
    """
    words = asked.split(",") if isinstance(asked, str) else asked
    formats = tuple(dict.fromkeys(str(word).strip().lower() for word in words))
    unknown = [word for word in formats if word not in FORMATS]
    if unknown or not formats:
        raise UsageError(f"figure {', '.join(unknown) or 'of no format'}: plots are {', '.join(FORMATS)}")
    return formats
