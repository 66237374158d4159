"""Stamps of frames: step, time and box, stored once on the rank that mapped the frame; pairs refer to its row.

`Stamps` is the growing table of a rank. `FrameTable` holds stamps as plain columns, and `Frames` those of several ranks
in one order.

Sealed rows of `Stamps` are compressed without loss: steps as runs, times as a line over the steps plus residuals in
units of the last place, equal neighbouring boxes once. Any rows can be read alone.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Numbers = npt.NDArray[np.int64]
Places = npt.NDArray[np.uint32]
Times = npt.NDArray[np.float64]
Boxes = npt.NDArray[np.float32] | None

#: Most rows compressed together.
RANGE_ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class FrameTable:
    """Stamps of frames as columns."""

    steps: Numbers  # int64 (n,), positions in the selection
    times: Times  # float64 (n,), ps
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


def narrow(numbers: Array) -> Array:
    """Return integers in the smallest type that holds them, signed if theirs is."""
    low, high = (int(numbers.min()), int(numbers.max())) if len(numbers) else (0, 0)
    return numbers.astype(np.min_scalar_type(high if numbers.dtype.kind == "u" else min(low, ~high)))


class _Stretch:
    """Compressed stamps of one or more neighbouring rows."""

    def __init__(self, steps: Numbers, times: Times, box_rows: Array, boxes: Boxes, sources: Array | None) -> None:
        jumps = np.diff(steps)
        delta = int(np.partition(jumps, len(jumps) // 2)[len(jumps) // 2]) if len(jumps) else 1
        breaks = np.flatnonzero(jumps != delta)
        self._first, self._delta = int(steps[0]), delta
        self._breaks, self._jumps = narrow(breaks), narrow(jumps[breaks])
        low, high = steps.argmin(), steps.argmax()
        with np.errstate(all="ignore"):
            slope = (times[high] - times[low]) / max(1, int(steps[high]) - int(steps[low]))
            self._line = int(steps[low]), float(times[low]), float(slope)
            single = times.astype(np.float32)
            self._single = bool((_bits(single.astype(np.float64)) == _bits(times)).all())
            residual = narrow(_bits(single if self._single else times) - _bits(self._times(steps)))
        self._residual = residual if residual.any() else np.broadcast_to(np.int8(0), len(steps))
        self._box_rows, self._boxes, self._sources = narrow(box_rows), boxes, sources

    def _times(self, steps: Numbers) -> Array:
        """Return the times on the line, by two operations whose bits IEEE 754 defines."""
        step, time, slope = self._line
        with np.errstate(all="ignore"):
            times = slope * (steps - step).astype(np.float64) + time
            return times.astype(np.float32) if self._single else times

    def table(self, rows: Numbers) -> FrameTable:
        """Return some rows."""
        starts = np.concatenate([[0], self._breaks + np.int64(1)])
        firsts = self._first + np.concatenate([[0], np.cumsum(self._delta * (np.diff(starts) - 1) + self._jumps)])
        run = np.searchsorted(starts, rows, side="right") - 1
        steps = firsts[run] + self._delta * (rows - starts[run])
        times = self._times(steps)
        times = (_bits(times) + self._residual[rows]).view(times.dtype).astype(np.float64)
        boxes = None if self._boxes is None else self._boxes[np.searchsorted(self._box_rows, rows, side="right") - 1]
        return FrameTable(steps, times, boxes, None if self._sources is None else self._sources[rows])


def _bits(numbers: Array) -> Array:
    """Return floats as integers; their differences are in units of the last place and may wrap around."""
    return np.ascontiguousarray(numbers).view(np.int32 if numbers.dtype == np.float32 else np.int64)


class Stamps:
    """The growing table of this rank's frames."""

    def __init__(self) -> None:
        self.boxed = False
        self._stretches: list[_Stretch] = []
        self._firsts = [0]  # first row of each stretch, and of the next one
        self._begin()

    def _begin(self) -> None:
        self._steps, self._times, self._sources = array("q"), array("d"), list[bytes]()
        self._box_rows, self._boxes, self._box = array("I"), bytearray(), b""  # the last box

    def __len__(self) -> int:
        return self._firsts[-1] + len(self._steps)

    def add(self, step: int, time: float, box: Any, source: bytes | None) -> int:
        """Add a frame (and the encoded key of its source series); return its row."""
        steps = self._steps
        row = self._firsts[-1] + len(steps)
        stamped = NO_BOX if box is None else np.asarray(box, dtype=np.float32).tobytes()
        if stamped != self._box:
            self._box = stamped
            self._box_rows.append(len(steps))
            self._boxes += stamped
        steps.append(step)
        self._times.append(time)
        if source is not None:
            self._sources.append(source)
        if len(steps) == RANGE_ROWS:
            self.seal()
        return row

    def append(self, table: FrameTable) -> None:
        """Add the rows of a table."""
        self.seal()
        for start in range(0, len(table), RANGE_ROWS):
            part = table.chosen(slice(start, start + RANGE_ROWS))
            box_rows, boxes = np.zeros(1, np.int64), part.boxes
            if boxes is not None:
                bits = _bits(boxes)
                box_rows = np.append(box_rows, 1 + np.flatnonzero((bits[1:] != bits[:-1]).any(axis=1)))
                boxes = boxes[box_rows]
            self._put(part.steps, part.times, box_rows, boxes, part.sources)

    def seal(self) -> None:
        """Compress the rows that were added one by one."""
        if not self._steps:
            return
        steps, times, box_rows = (np.array(column) for column in (self._steps, self._times, self._box_rows))
        boxes = np.frombuffer(self._boxes, dtype=np.float32).reshape(-1, 6) if self._boxes != NO_BOX else None
        sources = np.fromiter(self._sources, dtype=object, count=len(self._sources)) if self._sources else None
        self._put(steps, times, box_rows, boxes, sources)
        self._begin()

    def _put(self, steps: Numbers, times: Times, box_rows: Array, boxes: Boxes, sources: Array | None) -> None:
        self.boxed = self.boxed or boxes is not None
        self._stretches.append(_Stretch(steps, times, box_rows, boxes, sources))
        self._firsts.append(self._firsts[-1] + len(steps))

    def table(self, start: int = 0, stop: int | None = None) -> FrameTable:
        """Return the rows from `start` to `stop`."""
        return self.chosen(np.arange(start, len(self) if stop is None else stop))

    def chosen(self, rows: Numbers) -> FrameTable:
        """Return some rows, ascending."""
        if len(rows) and rows[-1] >= self._firsts[-1]:  # only then: another thread may read sealed rows
            self.seal()
        firsts = self._firsts
        edges = np.searchsorted(rows, firsts).tolist()
        return FrameTable.joined(
            [
                stretch.table(rows[start:stop] - first)
                for stretch, first, (start, stop) in zip(self._stretches, firsts, pairwise(edges), strict=False)
                if stop > start
            ]
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
