"""`Ranks`, for `himach.run(..., ranks=ranks)`, and the pools below it: `RankPool` on this machine, `JobPool` in a job.

Each piece of work has new ranks; `spawn()` starts a pool for one piece. `pack_work()` pickles a piece for all ranks; it
travels through a place private to the user.
"""

from __future__ import annotations

import contextlib
import io
import json
import linecache
import os
import pickle
import shlex
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from himach.errors import RankError, UsageError, cell_name
from himach.ranks import segments
from himach.ranks.communicator import World
from himach.ranks.launch.memory import node_memory
from himach.ranks.launch.parent_channel import RankChannel, read_umask
from himach.ranks.launch.spawn import (
    ENDING,
    GRACE,
    common_environment,
    death_message,
    end,
    rank_environment,
    relay_output,
    start,
)
from himach.ranks.launch.stop_requests import Terminated, relay_signals
from himach.ranks.process_exit import promised_ranks, under_launcher

LOOK_EVERY = 0.02  # seconds between checks whether mpiexec lives; forked ranks report at once
#: Command line of every rank that himach starts.
RANK = (sys.executable, "-P", "-m", "himach.ranks.launch.rank_main")
SUBMITTER = (sys.executable, "-P", "-m", "himach.ranks.slurm.submitter")
#: Most ranks a processor, unless the user asks for more.
OF_PROCESSOR = 4
#: Memory of a rank before it reads a frame, in bytes.
RANK_BYTES = 1 << 25


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
        """End the ranks' work because of an error; on SIGTERM first give ranks that keep pairs time to do so."""
        if keeps and isinstance(stopped, Terminated):
            self._pass_on(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(ENDING)
        self._kill()

    def _kill(self) -> None:
        """End the ranks at once."""
        end(self._process)


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


def check_machine(ranks: int) -> None:
    """Refuse more ranks than this machine can take: five hundred on two processors stop it."""
    processors, memory = len(os.sched_getaffinity(0)), node_memory()
    most = max(1, min(OF_PROCESSOR * processors, memory // RANK_BYTES))
    if ranks > most:
        raise UsageError(
            f"{ranks} ranks are more than this machine can do with ({processors} processors, {memory / 2**30:.3g} GiB "
            f"for them): start at most {most}, or say that it is meant, by --oversubscribe or "
            f"himach.Ranks({ranks}, oversubscribe=True)"
        )


class Ranks:
    """Ranks of this machine, or in a job of SLURM's, that are there before a run begins, with all that runs import.

    They are started at once and wait, without using a processor, until `close()`, the end of a ``with`` block or of
    this process, whatever ends it. Each run has ranks that have run nothing: they are forked, as soon as those of the
    run before have ended, from one process that has imported MDAnalysis and himach and runs nothing itself. Code, files
    and the environment count as they are when a run begins. After the death of a rank, an interruption or a change of
    the environment that process is a new one. Where MPI's library has no ranks that are forked (Open MPI, or MPICH
    built for another launcher), each run starts its ranks by mpiexec, all but the first when it begins.

    With `slurm` a job is submitted at once, and the first run waits for it. It ends with `close()`, the ``with`` block
    or this process, whatever ends that. An interruption or an error ends a run and not the job; interrupted before it
    has begun, it is cancelled. Where a job is over (its time is up, it was cancelled), the next run submits another.

    Parameters
    ----------
    size
        Number of ranks. Where mpiexec or srun started several, these are used, and `size` must be their number.
    oversubscribe
        Whether there may be more than four a processor, or more than memory holds.
    slurm
        In place of `size` options of sbatch, as a text or as words: ``"-N4 -n64 --time=1:00:00"``. The ranks are the
        tasks of that job. ``--mpi`` goes to srun; without it, it is what fits the MPI library.

    Raises
    ------
    RankError
        If there is no mpiexec.
    UsageError
        If there are too many for this machine, or they cannot be had: closed, busy with a run of another thread, or
        those of the process that forked this one. If a job cannot be submitted.

    Examples
    --------
    >>> with himach.Ranks(8) as ranks:  # doctest: +SKIP
    ...     for cutoff in (3.0, 3.5):
    ...         himach.run(Contacts(cutoff=cutoff), "traj.xtc", "top.gro", ranks=ranks)
    >>> ranks = himach.Ranks(slurm="-N4 -n64 --time=1:00:00")  # doctest: +SKIP
    """

    def __init__(
        self, size: int | None = None, oversubscribe: bool = False, *, slurm: str | Sequence[str] | None = None
    ) -> None:
        if (size is None) == (slurm is None):
            raise UsageError("give a number of ranks of this machine, or options for a job: himach.Ranks(slurm='-n64')")
        self._options = None if slurm is None else shlex.split(slurm) if isinstance(slurm, str) else list(slurm)
        if size is not None and size < 1:
            raise UsageError(f"ranks must be 1 or more, not {size}")
        if slurm is not None and under_launcher():
            raise UsageError("slurm=: srun or mpiexec started this process as one of several ranks; leave ranks out")
        if size is not None and not (oversubscribe or under_launcher()):
            check_machine(size)
        self._process = os.getpid()
        self._busy = threading.Lock()
        self._closed = False
        self.size = size or 0
        self._ranks = None if under_launcher() else self._start()

    def _start(self) -> RankPool:
        if self._options is None:
            return RankPool(RANK, self.size, forks=True)
        pool = JobPool(self._options)
        self.size = pool.size
        return pool

    @property
    def alive(self) -> bool:
        """Whether the next run finds them waiting; else it starts them anew, unless they are closed."""
        if os.getpid() != self._process:
            return False
        return promised_ranks() == self.size if self._ranks is None else self._ranks.alive

    def close(self) -> None:
        """End the ranks; no run can use them any more."""
        if os.getpid() != self._process or self._closed:
            return
        self._acquire()
        try:
            self._closed = True
            if self._ranks is not None:
                self._ranks.end()
        finally:
            self._busy.release()

    def do(self, work: bytes, keeps: bool = False) -> bytes:
        """Have all ranks do packed work (`pack_work`), which may keep pairs; return rank 0's result."""
        self._acquire()
        try:
            with contextlib.suppress(NotBegunError):  # ranks were killed while they waited
                return self._start_ranks().do(work, keeps)
            return self._start_ranks().do(work, keeps)
        finally:
            self._busy.release()

    def _acquire(self) -> None:
        if os.getpid() != self._process:
            raise UsageError("these ranks are those of the process that forked this one; make others: himach.Ranks(n)")
        if not self._busy.acquire(blocking=False):
            raise UsageError("these ranks are busy with a run of another thread; give each thread Ranks of its own")
        if self._closed:
            self._busy.release()
            again = self.size if self._options is None else f"slurm={shlex.join(self._options)!r}"
            raise UsageError(f"these ranks were closed; make new ones: himach.Ranks({again})")

    def _start_ranks(self) -> RankPool:
        """Return live ranks with the present environment."""
        ranks = self._ranks
        if ranks is None or not (ranks.alive and ranks.current):
            if ranks is not None:
                ranks.end()
            ranks = self._ranks = self._start()
        return ranks

    @property
    def elsewhere(self) -> bool:
        """Whether ranks may be on other machines, which cannot see this process's memory."""
        return self._options is not None

    def __repr__(self) -> str:
        ranks = "1 rank" if self.size == 1 else f"{self.size} ranks"
        if isinstance(self._ranks, JobPool):
            ranks += f" of job {self._ranks.job}"
        state = "closed" if self._closed else "waiting" if self.alive else "to be started by the next run"
        if self._busy.locked() and not self._closed:
            state = "running"
        return f"<himach.Ranks: {ranks}, {state}>"

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
