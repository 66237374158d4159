"""Pools of ranks, new ones for each piece of work: `RankPool` on this machine, `JobPool` in a job; once: `spawn()`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping, Sequence

from himach.errors import RankError
from himach.ranks import segments
from himach.ranks.launch.parent_channel import RankChannel, read_umask
from himach.ranks.launch.spawn import (
    ENDING,
    GRACE,
    common_environment,
    death_message,
    end,
    end_orderly,
    rank_environment,
    relay_output,
    start,
)
from himach.ranks.launch.stop_requests import Terminated, relay_signals

LOOK_EVERY = 0.02  # seconds between checks whether mpiexec lives; forked ranks report at once
#: Command line of every rank that himach starts.
RANK = (sys.executable, "-P", "-m", "himach.ranks.launch.rank_main")
SUBMITTER = (sys.executable, "-P", "-m", "himach.ranks.slurm.submitter")


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
                        channel.listen(LOOK_EVERY)
                except BaseException as stopped:
                    self._stop(stopped, keeps)
                    raise
        except BaseException:
            if not channel.done:
                self.end()
            raise
        channel.listen(0)
        error, result = channel.error(), channel.result()
        status = process.returncode
        failed = bool(status) or result is None
        death = self._death(status or 0) if failed else ""
        if last or not channel.done:
            self.end()
        if error is not None:
            raise error
        if death:
            raise (RankError if channel.has_begun else NotBegunError)(death)
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
        """End the ranks' work because of an error."""
        end_orderly(self._process, self._channel, stopped, keeps)


class JobPool(RankPool):
    """Ranks in a job: a process of `himach.ranks.slurm` submits it, forwards work and survives interruptions."""

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
        """True: each piece of work carries the changes of the environment."""
        return True

    def do(self, work: bytes, keeps: bool = False, last: bool = False) -> bytes:
        """Have all ranks do this work when the job has begun: see `RankPool.do`."""
        before, now = self.environ, common_environment()
        changes = {name: now.get(name) for name in sorted({*before, *now}) if before.get(name) != now.get(name)}
        head = {"environ": changes, "cwd": os.getcwd(), "umask": read_umask(os.getpid()), "keeps": keeps}
        return super().do(json.dumps(head).encode() + b"\n" + work, keeps, last)

    def _stop(self, stopped: BaseException, keeps: bool) -> None:
        """End the job on SIGTERM; on any other error, only the ranks' work."""
        if isinstance(stopped, Terminated):
            super()._stop(stopped, keeps)
            return
        self._process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + ENDING
        while not self._channel.done and self._process.poll() is None and time.monotonic() < deadline:
            self._channel.listen(LOOK_EVERY)


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
