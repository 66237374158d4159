"""`Series`: one key's values in frame order, as reduce() and combine() get them; `ManySeries`, those of many keys."""

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from himach.engine.pairs.values import as_row, restore
from himach.engine.stamps import FrameTable
from himach.selection import Selected, numbers_at

if TYPE_CHECKING:
    from himach.uncertainty import Estimate

Rows = npt.NDArray[np.uint32]


class Series:
    """One key's values in frame order, those of one frame in the order of emission.

    Its columns are made when they are asked for. Iterating gives (time, value).

    Attributes
    ----------
    frames
        int64 (m,), frame numbers, non-decreasing.
    steps
        int64 (m,), positions in the selection; they descend where the selection runs backwards.
    times
        float64 (m,), ps.
    boxes
        float32 (m, 6), Å and degrees; a row of NaN for a frame without a box, None if none of the frames has one.
    values
        Array (m, ...) if all values came in `Pairs` of one dtype and shape, or are what combine() made of such: numbers
        or arrays of one dtype and shape; and if all were yielded as arrays of one dtype and shape. None if they came
        in `Pairs` without values ("present in this frame"). A list otherwise.
    """

    __slots__ = ("_arrays", "_at", "_numbers", "_table", "_values")

    _arrays: Any  # set on first use

    def __init__(self, table: FrameTable, numbers: Selected, at: Rows, values: Any) -> None:
        self._table = table
        self._numbers = numbers
        self._at = at
        self._values = values

    def __len__(self) -> int:
        return len(self._at)

    def __iter__(self) -> Iterator[tuple[float, Any]]:
        values = self.values
        return zip(self.times.tolist(), [None] * len(self) if values is None else values, strict=True)

    @property
    def steps(self) -> npt.NDArray[np.int64]:
        """Positions in the selection."""
        first_step = self._table.first_step
        if first_step is None:
            return self._table.steps.take(self._at)
        steps = self._at.astype(np.int64)
        if first_step:
            steps += first_step
        return steps

    @property
    def frames(self) -> npt.NDArray[np.int64]:
        """Frame numbers."""
        return numbers_at(self._numbers, self.steps)

    @property
    def times(self) -> npt.NDArray[np.float64]:
        """Times in ps."""
        return self._table.times.take(self._at)

    @property
    def boxes(self) -> npt.NDArray[np.float32] | None:
        """Boxes, Å and degrees."""
        if self._table.boxes is None:
            return None
        boxes = self._table.boxes[self._at]
        return None if np.isnan(boxes[:, 0]).all() else boxes

    @property
    def values(self) -> Any:
        """The values: an array, a list, or None for presence."""
        values = self.plain()
        if isinstance(values, list) and isinstance(values[0], np.ndarray):
            try:
                return self._arrays
            except AttributeError:
                self._arrays = values = _stack_values(values)
        return values

    def mean(self, level: float = 0.95) -> "Estimate[float]":
        """Return the mean of values that are numbers, at most one a frame, with an interval of that confidence.

        Returns
        -------
        himach.uncertainty.Estimate
            As of `himach.uncertainty.mean`; as the result of a reduce() it is a row of mean, low, high and n_eff.

        Raises
        ------
        UsageError
            If the values are no finite real numbers.
        """
        from himach.uncertainty import mean

        return mean(self.values, level)

    def plain(self) -> Any:
        """Return the values; those yielded one by one as a list, whatever they are."""
        values = self._values
        if isinstance(values, np.ndarray) and values.dtype.hasobject:
            values = self._values = [restore(value) for value in values]
        return values

    def first(self) -> tuple[int, float, npt.NDArray[np.float32] | None]:
        """Return step, time and box of the first frame."""
        row = int(self._at[0])
        box = None if self._table.boxes is None else self._table.boxes[row]
        if box is not None and np.isnan(box[0]):
            box = None
        return int(self._table.steps[row]), float(self._table.times[row]), box

    def folded(self, value: Any) -> "Series":
        """Return the series of one combined value, stamped with the first frame."""
        row = self.row(value)
        return Series(self._table, self._numbers, self._at[:1], [value] if row is None else row[np.newaxis])

    def row(self, value: Any) -> npt.NDArray[Any] | None:
        """Return a combined value as a row of a column, if the series' values are a column too; else None.

        So combine() and reduce() get columns for values from `Pairs`, however often they were combined.
        """
        columns = isinstance(self._values, np.ndarray) and not self._values.dtype.hasobject
        return as_row(value) if columns else None

    def part(self, start: int, stop: int) -> "Series":
        """Return the rows from `start` to `stop` as a series."""
        values = None if self._values is None else self._values[start:stop]
        return Series(self._table, self._numbers, self._at[start:stop], values)

    def columns(self) -> tuple[FrameTable, Selected, Rows, Any]:
        """Return the series' components: table of frames, frame numbers, rows of the table, values."""
        return self._table, self._numbers, self._at, self._values

    def __repr__(self) -> str:
        return f"Series of {len(self)} values"

    def __reduce__(self) -> Any:
        raise TypeError("a Series belongs to reduce(); return what is needed of it, such as series.values")


def _stack_values(values: list[Any]) -> Any:
    """Return arrays of one dtype and shape as one array; other values unchanged."""
    first = values[0]
    equal = all(
        isinstance(value, np.ndarray) and value.dtype == first.dtype and value.shape == first.shape for value in values
    )
    return np.stack(values) if equal and not first.dtype.hasobject else values


class ManySeries:
    """The series of many keys, one behind the other, as reduce_many() gets them.

    Those of key i are the rows ``offsets[i]:offsets[i + 1]`` of every column, in frame order. ``series[i]`` is key i's
    `Series`, and iterating gives all of them.

    Attributes
    ----------
    offsets
        int64 (n_keys + 1,), from 0 to the number of pairs m.
    frames, steps, times
        As those of a `Series`, for all m pairs.
    values
        The same, but a list of what was yielded one by one in any case: so it does not depend on which keys come
        together.
    boxes
        float32 (m, 6), Å and degrees; a row of NaN for a frame without a box, None if no frame of the run that has
        pairs has one: so it does not depend on which keys come together.
    """

    __slots__ = ("_all", "offsets")

    def __init__(
        self, table: FrameTable, numbers: Selected, offsets: npt.NDArray[np.int64], at: Rows, values: Any
    ) -> None:
        self.offsets = offsets
        self._all = Series(table, numbers, at, values)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, key: int) -> Series:
        place = range(len(self))[key]
        return self._all.part(*self.offsets[place : place + 2].tolist())

    def __iter__(self) -> Iterator[Series]:
        # One loop without calls: there may be many short series.
        table, numbers, at, values = self._all.columns()
        edges = self.offsets.tolist()
        if values is None:
            return (Series(table, numbers, at[start:stop], None) for start, stop in pairwise(edges))
        return (Series(table, numbers, at[start:stop], values[start:stop]) for start, stop in pairwise(edges))

    @property
    def steps(self) -> npt.NDArray[np.int64]:
        """Positions in the selection."""
        return self._all.steps

    @property
    def frames(self) -> npt.NDArray[np.int64]:
        """Frame numbers."""
        return self._all.frames

    @property
    def times(self) -> npt.NDArray[np.float64]:
        """Times in ps."""
        return self._all.times

    @property
    def boxes(self) -> npt.NDArray[np.float32] | None:
        """Boxes, Å and degrees."""
        table, _, at, _ = self._all.columns()
        return None if table.boxes is None else table.boxes[at]

    @property
    def values(self) -> Any:
        """The values: an array, a list, or None for presence."""
        return self._all.plain()

    def __repr__(self) -> str:
        return f"Series of {len(self)} keys with {len(self._all)} values"

    __reduce__ = Series.__reduce__
