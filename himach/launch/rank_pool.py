"""Ranks of this machine that do work after work: `RankPool`; or one piece of it: `spawn()`.

Each piece is done by ranks that have done none before. Where the process that this one has started can fork them, it
does so again as soon as those before have ended, and these initialise MPI and wait; else ranks are started by mpiexec
for each piece.
"""

from __future__ import annotations

import os
import subprocess
import time
import weakref
from collections.abc import Sequence

from himach.errors import RankError
from himach.launch.parent_channel import RankChannel
from himach.launch.spawn import GRACE, died, end, end_orderly, rank_environment, relayed_output, start
from himach.launch.stop_requests import relayed
from himach.parallel import segments
from himach.parallel.progress import NotebookBar

__all__ = ["NotBegunError", "RankPool", "spawn"]

LOOK_EVERY = 0.02  # seconds between looks whether mpiexec lives; ranks that were forked say so at once


class NotBegunError(RankError):
    """Ranks died before they began with what they were asked for."""


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

    Attributes
    ----------
    environ
        What they were started with.

    Raises
    ------
    RankError
        If there is no mpiexec.
    """

    def __init__(self, command: Sequence[str], size: int, forks: bool = False) -> None:
        self.environ = rank_environment()
        self._size = size
        self._channel = RankChannel()
        began = time.time()
        try:
            self._process = start(command, size, self.environ | self._channel.variable, forks)
        except BaseException:
            self._channel.close()
            raise
        self._end = weakref.finalize(self, _end, self._process, self._channel, began)

    @property
    def alive(self) -> bool:
        """Whether they take work."""
        return self._end.alive and self._process.poll() is None

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
        bar = NotebookBar(channel.last_words)
        try:
            with relayed_output(process), relayed(channel.send):
                try:
                    channel.call(work, self._size, last)
                    while not channel.done and process.poll() is None:
                        channel.listen(LOOK_EVERY)
                        bar.look()
                except BaseException as stopped:
                    end_orderly(process, channel, stopped, keeps)
                    raise
                finally:
                    bar.close()
        except BaseException:
            self.end()
            raise
        channel.listen(0)
        error, result = channel.error(), channel.result()
        begun, status = channel.begun, process.returncode
        failed = bool(status) or result is None
        death = died(status or 0, self._size, channel.last_words, channel.died()) if failed else ""
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
    return RankPool(command, ranks, forks).do(work, keeps, last=True)
