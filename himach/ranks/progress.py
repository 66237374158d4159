"""`Progress`, one progress display over all ranks: counts go to rank 0 in messages without waiting."""

import contextlib
import importlib
import itertools
import os
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any, TextIO

from himach.ranks.communicator import Communicator

COUNT_TAG = 0x4D9  # of messages with counts
SEND_SECONDS = 0.1  # seconds, up to MAX_PROMPT_SENDERS ranks; more ranks send less often, so that rank 0 keeps up
MAX_PROMPT_SENDERS = 50
LOOK_EVERY = 0.1  # seconds between checks for messages and refreshes of a bar
FIRST_LINE_SECONDS = 5.0  # seconds: a shorter run prints nothing
LINE_SECONDS = 10.0
FREQUENT_LINE_SECONDS = 120.0  # seconds, after which a line a minute is enough
LATER_LINE_EVERY = 60.0
FINAL_WAIT = 0.02  # seconds between checks while other ranks still work
SMOOTHING = 0.02  # of a bar's rate: other ranks' counts arrive in lumps

# Displays have the same number on every rank, so that messages of one that ended early do not count for another.
_numbers = itertools.count()


def is_watched() -> bool:
    """Tell whether a person sees standard error as it is written: a terminal or a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


class Progress:
    """Shows how far all ranks are; call it with this rank's count of frames after each, and finish() after the last.

    As a context it finishes at the end, or closes if an exception passes.
    """

    def __init__(
        self, comm: Communicator, total: int, stream: TextIO, quiet: bool = False, unit: str = "frame"
    ) -> None:
        self._comm, self._number, self._over, self._done = comm, next(_numbers), quiet, 0
        self._next = float("inf") if quiet else 0.0
        # On rank 0: the display, the others' counts, and which of them still work.
        self._display = _display(total, stream, unit) if comm.rank == 0 and not quiet else None
        self._counts: dict[int, int] = {}
        self._working = set(range(1, comm.size))
        # On other ranks.
        self._requests: list[Any] = []  # kept until they are complete: MPI reads from their buffers
        self._interval = LOOK_EVERY if comm.rank == 0 else SEND_SECONDS * max(1.0, comm.size / MAX_PROMPT_SENDERS)

    def __call__(self, done: int) -> None:
        """Take this rank's count of frames done so far; costs one clock read."""
        self._done = done
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + self._interval
        if self._display is None:
            self._send()
        else:
            self._poll()

    def finish(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Send the last count; on rank 0 show the others' until all are in and call `meanwhile`, which may raise."""
        if self._over:
            return
        try:
            if self._display is not None:
                self._poll()
                while self._working:
                    time.sleep(FINAL_WAIT)
                    self._poll()
                    meanwhile()
        finally:
            self.close()

    def close(self) -> None:
        """End without waiting for other ranks: the run failed."""
        if self._over:
            return
        self._over, self._next = True, float("inf")
        if self._display is None:
            self._send(last=True)  # rank 0 may wait for it, if a failure does not abort the run
        else:
            self._display.close()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        if kind is None:
            self.finish()
        else:
            self.close()

    def _send(self, last: bool = False) -> None:
        """Send this rank's count to rank 0 without waiting."""
        self._requests = [request for request in self._requests if not request.test()[0]]
        # Skip a count while the one before is in flight, unless it is the last.
        if last or not self._requests:
            message = (self._number, self._comm.rank, self._done, last)
            self._requests.append(self._comm.isend(message, dest=0, tag=COUNT_TAG))

    def _poll(self) -> None:
        """Take the other ranks' counts and show the sum."""
        assert self._display is not None
        while self._working and self._comm.iprobe(tag=COUNT_TAG):
            number, rank, count, last = self._comm.recv(tag=COUNT_TAG)
            if number == self._number:
                self._counts[rank] = count
                if last:
                    self._working.discard(rank)
        self._display.show(self._done + sum(self._counts.values()))


def _display(total: int, stream: TextIO, unit: str) -> "_Bar | _Lines":
    if in_notebook() and stream is sys.stderr:
        return _Bar(total, stream, unit, notebook=True)
    if stream.isatty() or os.environ.get("HIMACH_PROGRESS") == "tty":
        return _Bar(total, stream, unit)
    return _Lines(total, stream, unit)


class _Bar:
    """A tqdm bar."""

    def __init__(self, total: int, stream: TextIO, unit: str, notebook: bool = False) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # without ipywidgets tqdm.auto warns and shows text
            module = importlib.import_module("tqdm.auto" if notebook else "tqdm")
        # Our bar needs no monitor thread.
        unwatched = type("Bar", (module.tqdm,), {"monitor_interval": 0})
        width = {"dynamic_ncols": True} if notebook or _has_width(stream) else {"ncols": _columns(), "nrows": 2}
        self._bar = unwatched(
            total=total, file=stream, unit=f" {unit}s", mininterval=LOOK_EVERY, miniters=0, smoothing=SMOOTHING, **width
        )

    def show(self, done: int) -> None:
        _unless_closed(lambda: self._bar.update(done - self._bar.n))

    def close(self) -> None:
        _unless_closed(lambda: (self._bar.refresh(), self._bar.close()))


class _Lines:
    """A line of text at intervals."""

    def __init__(self, total: int, stream: TextIO, unit: str) -> None:
        self._total, self._stream, self._unit = total, stream, unit
        self._start = time.monotonic()
        self._next = self._start + FIRST_LINE_SECONDS
        self._done = 0

    def show(self, done: int) -> None:
        self._done = done
        now = time.monotonic()
        if now >= self._next:
            self._next = now + (LINE_SECONDS if now - self._start < FREQUENT_LINE_SECONDS else LATER_LINE_EVERY)
            self._print(now)

    def close(self) -> None:
        now = time.monotonic()
        if now - self._start >= FIRST_LINE_SECONDS:
            self._print(now)

    def _print(self, now: float) -> None:
        seconds = now - self._start
        rate = self._done / seconds
        share = f" ({100 * self._done // self._total}%)" if self._total else ""
        line = f"himach: {self._done} of {self._total} {self._unit}s{share}, {rate:.3g} {self._unit}s/s"
        if self._done >= self._total:
            line += f", {clock(seconds)}"
        elif rate > 0:
            line += f", {clock((self._total - self._done) / rate)} left"
        _unless_closed(lambda: print(line, file=self._stream, flush=True))


def clock(seconds: float) -> str:
    """Return a duration as ``m:ss`` or ``h:mm:ss``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _unless_closed(write: Any) -> None:
    """Write to the display; a closed stream must not end the run."""
    with contextlib.suppress(OSError, ValueError):
        write()


def _has_width(stream: TextIO) -> bool:
    """Tell whether the stream is a terminal with a width; in a job or a container it is often 0."""
    try:
        return os.get_terminal_size(stream.fileno()).columns > 0
    except (OSError, ValueError):
        return False


def _columns() -> int:
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdigit() and int(columns) > 0 else 80


def in_notebook() -> bool:
    """Tell whether this process is a notebook's kernel."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and type(shell).__name__ == "ZMQInteractiveShell"
