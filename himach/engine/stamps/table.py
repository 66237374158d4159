"""`FrameTable`, stamps of frames as columns, and `StringColumn`, a column of byte strings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
#: Bytes of a text that are compared at a time.
COMPARED_BYTES = 24


@dataclass(frozen=True, slots=True)
class StringColumn:
    """Byte strings as two columns: text i is ``data[ends[i - 1]:ends[i]]``, uint8; `ends` is int64 (n,).

    None is the beginning of another one: so it is with encoded keys.
    """

    data: npt.NDArray[np.uint8]
    ends: Numbers

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def lengths(self) -> Numbers:
        """int64 (n,): how many bytes each has."""
        return np.diff(self.ends, prepend=np.int64(0))

    def chosen(self, rows: Numbers) -> StringColumn:
        """Return some of them."""
        lengths = self.lengths[rows]
        ends = np.cumsum(lengths)
        places = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(self.ends[rows] - ends, lengths)
        return StringColumn(self.data[places], ends)

    @classmethod
    def joined(cls, texts: Sequence[StringColumn]) -> StringColumn:
        """Return those of all `texts`, one behind the other."""
        sizes = np.array([len(some.data) for some in texts], dtype=np.int64)
        before = (np.cumsum(sizes) - sizes).tolist()
        return cls(
            np.concatenate([some.data for some in texts]),
            np.concatenate([some.ends + start for some, start in zip(texts, before, strict=True)]),
        )

    def order(self, first: Numbers) -> Numbers:
        """Return the places of rows in the order of `first`, int64 (n,), and then of their texts.

        Examples
        --------
        >>> texts = StringColumn(np.frombuffer(b"bab", np.uint8), np.array([1, 2, 3]))
        >>> texts.order(np.array([5, 5, 4])).tolist()
        [2, 1, 0]
        """
        lengths, starts = self.lengths, self.ends - self.lengths
        order = np.argsort(first, kind="stable")
        # Rows that are not told apart yet, where in the order they are, and by number what they have in common.
        rows, places, at = order, np.arange(len(order)), 0
        common = np.cumsum(np.diff(first[order], prepend=first[order[:1]]) != 0)
        while True:
            alike = (np.bincount(common)[common] > 1) & (lengths[rows] > at) if len(rows) else np.empty(0, np.bool_)
            rows, places, common = rows[alike], places[alike], common[alike]
            if not len(rows):
                return order
            words = self._words(starts[rows] + at, lengths[rows] - at)
            sorts = np.lexsort((*words.T[::-1], common))
            rows, words, common = rows[sorts], words[sorts], common[sorts]
            order[places] = rows
            differs = (words[1:] != words[:-1]).any(axis=1) | (np.diff(common) != 0)
            common = np.concatenate([[0], np.cumsum(differs)])
            at += COMPARED_BYTES

    def _words(self, starts: Numbers, lengths: Numbers) -> npt.NDArray[np.uint64]:
        """Return the first bytes from `starts` on, zeros behind each text's end, as words that compare alike."""
        some = np.zeros((len(starts), COMPARED_BYTES), dtype=np.uint8)
        for column in range(min(COMPARED_BYTES, int(lengths.max()))):
            inside = np.flatnonzero(lengths > column)
            some[inside, column] = self.data[starts[inside] + column]
        return some.view(">u8").astype(np.uint64)


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
        which are stamped with that series' first frame. Else None.
    since
        The first step, where it was found that steps follow one another; else None.
    """

    steps: npt.NDArray[np.int64]
    times: npt.NDArray[np.float64]
    boxes: npt.NDArray[np.float32] | None = None
    sources: StringColumn | None = None
    since: int | None = None

    def __len__(self) -> int:
        return len(self.steps)

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """Return the columns that are there, by name: what `of` makes the table of again."""
        columns: dict[str, npt.NDArray[Any]] = {"steps": self.steps, "times": self.times}
        if self.boxes is not None:
            columns["boxes"] = self.boxes
        if self.sources is not None:
            columns |= {"data": self.sources.data, "ends": self.sources.ends}
        return columns

    @classmethod
    def of(cls, columns: dict[str, npt.NDArray[Any]]) -> FrameTable:
        """Return the table of which these are the columns."""
        sources = StringColumn(columns["data"], columns["ends"]) if "ends" in columns else None
        return cls(columns["steps"], columns["times"], columns.get("boxes"), sources)

    def chosen(self, rows: npt.NDArray[np.int64]) -> FrameTable:
        """Return some rows."""
        boxes = None if self.boxes is None else self.boxes[rows]
        sources = None if self.sources is None else self.sources.chosen(rows)
        return FrameTable(self.steps[rows], self.times[rows], boxes, sources)

    @classmethod
    def joined(cls, tables: Sequence[FrameTable]) -> FrameTable:
        """Return the rows of all `tables`, one table behind the other."""
        boxes = [no_boxes(len(table)) if table.boxes is None else table.boxes for table in tables]
        boxed = any(table.boxes is not None for table in tables)
        sources = [table.sources for table in tables if table.sources is not None]
        return cls(
            steps=np.concatenate([table.steps for table in tables] or [np.empty(0, np.int64)]),
            times=np.concatenate([table.times for table in tables] or [np.empty(0, np.float64)]),
            boxes=np.concatenate(boxes) if boxed else None,
            sources=StringColumn.joined(sources) if sources else None,
        )


def no_boxes(n: int) -> npt.NDArray[np.float32]:
    """Return the boxes of frames that have none."""
    return np.full((n, 6), np.nan, dtype=np.float32)
