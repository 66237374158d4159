"""Messages about files: `reason()` of a foreign exception, `warn_cut()` for a file cut off, and `quietly()`."""

from __future__ import annotations

import warnings
from typing import Any


def reason(error: BaseException) -> str:
    """Return an exception's text on one line, or its class's name without any."""
    text = " ".join(str(error).split())
    return text or type(error).__name__


def warn_cut(path: str, n_frames: int) -> None:
    """Warn that a file ends within a frame and is used up to its last whole frame."""
    warnings.warn(
        f"{path} is cut off within frame {n_frames}; it is used up to its last whole frame, {n_frames - 1}",
        stacklevel=2,
    )


def quietly(call: Any, *args: Any, **keywords: Any) -> Any:
    """Call MDAnalysis without its DeprecationWarnings, which address developers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return call(*args, **keywords)
