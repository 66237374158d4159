"""The stamps of frames: `Stamps`, a table that grows on the rank that maps them, and `Frames`, those of all ranks.

Pairs know their frame as a row of their rank's table. `Frames.joined()` puts the tables of all ranks into one in the
order of frames, and says where each table's rows went.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.engine.pairs.block import objects

Places = npt.NDArray[np.uint32]
NO_BOX = np.full(6, np.nan, dtype=np.float32).tobytes()


@dataclass(frozen=True, slots=True)
class FrameTable:
    """Stamps of frames, stored once for all their pairs.

    Attributes
    ----------
    steps
        int64 (n,), positions in the selection.
    times
        float64 (n,), ps.
    boxes
        float32 (n, 6), Å and degrees, rows of NaN where a frame has no box; None if no frame has one.
    sources
        In the later stages of a chain: for each row the encoded key of the series whose reduce() yielded the pairs,
        which are stamped with that series' first frame: an object array (n,) of bytes. Else None.
    """

    steps: npt.NDArray[np.int64]
    times: npt.NDArray[np.float64]
    boxes: npt.NDArray[np.float32] | None = None
    sources: npt.NDArray[Any] | None = None

    def __len__(self) -> int:
        return len(self.steps)

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """Return the columns that are there, by name: what `FrameTable` is called with to make it again."""
        columns = {"steps": self.steps, "times": self.times, "boxes": self.boxes, "sources": self.sources}
        return {name: column for name, column in columns.items() if column is not None}

    def chosen(self, rows: npt.NDArray[np.int64]) -> FrameTable:
        """Return some rows."""
        return FrameTable(**{name: column[rows] for name, column in self.columns().items()})

    @classmethod
    def joined(cls, tables: Sequence[FrameTable]) -> FrameTable:
        """Return the rows of all `tables`, one table behind the other."""
        boxes = [np.full((len(t), 6), np.nan, np.float32) if t.boxes is None else t.boxes for t in tables]
        boxed = any(table.boxes is not None for table in tables)
        sources = [table.sources for table in tables if table.sources is not None]
        return cls(
            steps=np.concatenate([table.steps for table in tables] or [np.empty(0, np.int64)]),
            times=np.concatenate([table.times for table in tables] or [np.empty(0, np.float64)]),
            boxes=np.concatenate(boxes) if boxed else None,
            sources=np.concatenate(sources) if sources else None,
        )


class Stamps:
    """The table of this rank's frames, to which rows are added."""

    def __init__(self) -> None:
        self._steps: list[int] = []
        self._times: list[float] = []
        self._boxes: list[bytes] = []
        self._sources: list[bytes] = []
        self._boxed = False
        self._tables: list[FrameTable] = []
        self._first = 0  # row of what is in the lists

    def __len__(self) -> int:
        return self._first + len(self._steps)

    def add(self, step: int, time: float, box: Any, source: bytes | None) -> int:
        """Add a frame (and the encoded key of the series it stands for); return its row."""
        self._steps.append(step)
        self._times.append(time)
        if box is None:
            self._boxes.append(NO_BOX)
        else:
            self._boxes.append(np.asarray(box, dtype=np.float32).tobytes())
            self._boxed = True
        if source is not None:
            self._sources.append(source)
        return self._first + len(self._steps) - 1

    def compact(self) -> None:
        """Turn what was added since into arrays, which take a tenth of the memory."""
        if not self._steps:
            return
        self._tables.append(
            FrameTable(
                steps=np.array(self._steps, dtype=np.int64),
                times=np.array(self._times, dtype=np.float64),
                boxes=np.frombuffer(b"".join(self._boxes), dtype=np.float32).reshape(-1, 6) if self._boxed else None,
                sources=objects(self._sources) if self._sources else None,
            )
        )
        self._first += len(self._steps)
        self._steps, self._times, self._boxes, self._sources = [], [], [], []
        self._boxed = False

    def append(self, table: FrameTable) -> None:
        """Add the rows of a table."""
        self.compact()
        self._tables.append(table)
        self._first += len(table)

    def rows(self, first: int) -> FrameTable:
        """Return the rows from `first` on, where a table was compacted or appended."""
        self.compact()
        tables: list[FrameTable] = []
        left = self._first
        for table in reversed(self._tables):
            if left <= first:
                break
            left -= len(table)
            tables.insert(0, table)
        joined = FrameTable.joined(tables)
        return joined if left == first else joined.chosen(np.arange(first - left, len(joined)))

    def table(self) -> FrameTable:
        """Return all rows."""
        self.compact()
        self._tables = [FrameTable.joined(self._tables)]
        return self._tables[0]


@dataclass(frozen=True)
class Frames:
    """The frames of all ranks: `table`, in order of frame number and then of source.

    Row i of the table of rank r is row ``places[r][i]`` of it (uint32).
    """

    table: FrameTable
    places: list[Places]

    @classmethod
    def joined(cls, tables: Sequence[FrameTable], forward: bool) -> Frames:
        """Join the tables of all ranks; `forward` says whether frame numbers ascend with steps."""
        joined = FrameTable.joined(tables)
        time = joined.steps if forward else -joined.steps
        if joined.sources is None:
            order = np.argsort(time, kind="stable")
        else:
            steps, sources = time.tolist(), joined.sources.tolist()
            order = np.array(sorted(range(len(joined)), key=lambda row: (steps[row], sources[row])), dtype=np.int64)
        place = np.empty(len(order), dtype=np.uint32)
        place[order] = np.arange(len(order), dtype=np.uint32)
        ends = np.cumsum([len(table) for table in tables]).tolist()
        return cls(
            table=replace(joined, sources=None).chosen(order),
            places=[place[end - len(table) : end] for end, table in zip(ends, tables, strict=True)],
        )
