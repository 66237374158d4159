"""`RowRange`: the stamps of some rows in few bytes, and to the last bit.

Steps are runs, or differences in as few bytes as they take. Times are those of a line over the steps, with what is
missing in units of the last place, of double or of single precision; boxes are there once while they stay the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.engine.stamps.table import FrameTable, Numbers, StringColumn

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class _Steps:
    """Steps as the `first` and what follows: `delta` more each, but at the rows `breaks`, where it is `jumps`."""

    first: int
    delta: int
    breaks: npt.NDArray[np.uint32] | None  # None: `jumps` has one for each row but the first
    jumps: Array

    @classmethod
    def of(cls, steps: Numbers) -> _Steps:
        jumps = np.diff(steps)
        delta = int(np.partition(jumps, len(jumps) // 2)[len(jumps) // 2]) if len(jumps) else 1
        breaks = np.flatnonzero(jumps != delta)
        narrow = _narrow(jumps)
        if len(breaks) * (4 + 8) < narrow.nbytes:
            return cls(int(steps[0]), delta, (breaks + 1).astype(np.uint32), jumps[breaks])
        return cls(int(steps[0]), delta, None, narrow)

    def column(self, rows: Numbers) -> Numbers:
        """Return the steps of some rows."""
        if self.breaks is None:
            steps = np.concatenate([[self.first], self.first + np.cumsum(self.jumps, dtype=np.int64)])
            return steps[rows]
        starts = np.concatenate([[0], self.breaks.astype(np.int64)])
        firsts = self.first + np.concatenate([[0], np.cumsum(self.delta * (np.diff(starts) - 1) + self.jumps)])
        run = np.searchsorted(starts, rows, side="right") - 1
        found: Numbers = firsts[run] + self.delta * (rows - starts[run])
        return found


@dataclass(frozen=True, slots=True)
class _Times:
    """Times near ``first + slope * (step - from_step)``, of which their bits are `missing` away, None: nowhere."""

    single: bool
    first: float
    slope: float
    from_step: int
    missing: Array | None

    @classmethod
    def of(cls, times: npt.NDArray[np.float64], steps: Numbers) -> _Times:
        low, high = int(steps.argmin()), int(steps.argmax())
        with np.errstate(all="ignore"):
            slope = (times[high] - times[low]) / max(1, int(steps[high] - steps[low]))
            plain = cls(False, float(times[low]), float(slope), int(steps[low]), None)
            found = [plain._missing(times, steps)]
            single = cls(True, plain.first, plain.slope, plain.from_step, None)
            if found[0].any() and (_bits(times.astype(np.float32).astype(np.float64)) == _bits(times)).all():
                found.append(single._missing(times, steps))
        narrow = [_narrow(missing) for missing in found]
        best = min(range(len(narrow)), key=lambda i: narrow[i].nbytes * bool(narrow[i].any()))
        kept = narrow[best] if narrow[best].any() else None
        return cls(best == 1, plain.first, plain.slope, plain.from_step, kept)

    def _line(self, steps: Numbers) -> Array:
        """Return the bits of what the line gives; two operations, each of which IEEE 754 says the bits of."""
        with np.errstate(all="ignore"):
            line = self.slope * (steps - self.from_step).astype(np.float64)
            line += self.first
            return _bits(line.astype(np.float32) if self.single else line)

    def _missing(self, times: npt.NDArray[np.float64], steps: Numbers) -> Numbers:
        missing: Numbers = (_bits(times.astype(np.float32) if self.single else times) - self._line(steps)).astype(
            np.int64
        )
        return missing

    def column(self, steps: Numbers, rows: Numbers) -> npt.NDArray[np.float64]:
        """Return the times of some rows, whose steps are these."""
        line = self._line(steps)
        if self.missing is not None:
            line += self.missing[rows].astype(line.dtype)
        return line.view(np.float32).astype(np.float64) if self.single else line.view(np.float64)


@dataclass(frozen=True, slots=True)
class RowRange:
    """The stamps of some rows, at least one."""

    rows: int
    _steps: _Steps
    _times: _Times
    _since: npt.NDArray[np.uint32]  # rows from which on a box is another one
    _boxes: npt.NDArray[np.float32] | None
    _sources: StringColumn | None

    @classmethod
    def of(cls, table: FrameTable) -> RowRange:
        """Return the rows of a table."""
        since = np.zeros(1, dtype=np.uint32)
        boxes = table.boxes
        if boxes is not None:
            bits = np.ascontiguousarray(boxes).view(np.uint32)
            since = np.concatenate([since, 1 + np.flatnonzero((bits[1:] != bits[:-1]).any(axis=1)).astype(np.uint32)])
            boxes = boxes[since]
        steps, times = _Steps.of(table.steps), _Times.of(table.times, table.steps)
        return cls(len(table), steps, times, since, boxes, table.sources)

    @property
    def boxed(self) -> bool:
        """Whether a frame may have a box."""
        return self._boxes is not None

    def table(self, rows: Numbers | None = None) -> FrameTable:
        """Return some rows as a table, None: all."""
        rows = np.arange(self.rows) if rows is None else rows
        steps, boxes, sources = self._steps.column(rows), self._boxes, self._sources
        if boxes is not None:
            boxes = boxes[np.searchsorted(self._since, rows, side="right") - 1]
        return FrameTable(
            steps, self._times.column(steps, rows), boxes, None if sources is None else sources.chosen(rows)
        )


def _bits(numbers: Array) -> Array:
    """Return floats as integers, whose differences are in units of the last place; they may go round."""
    return np.ascontiguousarray(numbers).view(np.int32 if numbers.dtype == np.float32 else np.int64)


def _narrow(numbers: Numbers) -> Array:
    """Return integers in as few bytes as they take."""
    if not len(numbers):
        return numbers.astype(np.int8)
    low, high = int(numbers.min()), int(numbers.max())
    kind = next(
        kind
        for kind in (np.int8, np.int16, np.int32, np.int64)
        if np.iinfo(kind).min <= low <= high <= np.iinfo(kind).max
    )
    return numbers.astype(kind)
