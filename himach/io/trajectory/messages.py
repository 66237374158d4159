"""What is said, or not: `reason()` of a foreign exception, `warn_cut()` for a file cut off, and `quietly()`."""

from __future__ import annotations

import warnings
from typing import Any


def reason(error: BaseException) -> str:
    """Return an exception's text on one line, or its name where it has none."""
    text = " ".join(str(error).split())
    return text or type(error).__name__


def warn_cut(path: str, n_frames: int) -> None:
    """Say that a file ends within a frame and is used up to the frame before it."""
    warnings.warn(
        f"{path} is cut off within frame {n_frames}; it is used up to its last whole frame, {n_frames - 1}",
        stacklevel=2,
    )


def quietly(call: Any, *args: Any, **keywords: Any) -> Any:
    """Call a reader of MDAnalysis without the warnings that speak to its developers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return call(*args, **keywords)
