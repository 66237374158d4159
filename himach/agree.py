"""Steps that all ranks take together and whose errors they raise together.

An error of which `is_everywhere()` is true was raised on all ranks; after any other, the ranks that it does not concern
wait for the one that it does, and must be aborted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from himach.comm import Communicator
from himach.errors import HimachError, as_himach

__all__ = ["is_everywhere", "on_every_rank", "on_first_rank"]

T = TypeVar("T")


def is_everywhere(error: BaseException) -> bool:
    """Tell whether every rank raised `error`, so that none is left waiting."""
    return getattr(error, "_himach_everywhere", False)


def on_first_rank(comm: Communicator, function: Callable[[], T], share: bool = False) -> T:
    """Call `function` on rank 0; share what it returns with all ranks if asked, and its error in any case."""
    value: Any = None
    error: Exception | None = None
    if comm.rank == 0:
        try:
            value = function()
        except Exception as caught:
            error = caught
    _raise_everywhere(error, comm.bcast(_portable(error)))
    return comm.bcast(value) if share else value


def on_every_rank(comm: Communicator, function: Callable[[], T]) -> T:
    """Call `function` on every rank; if it failed on some, raise the first one's error on all."""
    value: Any = None
    error: Exception | None = None
    try:
        value = function()
    except Exception as caught:
        error = caught
    failed = [word for word in comm.allgather(_portable(error)) if word is not None]
    _raise_everywhere(error, failed[0] if failed else None)
    return value


def _portable(error: Exception | None) -> HimachError | None:
    """Return the error without its cause, which may not travel."""
    return None if error is None else type(as_himach(error))(str(as_himach(error)))


def _raise_everywhere(own: Exception | None, error: HimachError | None) -> None:
    if error is None:
        return
    raised = as_himach(own) if own is not None else error
    raised.__dict__["_himach_everywhere"] = True
    raise raised from (own.__cause__ if isinstance(own, HimachError) else own)
