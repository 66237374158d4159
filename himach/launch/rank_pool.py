"""Ranks that do work after work: `RankPool` of this machine, `JobPool` in a job; or one piece of it: `spawn()`.

Each piece is done by ranks that have done none before. Where the process that this one has started can fork them, or
have a job start them, it does so again as soon as those before have ended, and these initialise MPI and wait; else
ranks are started by mpiexec for each piece.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Protocol

from himach.errors import HimachError, RankError
from himach.launch.parent_channel import RankChannel, umask_of
from himach.launch.spawn import (
    ENDING,
    GRACE,
    common_environment,
    died,
    end,
    end_orderly,
    rank_environment,
    relayed_output,
    start,
)
from himach.launch.stop_requests import Terminated, relayed
from himach.parallel import segments
from himach.parallel.environment import under_launcher
from himach.parallel.progress import NotebookBar

__all__ = ["RANK", "JobPool", "NotBegunError", "RankPool", "spawn", "start_ahead"]

LOOK_EVERY = 0.02  # seconds between looks whether mpiexec lives; ranks that were forked say so at once
#: What every rank is that himach starts.
RANK = (sys.executable, "-P", "-m", "himach.launch.rank_main")
SUBMITTER = (sys.executable, "-P", "-m", "himach.slurm.submitter")

_ahead: dict[int, RankPool] = {}  # ranks that were started for work which is not known yet, by their number


class NotBegunError(RankError):
    """Ranks died before they began with what they were asked for."""


class Bar(Protocol):
    """Shows how far ranks are."""

    def look(self) -> None: ...
    def close(self) -> None: ...


class RankPool:
    """Ranks that wait for work; to be ended, which happens by itself when nobody knows them any more.

    Parameters
    ----------
    command
        Program and arguments of each rank, or of what forks them (see `himach.launch.spawn.start`); it uses a
        `himach.launch.parent_channel.ParentChannel`.
    size
        Number of ranks.
    forks
        Whether ``command`` is one that forks its ranks.
    environ
        Of a command that starts them by a way of its own, and has the first alone called; None: it does not.

    Attributes
    ----------
    environ
        What they were started with.

    Raises
    ------
    RankError
        If there is no mpiexec.
    """

    def __init__(
        self, command: Sequence[str], size: int, forks: bool = False, environ: Mapping[str, str] | None = None
    ) -> None:
        self.environ = rank_environment() if environ is None else dict(environ)
        self._size, self._called = size, size if environ is None else 1
        self._channel = RankChannel()
        began = time.time()
        try:
            started = size if environ is None else 0
            self._process = start(command, started, self.environ | self._channel.variable, forks)
        except BaseException:
            self._channel.close()
            raise
        self._end = weakref.finalize(self, _end, self._process, self._channel, began)

    @property
    def alive(self) -> bool:
        """Whether they take work."""
        return self._end.alive and self._process.poll() is None

    @property
    def current(self) -> bool:
        """Whether the environment, as it is now, is what ranks have."""
        return self.environ == rank_environment()

    def do(self, work: bytes, keeps: bool = False, last: bool = False) -> bytes:
        """Have all ranks do this work; return what rank 0 left.

        Parameters
        ----------
        work
            For the ranks to read.
        keeps
            Whether ranks may keep pairs, which takes time when they are told to end.
        last
            Whether no other work will follow.

        Raises
        ------
        Terminated
            After SIGTERM, when all ranks have ended.
        NotBegunError
            If they died before all of them were there; nothing was done.
        RankError
            If one died, which ends all.
        HimachError
            What a rank reported, in its own class.
        """
        channel, process = self._channel, self._process
        bar = self._bar()
        try:
            with relayed_output(process), relayed(self._pass_on):
                try:
                    channel.call(work, self._called, last)
                    while not channel.done and process.poll() is None:
                        channel.listen(LOOK_EVERY)
                        bar.look()
                except BaseException as stopped:
                    self._stop(stopped, keeps)
                    raise
                finally:
                    bar.close()
        except BaseException:
            if not channel.done:
                self.end()
            raise
        channel.listen(0)
        error, result = channel.error(), channel.result()
        begun, status = channel.begun, process.returncode
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
        """End them, if they have not ended; those that have work do not finish it."""
        self._end()

    def cancel(self) -> None:
        """End them at once, if they have not ended, though they may not be there yet."""
        if self._end.alive:
            end(self._process)
            self._end()

    def _bar(self) -> Bar:
        return NotebookBar(self._channel.last_words)

    def _death(self, status: int) -> str:
        """Say how ranks ended."""
        return died(status, self._size, self._channel.last_words, self._channel.died())

    def _pass_on(self, signum: int) -> None:
        self._channel.send(signum)

    def _stop(self, stopped: BaseException, keeps: bool) -> None:
        """End what they do because of an error."""
        end_orderly(self._process, self._channel, stopped, keeps)


class JobPool(RankPool):
    """Ranks in a job of SLURM's, which is submitted and waits in the queue, and stays when what they do is interrupted.

    The process that is started here submits it (`himach.slurm`) and hands on: to the ranks what is asked of them, to
    this process what they leave.

    Parameters
    ----------
    options
        Words for sbatch, and ``--mpi`` for srun.

    Attributes
    ----------
    job
        Its number.
    size
        Number of ranks.

    Raises
    ------
    UsageError
        If it cannot be submitted.
    """

    def __init__(self, options: Sequence[str]) -> None:
        super().__init__([*SUBMITTER, *options], 1, environ=common_environment())
        try:
            submitted = json.loads(super().do(b""))
        except BaseException:
            self.end()
            raise
        self.job: str = submitted["job"]
        self.size: int = submitted["size"]

    @property
    def current(self) -> bool:
        """True: what changes in the environment travels with each piece of work."""
        return True

    def do(self, work: bytes, keeps: bool = False, last: bool = False) -> bytes:
        """Have all ranks do this work, once the job has begun: see `RankPool.do`."""
        changes = _changes(self.environ, common_environment())
        head = {"environ": changes, "cwd": os.getcwd(), "umask": umask_of(os.getpid()), "keeps": keeps}
        return super().do(json.dumps(head).encode() + b"\n" + work, keeps, last)

    def _stop(self, stopped: BaseException, keeps: bool) -> None:
        """End the job because of SIGTERM; of anything else, what the ranks do."""
        if isinstance(stopped, Terminated):
            super()._stop(stopped, keeps)
            return
        self._process.send_signal(signal.SIGINT)
        until = time.monotonic() + ENDING
        while not self._channel.done and self._process.poll() is None and time.monotonic() < until:
            self._channel.listen(LOOK_EVERY)


def _changes(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str | None]:
    """Return what became of variables that are not as before."""
    return {name: now.get(name) for name in sorted({*before, *now}) if before.get(name) != now.get(name)}


def _end(process: subprocess.Popen[bytes], channel: RankChannel, began: float) -> None:
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
    if process.returncode < 0:  # what was to remove their segments was killed
        segments.sweep(began)


def spawn(command: Sequence[str], ranks: int, work: bytes, keeps: bool = False, forks: bool = False) -> bytes:
    """Have new ranks do a piece of work; return what rank 0 left. For parameters and errors see `RankPool`."""
    pool = _ahead.pop(ranks, None) if command == RANK else None
    if pool is None or not (pool.alive and pool.current):
        pool = RankPool(command, ranks, forks)
    return pool.do(work, keeps, last=True)


def start_ahead(ranks: int) -> None:
    """Start ranks for the `spawn` that will ask for so many; they end with this process, if none does."""
    if not under_launcher() and ranks <= len(os.sched_getaffinity(0)):
        before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # from the first, as the command will have it
        with contextlib.suppress(HimachError, OSError):  # which is told when they are needed
            _ahead[ranks] = pool = RankPool(RANK, ranks, forks=True)
            atexit.register(pool.cancel)
        signal.signal(signal.SIGUSR1, before)
