"""Stamps of frames: step, time and box, stored once on the rank that mapped the frame; pairs refer to its row.

`Stamps` is the growing table of a rank. `FrameTable` holds stamps as plain columns, and `Frames` those of several ranks
in one order.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Numbers = npt.NDArray[np.int64]
Places = npt.NDArray[np.uint32]
Boxes = npt.NDArray[np.float32] | None


@dataclass(frozen=True, slots=True)
class FrameTable:
    """Stamps of frames as columns."""

    steps: Numbers  # int64 (n,), positions in the selection
    times: npt.NDArray[np.float64]  # float64 (n,), ps
    boxes: Boxes = None  # float32 (n, 6), Å and degrees, rows of NaN where a frame has no box; None if no frame has one
    sources: Array | None = None
    first_step: int | None = None  # the first step if steps are known to be consecutive; else None

    def __len__(self) -> int:
        return len(self.steps)

    def columns(self) -> dict[str, Any]:
        """Return the columns that are not None, by name."""
        columns = {"steps": self.steps, "times": self.times, "boxes": self.boxes, "sources": self.sources}
        return {name: column for name, column in columns.items() if column is not None}

    @classmethod
    def from_columns(cls, columns: dict[str, Any]) -> "FrameTable":
        """Return the table of given `columns()`."""
        return cls(**columns)

    def chosen(self, rows: Numbers | slice) -> "FrameTable":
        """Return some rows."""
        return FrameTable.from_columns({name: column[rows] for name, column in self.columns().items()})

    @classmethod
    def joined(cls, tables: "Sequence[FrameTable]") -> "FrameTable":
        """Return the concatenated rows of all `tables`."""
        boxed = any(table.boxes is not None for table in tables)
        boxes = [no_boxes(len(table)) if table.boxes is None else table.boxes for table in tables if boxed]
        sources = [table.sources for table in tables if table.sources is not None]
        return cls(
            steps=np.concatenate([np.empty(0, np.int64), *(table.steps for table in tables)]),
            times=np.concatenate([np.empty(0, np.float64), *(table.times for table in tables)]),
            boxes=np.concatenate(boxes) if boxed else None,
            sources=np.concatenate(sources) if sources else None,
        )


def no_boxes(n: int) -> npt.NDArray[np.float32]:
    """Return the boxes of frames that have none."""
    return np.full((n, 6), np.nan, dtype=np.float32)


NO_BOX = no_boxes(1).tobytes()


class Stamps:
    """The growing table of this rank's frames; a frame takes 40 bytes."""

    def __init__(self) -> None:
        self.boxed = False  # whether some frame has a box
        self._steps, self._times, self._boxes = array("q"), array("d"), bytearray()
        self._sources: list[bytes] = []

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, step: int, time: float, box: Any, source: bytes | None) -> int:
        """Add a frame (and the encoded key of its source series); return its row."""
        self._steps.append(step)
        self._times.append(time)
        if box is None:
            self._boxes += NO_BOX
        else:
            self._boxes += np.asarray(box, dtype=np.float32).tobytes()
            self.boxed = True
        if source is not None:
            self._sources.append(source)
        return len(self._steps) - 1

    def append(self, table: FrameTable) -> None:
        """Add the rows of a table."""
        self._steps.frombytes(table.steps.tobytes())
        self._times.frombytes(table.times.tobytes())
        self._boxes += (no_boxes(len(table)) if table.boxes is None else table.boxes).tobytes()
        self.boxed = self.boxed or table.boxes is not None
        self._sources += [] if table.sources is None else table.sources.tolist()

    def table(self, start: int = 0, stop: int | None = None) -> FrameTable:
        """Return the rows from `start` to `stop`."""
        return self.chosen(np.arange(start, len(self) if stop is None else stop))

    def chosen(self, rows: Numbers) -> FrameTable:
        """Return some rows."""
        boxes = np.frombuffer(self._boxes, np.float32).reshape(-1, 6)[rows] if self.boxed else None
        return FrameTable(
            steps=np.frombuffer(self._steps, np.int64)[rows],
            times=np.frombuffer(self._times, np.float64)[rows],
            boxes=None if boxes is None or np.isnan(boxes[:, 0]).all() else boxes,
            sources=np.fromiter(self._sources, dtype=object)[rows] if self._sources else None,
        )


@dataclass(frozen=True)
class Frames:
    """Frames of all ranks: `table`, sorted by frame number, then by source.

    Row i of the table of rank r is row ``places[r][i]`` (uint32) of `table`.
    """

    table: FrameTable
    places: list[Places]

    @classmethod
    def joined(cls, tables: Sequence[FrameTable], forward: bool) -> "Frames":
        """Join the tables of all ranks; `forward` says whether frame numbers ascend with steps."""
        joined = FrameTable.joined(tables)
        time = joined.steps if forward else -joined.steps
        if joined.sources is None:
            order = np.argsort(time, kind="stable")
        else:
            order = np.argsort(joined.sources, kind="stable")
            order = order[np.argsort(time[order], kind="stable")]
        place = np.empty(len(order), dtype=np.uint32)
        place[order] = np.arange(len(order), dtype=np.uint32)
        table = replace(joined, sources=None).chosen(order)
        follow = len(order) > 0 and bool((np.diff(table.steps) == 1).all())
        stops = np.cumsum([len(table) for table in tables]).tolist()
        return cls(
            table=replace(table, first_step=int(table.steps[0]) if follow else None),
            places=[place[stop - len(table) : stop] for stop, table in zip(stops, tables, strict=True)],
        )
