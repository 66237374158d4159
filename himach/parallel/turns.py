"""What a process and ranks that stay hand over, work after work: `Turns` on its side, `StayingRank` on theirs.

A turn is one piece of work. A rank that has none sleeps in a read of a pipe, and says by another one how far it is.
What it prints goes through pipes of the starting process too, so that all of a turn is there when the turn is over.
"""

from __future__ import annotations

import contextlib
import os
import select
from typing import ClassVar, NamedTuple

from himach.parallel.handover import Handover, SpawnedRank

__all__ = ["StayingRank", "Turns"]

BEGUN, DONE = b"b", b"d"


class Pipe(NamedTuple):
    """Both ends of a pipe, as descriptors."""

    read: int
    write: int


class Turns(Handover):
    """The side of the process that starts ranks; to be closed.

    Parameters
    ----------
    ranks
        Number of ranks.

    Attributes
    ----------
    printed
        What the ranks write to standard output and to standard error.
    """

    def __init__(self, ranks: int) -> None:
        super().__init__()
        self._ranks = ranks
        self._calls, self._bell, *printed = (Pipe(*os.pipe()) for _ in range(4))
        self.printed = printed
        self._heard = b""

    def _numbers(self) -> tuple[int, ...]:
        out, err = self.printed
        return (*super()._numbers(), self._calls.read, self._bell.write, out.write, err.write)

    def call(self, work: bytes) -> None:
        """Have every rank take its turn at this work."""
        self.put(work)
        self._heard = b""
        os.write(self._calls.write, b"." * self._ranks)

    def listen(self, seconds: float) -> None:
        """Wait so long for a word of the ranks, and take it in."""
        poll = select.poll()
        poll.register(self._bell.read, select.POLLIN)
        if poll.poll(1000 * seconds):
            self._heard += os.read(self._bell.read, 65536)

    @property
    def begun(self) -> bool:
        """Whether all ranks were there when this turn began."""
        return BEGUN in self._heard

    @property
    def over(self) -> bool:
        """Whether every rank is done with this turn, and stays."""
        return self._heard.count(DONE) == self._ranks

    def dismiss(self) -> None:
        """Let ranks that have no work end by themselves."""
        with contextlib.suppress(OSError):
            os.close(self._calls.write)
        self._calls = self._calls._replace(write=-1)

    def close(self) -> None:
        """Kill the ranks that are left, and let go of all."""
        super().close()
        for pipe in (self._calls, self._bell, *self.printed):
            for descriptor in pipe:
                if descriptor >= 0:
                    os.close(descriptor)

    def let_go(self) -> None:
        """Keep no rank alive; in a child that was forked from the process that started them."""
        super().let_go()
        self.dismiss()


class StayingRank(SpawnedRank):
    """The side of a rank that stays."""

    NUMBERS: ClassVar = SpawnedRank.NUMBERS + 4

    def __init__(self, *numbers: int) -> None:
        super().__init__(*numbers[: SpawnedRank.NUMBERS])
        self._calls, self._bell, *self._printed = numbers[SpawnedRank.NUMBERS :]

    def answer(self) -> None:
        """From now on write to the pipes of the process that started this one, and wait for its calls."""
        for descriptor, theirs in zip((1, 2), self._printed, strict=True):
            pipe = os.open(self._path(theirs), os.O_WRONLY)
            os.dup2(pipe, descriptor)
            os.close(pipe)
        self._calls = os.open(self._path(self._calls), os.O_RDONLY)
        self._bell = os.open(self._path(self._bell), os.O_WRONLY)

    def wait(self) -> bool:
        """Wait for the next turn; return False if there is none, and this rank may end."""
        return bool(os.read(self._calls, 1))

    def begin(self) -> None:
        """Say that all ranks are there: from now on what happens is the work's doing."""
        os.write(self._bell, BEGUN)

    def done(self) -> None:
        """Say that this rank is done with its turn, and stays."""
        os.write(self._bell, DONE)
