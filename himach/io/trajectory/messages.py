"""Words that the readers of this folder share: `reason()` of a foreign exception, `warn_cut()` for a file cut off."""

from __future__ import annotations

import warnings


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
