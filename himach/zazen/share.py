"""A node's share of the frames: a set of positions in the node's memory from which its ranks take tasks.

`Share` is what `himach.zazen.assign` returns. `Tasks` cuts a share into tasks by arithmetic alone, the same on every
rank, so that a task is known by its number and taking one costs one addition to the node's counter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
import numpy.typing as npt

from himach.parallel.communicator import Counter, SharedWords
from himach.zazen.positions import Bits
from himach.zazen.remaining import Remaining, Selection, numbers_at

MAX_TASK_FRAMES = 512
#: A task is this part of what remains for each rank to read, if all were equally fast.
PART_OF_RANK = 4
#: The last tasks are this part of the first.
SMALLEST = 32


class Tasks:
    """A share of `count` frames cut into tasks, which get smaller towards the end, so that all ranks end together.

    Parameters
    ----------
    count
        Frames in the share.
    ranks
        Ranks of the node.

    References
    ----------
    Guided self-scheduling: Polychronopoulos and Kuck, IEEE Trans. Comput. C-36, 1425 (1987).
    """

    def __init__(self, count: int, ranks: int) -> None:
        self.count = count
        parts = PART_OF_RANK * ranks
        self.task_frames = max(1, min(MAX_TASK_FRAMES, count // parts))
        smallest = max(1, self.task_frames // SMALLEST)
        self._n_equal = max(0, count - self.task_frames * parts) // self.task_frames
        starts, start = [], self._n_equal * self.task_frames
        while start < count:
            starts.append(start)
            start += min(self.task_frames, max(smallest, (count - start) // parts))
        self._starts = [*starts, count]

    def __len__(self) -> int:
        return self._n_equal + len(self._starts) - 1

    def bounds(self, number: int) -> tuple[int, int]:
        """Return the first frame of task `number`, counted within the share, and the one after its last."""
        return self._start(number), self._start(number + 1)

    def _start(self, number: int) -> int:
        return number * self.task_frames if number < self._n_equal else self._starts[number - self._n_equal]


class Share:
    """The frames that this rank's node reads; its ranks take them in tasks.

    Attributes
    ----------
    counts
        Frames over all nodes by the rule that assigned them: ``native``, ``alien``, ``residue``.
    rounds
        Allreduces of bitmaps that it took, by kind; empty on one node.
    seconds
        Time of this node for ``sets`` (turning what the cache holds into bitmaps) and ``rounds`` (all else: what is
        exchanged and decided, and waiting for other nodes).
    size
        Frames in the node's share.
    """

    def __init__(
        self,
        *,
        frames: Selection,
        positions: Bits,
        shared: SharedWords,
        counter: Counter,
        ranks: int,
        counts: Mapping[str, int],
        rounds: Mapping[str, int],
        seconds: Mapping[str, float],
        surplus: Callable[[], Iterable[npt.NDArray[np.int64]]],
    ) -> None:
        self.counts = dict(counts)
        self.rounds = dict(rounds)
        self.seconds = dict(seconds)
        self.size = positions.count
        self._frames = frames
        self._positions: Bits | None = positions
        self._shared = shared
        self._counter = counter
        self._tasks = Tasks(self.size, ranks)
        self._surplus = surplus

    def take(self) -> npt.NDArray[np.int64] | None:
        """Return the steps of the next task, or None when the node's share is used up.

        Returns
        -------
        ndarray or None
            int64 (n,), ascending: positions in the selection. Each step goes to one rank only.
        """
        if self._positions is None:
            return None
        number = self._counter.next()
        if number >= len(self._tasks):
            return None
        positions = self._positions.some(*self._tasks.bounds(number))
        return self._frames.steps(positions) if isinstance(self._frames, Remaining) else positions

    def surplus(self) -> Iterator[npt.NDArray[np.int64]]:
        """Yield the numbers of alien frames that this node's store should drop after the run (on its first rank).

        int64, some at a time. Another copy of each is kept: a native one, or the alien one of the holder that reads the
        frame in this run.
        """
        for positions in self._surplus():
            yield numbers_at(self._frames, positions)

    def close(self) -> None:
        """Free the node's shared memory (collective over the node); nothing can be taken any more."""
        if self._positions is not None:
            self._positions = None  # its arrays are views of that memory
            self._counter.close()
            self._shared.close()
