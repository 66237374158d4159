"""`Runs`: where the blocks of finished tasks are put, in memory.

This is the docking point of spill and checkpoint: a task's blocks are put whole or not at all, `Runs.done()` says which
steps are in, and the shuffle asks for blocks by shards only.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from himach.engine.columns import Block

__all__ = ["Runs"]

Steps = npt.NDArray[np.int64]


class Runs:
    """The blocks of finished tasks."""

    def __init__(self) -> None:
        self._tasks: list[tuple[Steps, list[Block]]] = []

    def put(self, task: Steps, parts: list[Block]) -> None:
        """Put the blocks of the finished steps `task` (int64 (n,)), all at once."""
        self._tasks.append((task, parts))

    def done(self) -> Steps:
        """Return the steps that are in, int64 (n,), ascending."""
        return np.sort(np.concatenate([task for task, _ in self._tasks] or [np.empty(0, np.int64)]))

    def blocks(self, start: int, stop: int) -> Iterator[Block]:
        """Give the shards from `start` to `stop` of all blocks that have pairs in them."""
        for _, parts in self._tasks:
            for block in parts:
                part = block.part(start, stop)
                if len(part):
                    yield part

    def clear(self) -> None:
        """Forget everything that was put."""
        self._tasks.clear()
