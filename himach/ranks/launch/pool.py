"""`RankPool`, ranks of this machine or of a step of a job: each piece of work has new ones; `spawn()` is for one piece.

`pack_work()` pickles a piece for all ranks; it travels through a place private to the user.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import os
import pickle
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from himach.errors import RankError, cell_name
from himach.ranks import segments
from himach.ranks.communicator import World
from himach.ranks.launch.parent_channel import RankChannel
from himach.ranks.launch.spawn import (
    ENDING,
    GRACE,
    death_message,
    end,
    rank_environment,
    relay_output,
    start,
)
from himach.ranks.launch.stop_requests import Terminated, relay_signals

LOOK_EVERY = 0.02  # seconds between looks at what ranks report
#: Command line of every rank that himach starts.
RANK = (sys.executable, "-P", "-m", "himach.ranks.launch.rank_main")


def pack_work(work: Callable[[World], Any]) -> bytes:
    """Return pickled work for every rank, after what Python needs to find its code."""
    return pickle.dumps((sys.path, _cell_sources())) + pickle.dumps(work)


def unpack_work(data: bytes) -> Callable[[World], Any]:
    """Return the work; set the import path of the process that packed it."""
    stream = io.BytesIO(data)
    sys.path[:], sources = pickle.load(stream)
    linecache.cache.update(sources)
    work: Callable[[World], Any] = pickle.load(stream)
    return work


def _cell_sources() -> dict[str, Any]:
    """Return the source lines that exist only in this process (cells, the REPL), for error messages on the ranks."""
    # Without a modification time, ranks do not check the file system for changes. They show the full name: of a cell,
    # its number in the notebook.
    return {
        name: (entry[0], None, entry[2], cell_name(name) or entry[3])
        for name, entry in linecache.cache.items()
        if len(entry) == 4 and not Path(name).exists()
    }


class NotBegunError(RankError):
    """Ranks died before all of them had begun their work; nothing was done."""


class RankPool:
    """Ranks that wait for work until `end()`, which garbage collection calls as well."""

    def __init__(
        self, command: Sequence[str], size: int, forks: bool = False, environ: Mapping[str, str] | None = None
    ) -> None:
        self.environ = rank_environment() if environ is None else dict(environ)
        self._size, self._called = size, size if environ is None else 1
        self._channel = RankChannel()
        start_time = time.time()
        try:
            started = size if environ is None else 0
            self._process = start(command, started, self.environ | self._channel.variable, forks)
        except BaseException:
            self._channel.close()
            raise
        self._end = weakref.finalize(self, _end, self._process, self._channel, start_time)

    @property
    def alive(self) -> bool:
        """Whether the ranks take work."""
        return self._end.alive and self._process.poll() is None

    @property
    def current(self) -> bool:
        """Whether ranks have the present environment."""
        return self.environ == rank_environment()

    def do(self, work: bytes, keeps: bool = False, last: bool = False) -> bytes:
        """Have all ranks do this work; return rank 0's result."""
        channel, process = self._channel, self._process
        try:
            with relay_output(process), relay_signals(self._pass_on):
                try:
                    channel.call(work, self._called, last)
                    while not channel.done and process.poll() is None:
                        time.sleep(LOOK_EVERY)
                except BaseException as stopped:
                    self._stop(stopped, keeps)
                    raise
        except BaseException:
            if not channel.done:
                self.end()
            raise
        error, result, begun = channel.error(), channel.result(), channel.has_begun
        status = process.returncode
        failed = bool(status) or result is None
        death = self._death(status or 0) if failed else ""
        if last or not channel.done:
            self.end()
        if error is not None:
            raise error
        if death:
            raise (RankError if begun else NotBegunError)(death)
        assert result is not None
        return result

    def end(self) -> None:
        """End the ranks, if they have not ended; those with work do not finish it."""
        self._end()

    def _death(self, status: int) -> str:
        """Return a message on how ranks ended."""
        return death_message(status, self._size, self._channel.last_words, self._channel.first_death())

    def _pass_on(self, signum: int) -> None:
        self._channel.send(signum)

    def _stop(self, stopped: BaseException, keeps: bool) -> None:
        """End the ranks' work because of an error; on SIGTERM first give ranks that keep pairs time to do so."""
        if keeps and isinstance(stopped, Terminated):
            self._pass_on(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(ENDING)
        self._kill()

    def _kill(self) -> None:
        """End the ranks at once."""
        end(self._process)


def _end(process: subprocess.Popen[bytes], channel: RankChannel, start_time: float) -> None:
    """End ranks that wait for work; kill those that do not end in time."""
    if os.getpid() != channel.process:
        return
    channel.dismiss()
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        end(process)
    channel.close()
    for stream in (process.stdout, process.stderr):
        assert stream is not None
        stream.close()
    if process.returncode != 0:  # killed ranks may have left names of segments
        segments.sweep(start_time)


def spawn(command: Sequence[str], ranks: int, work: bytes, keeps: bool = False, forks: bool = False) -> bytes:
    """Have new ranks do one piece of work; return rank 0's result. For parameters and errors see `RankPool`."""
    return RankPool(command, ranks, forks).do(work, keeps, last=True)
