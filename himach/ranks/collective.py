"""Collective steps whose errors all ranks raise together: short ones, and phases (`Meeting`).

After an error that is not `is_everywhere()`, the other ranks wait in vain and are aborted.
"""

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar, cast

from himach.errors import HimachError, UsageError, as_himach
from himach.ranks.communicator import Communicator, node_name

T = TypeVar("T")
_Failure = tuple[int, tuple[int, HimachError, str] | None]

STOP_TAG = 7002  # tag of a failed rank's message that asks another to stop
FAILURE_SECONDS = 5.0  # seconds that a failed rank waits for the others, which may be in a long map()
LOOK_EVERY = 0.1  # seconds between checks for a stop message


def is_everywhere(error: BaseException) -> bool:
    """Tell whether every rank raised `error`, so that none is left waiting."""
    return getattr(error, "_himach_everywhere", False)


def on_first_rank(comm: Communicator, function: Callable[[], T], share: bool = False) -> T:
    """Call `function` on rank 0; raise its error on all ranks and, with `share`, return its value on all."""
    value, error = _attempt(comm, function) if comm.rank == 0 else (None, None)
    _raise_everywhere(error, comm.bcast(_portable(error)))
    shared = comm.bcast(value) if share else value
    return cast(T, value if comm.rank == 0 else shared)


def run_collectively(comm: Communicator, function: Callable[[], T]) -> T:
    """Call `function` on every rank; raise the first rank's error on all, after `FAILURE_SECONDS` a rank's own."""
    value, error = _attempt(comm, function)
    meet(comm, error)
    failure = (0, None) if error is None else (1, (comm.rank, _portable(error), node_name()))
    n_failed, failed = comm.allreduce(failure, _join_failures)
    if failed is not None:
        rank, first, node = failed
        if n_failed < comm.size and " on rank " not in str(first):
            first = type(first)(f"{first} (on rank {rank} of {comm.size}, node {node})")
            if error is not None:
                first.__cause__ = error.__cause__ if isinstance(error, HimachError) else error
                error = first
        _raise_everywhere(error, first)
    return cast(T, value)


def _join_failures(left: _Failure, right: _Failure) -> _Failure:
    """Return how many failed, and the first failure: messages do not grow with the number of ranks."""
    return left[0] + right[0], min(filter(None, (left[1], right[1])), key=lambda failed: failed[0], default=None)


def largest(comm: Communicator, numbers: Mapping[str, float]) -> dict[str, float]:
    """Return the largest of the numbers of all ranks, by name (collective)."""
    maxima: dict[str, float] = comm.allreduce(dict(numbers), _largest)
    return maxima


def _largest(left: Mapping[str, float], right: Mapping[str, float]) -> dict[str, float]:
    return {name: max(number, right[name]) for name, number in left.items()}


def warn_once(comm: Communicator, reasons: Sequence[str]) -> None:
    """Warn on rank 0 with the reason of the first rank that has one (collective)."""
    reason = comm.allreduce(next(iter(reasons), None), _first_of)
    if reason is not None and comm.rank == 0:
        warnings.warn(reason, stacklevel=2)


class Meeting:
    """Meeting of all ranks after each phase, whether it failed or not."""

    def __init__(self, comm: Communicator, patience: float | None = None) -> None:
        self._patience = patience
        self.while_waiting: Callable[[], object] = lambda: None
        self._comm = comm
        self._next_look = 0.0

    def poll(self) -> None:
        """Leave the phase if another rank failed; call after every frame, costs one clock read."""
        now = time.monotonic()
        if now >= self._next_look and self._comm.size > 1:
            self._next_look = now + LOOK_EVERY
            if self._comm.iprobe(tag=STOP_TAG):
                raise _Stopped

    def watched(self, display: Callable[[int], object]) -> Callable[[int], None]:
        """Return a function of this rank's count of frames, to be called after each: it shows the count and polls."""

        def done(count: int) -> None:
            display(count)
            self.poll()

        return done

    def together(self, part: Callable[[], T]) -> T:
        """Run this rank's part of a phase, then meet."""
        if self._comm.size == 1:
            return part()
        value, error = _attempt(self._comm, part)
        if isinstance(error, _Stopped):
            error = None
        receivers = () if error is None else range(self._comm.size)
        sent = [self._comm.isend(None, dest=rank, tag=STOP_TAG) for rank in receivers if rank != self._comm.rank]
        meet(self._comm, error, self.while_waiting, self._patience)
        first = self._comm.allreduce(_portable(error), _first_of)
        if first is not None:
            for rank, failed in enumerate(self._comm.allgather(error is not None)):
                if failed and rank != self._comm.rank:
                    self._comm.recv(source=rank, tag=STOP_TAG)
        for request in sent:
            request.wait()
        _raise_everywhere(error, first)
        return cast(T, value)


class _Stopped(Exception):  # noqa: N818 - not an error of this rank
    """Another rank failed; this one need not go on."""


def meet(
    comm: Communicator,
    error: BaseException | None = None,
    while_waiting: Callable[[], object] = lambda: None,
    patience: float | None = None,
) -> None:
    """Wait for all ranks without taking processors from those at work; with an error, wait `patience` at most."""
    if comm.size == 1:
        return
    arrival, pause = comm.Ibarrier(), 1e-5
    deadline = time.monotonic() + (FAILURE_SECONDS if patience is None else patience)
    while not arrival.Test():
        while_waiting()
        time.sleep(pause)
        pause = min(1.1 * pause, 0.01)  # short compared with the time waited so far
        if error is not None and time.monotonic() > deadline:
            raise error


def _attempt(comm: Communicator, function: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    """Call `function`; return its value and its error, but raise a signal's error if there is one rank."""
    try:
        return function(), None
    except BaseException as error:
        if comm.size == 1 and not isinstance(error, Exception):
            raise
        return None, error


def _first_of(left: T | None, right: T | None) -> T | None:
    """Return the first of both that is not None."""
    return right if left is None else left


def _portable(error: BaseException | None) -> HimachError | None:
    """Return the error without its cause, which may not be picklable."""
    return None if error is None else type(as_himach(error))(str(as_himach(error)))


def _raise_everywhere(own: BaseException | None, error: HimachError | None) -> None:
    if error is None:
        return
    raised = as_himach(own) if own is not None else error
    raised.__dict__["_himach_everywhere"] = True
    raise raised from (own.__cause__ if isinstance(own, HimachError) else own)


_apart = False


@contextmanager
def ranks_apart(comm: Communicator) -> Iterator[None]:
    """Refuse other runs on these ranks within the context, as each rank works for itself."""
    global _apart
    before, _apart = _apart, comm.size > 1
    try:
        yield
    finally:
        _apart = before


def check_together() -> None:
    """Raise UsageError if another run on this process's ranks would wait for them without end."""
    if _apart:
        raise UsageError(
            "a run within map(), reduce() or finish() of a run on several ranks would need all of them; make it in "
            "setup() or before, or use one rank"
        )
