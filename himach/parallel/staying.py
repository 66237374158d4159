"""Ranks of this machine that do work after work: `StayingRanks`, started once.

They end when they are told to, when the process that started them ends, or all together when one of them fails alone.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import select
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from typing import IO

from himach.errors import HimachError, RankError
from himach.parallel import segments
from himach.parallel.orders import relayed
from himach.parallel.spawn import GRACE, died, end, end_orderly, pass_on, rank_environment, relay, start, there
from himach.parallel.turns import Turns

__all__ = ["NotBegunError", "StayingRanks"]

#: UCX below MPI notes each change of this process's mappings for a use that may never come; run after run that adds up.
UNNOTED = {"UCX_MEM_EVENTS": "n"}
LOOK_EVERY = 0.05  # seconds between looks whether mpiexec lives; ranks that are done say so at once


class NotBegunError(RankError):
    """Ranks died before they began with what they were asked for."""


class StayingRanks:
    """Ranks that wait for work; to be ended, which happens by itself when nobody knows them any more.

    Parameters
    ----------
    command
        Program and arguments of what forks the ranks (see `himach.parallel.spawn.start`); each uses a
        `himach.parallel.turns.StayingRank`.
    size
        Number of ranks.

    Attributes
    ----------
    environ
        What they were started with.
    """

    def __init__(self, command: Sequence[str], size: int) -> None:
        self.environ = rank_environment()
        self._size = size
        self._turns = Turns(size)
        try:
            self._process = start(command, size, UNNOTED | self.environ | self._turns.variable, forks=True)
        except BaseException:
            self._turns.close()
            raise
        # Of mpiexec itself; what ranks print comes by pipes of their own.
        relays = [relay(self._process.stdout, sys.stdout), relay(self._process.stderr, sys.stderr)]
        self._end = weakref.finalize(self, _end_idle, self._process, self._turns, relays, time.time())

    @property
    def alive(self) -> bool:
        """Whether they take work."""
        return self._end.alive and self._process.poll() is None

    def do(self, work: bytes, keeps: bool = False) -> bytes:
        """Have all ranks do this work, which may keep pairs; return what rank 0 left.

        Raises
        ------
        NotBegunError
            If they died before all of them were there; nothing was done.
        RankError
            If one died, which ends all.
        HimachError
            What a rank reported, in its own class. If all ranks did, they stay.
        """
        try:
            with _passed_on(self._turns), relayed(self._turns.send):
                try:
                    self._turns.call(work)
                    while not self._turns.over and self._process.poll() is None:
                        self._turns.listen(LOOK_EVERY)
                except BaseException as stopped:
                    end_orderly(self._process, self._turns, stopped, keeps)
                    raise
        except BaseException:
            self.end()
            raise
        self._turns.listen(0)
        error, result = self._turns.error(), self._turns.result()
        begun, stays = self._turns.begun, self._turns.over
        if not stays:
            self.end()
        if error is not None:
            raise error
        if result is None:
            raise self._died(begun)
        return result

    def end(self) -> None:
        """End them, if they have not ended; those that have work do not finish it."""
        self._end()

    def _died(self, begun: bool) -> HimachError:
        status = self._process.returncode
        text = died(status, self._size)
        return RankError(text) if begun else NotBegunError(text)


def _end_idle(process: subprocess.Popen[bytes], turns: Turns, relays: Sequence[threading.Thread], began: float) -> None:
    """End ranks that wait for work; kill those that do not end in time."""
    if os.getpid() != turns.process:
        return
    turns.dismiss()
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        end(process)
    turns.close()
    for thread in relays:
        thread.join(timeout=5)
    for stream in (process.stdout, process.stderr):
        assert stream is not None
        stream.close()
    if process.returncode < 0:  # what was to remove their segments was killed
        segments.sweep(began)


@contextlib.contextmanager
def _passed_on(turns: Turns) -> Iterator[None]:
    """Pass on what ranks print while the context lasts, to where this thread's own goes now."""
    stop_read, stop = os.pipe()
    sinks = (sys.stdout, sys.stderr)
    threads = [
        threading.Thread(target=_pass_on, args=(pipe.read, stop_read, sink), daemon=True)
        for pipe, sink in zip(turns.printed, sinks, strict=True)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        os.close(stop)
        for thread in threads:
            thread.join(timeout=5)
        os.close(stop_read)


def _pass_on(source: int, stop: int, sink: IO[str]) -> None:
    """Pass on what comes, and when told to stop what is there by then: a process left behind may print for ever."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    poll = select.poll()
    poll.register(source, select.POLLIN)
    poll.register(stop, select.POLLIN)
    listens, stopped = True, False
    while not stopped:
        stopped = stop in dict(poll.poll())
        text = decoder.decode(there(source), final=stopped)
        try:
            if listens:
                pass_on(text, sink)
        except (OSError, ValueError):  # nobody listens any more; ranks would wait for a reader
            listens = False
