"""What is done with each outcome of a live run: `shown_to()`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from himach.result import Result

__all__ = ["shown_to"]


def shown_to(on_update: Callable[[Result], object] | None) -> Callable[[Result], object]:
    """Return what each result is given to: what the user named, else a notebook's cell, else nothing."""
    if on_update is not None:
        return on_update
    shell = sys.modules["IPython"].get_ipython() if "ipykernel" in sys.modules and "IPython" in sys.modules else None
    return _nowhere if shell is None else _Cell()


def _nowhere(result: Result) -> None:
    """Show nothing."""


class _Cell:
    """Shows a result below the cell that runs, in place of the one before."""

    def __init__(self) -> None:
        self._handle: Any = None

    def __call__(self, result: Result) -> None:
        from IPython.display import display

        if self._handle is None:
            self._handle = display(result, display_id=True)
        else:
            self._handle.update(result)
