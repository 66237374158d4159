"""`Stamps`: the table of a rank's frames, which grows as they are mapped, in some three bytes a frame as a rule."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from itertools import pairwise
from typing import Any

import numpy as np

from himach.engine.stamps.stretch import RowRange
from himach.engine.stamps.table import FrameTable, Numbers, StringColumn, no_boxes

NO_BOX = no_boxes(1).tobytes()
#: Rows of a stretch, at most.
RANGE_ROWS = 1 << 16


class Stamps:
    """The table of this rank's frames, to which rows are added.

    Attributes
    ----------
    boxed
        Whether a frame has a box.
    """

    def __init__(self) -> None:
        self.boxed = False
        self._stretches: list[RowRange] = []
        self._firsts = [0]  # row of each stretch, and of what follows
        self._begin()

    def _begin(self) -> None:
        """Begin a stretch."""
        self._steps, self._times = array("q"), array("d")
        self._box: bytes | None = None  # the last one
        self._since, self._boxes = array("I"), bytearray()
        self._sources, self._ends = bytearray(), array("q")

    def __len__(self) -> int:
        return self._firsts[-1] + len(self._steps)

    def add(self, step: int, time: float, box: Any, source: bytes | None) -> int:
        """Add a frame (and the encoded key of the series it stands for); return its row."""
        row = len(self._steps)
        self._steps.append(step)
        self._times.append(time)
        stamped = NO_BOX if box is None else np.asarray(box, dtype=np.float32).tobytes()
        if stamped != self._box:
            self._box = stamped
            self._since.append(row)
            self._boxes += stamped
        if source is not None:
            self._sources += source
            self._ends.append(len(self._sources))
        row += self._firsts[-1]
        if len(self._steps) == RANGE_ROWS:
            self.seal()
        return row

    def append(self, table: FrameTable) -> None:
        """Add the rows of a table."""
        self.seal()
        for start in range(0, len(table), RANGE_ROWS):
            self._put(table.chosen(np.arange(start, min(start + RANGE_ROWS, len(table)))))

    def seal(self) -> None:
        """Let no more rows into the stretch that was begun."""
        rows = len(self._steps)
        if rows == 0:
            return
        boxes = np.frombuffer(self._boxes, dtype=np.float32).reshape(-1, 6)
        since: Numbers = np.array([*self._since, rows], dtype=np.int64)
        sources = StringColumn(np.frombuffer(self._sources, np.uint8), np.array(self._ends)) if self._ends else None
        boxed = self._boxes != NO_BOX
        self._put(
            FrameTable(
                np.array(self._steps, dtype=np.int64),
                np.array(self._times, dtype=np.float64),
                np.repeat(boxes, since[1:] - since[:-1], axis=0) if boxed else None,
                sources,
            )
        )
        self._begin()

    def _put(self, table: FrameTable) -> None:
        self.boxed = self.boxed or table.boxes is not None
        self._stretches.append(RowRange.of(table))
        self._firsts.append(self._firsts[-1] + len(table))

    def table(self, start: int = 0, stop: int | None = None) -> FrameTable:
        """Return the rows from `start` to `stop`."""
        stop = len(self) if stop is None else stop
        if stop > self._firsts[-1]:  # else another thread may ask
            self.seal()
        tables = []
        for number in range(bisect_right(self._firsts, start) - 1, bisect_left(self._firsts, stop)):
            first, last = self._firsts[number : number + 2]
            tables.append(self._stretches[number].table(np.arange(max(start, first), min(stop, last)) - first))
        return FrameTable.joined(tables)

    def chosen(self, rows: Numbers) -> FrameTable:
        """Return some rows, ascending."""
        self.seal()
        edges = np.searchsorted(rows, self._firsts).tolist()
        return FrameTable.joined(
            [
                stretch.table(rows[start:stop] - first)
                for stretch, first, (start, stop) in zip(self._stretches, self._firsts, pairwise(edges), strict=False)
                if stop > start
            ]
        )
