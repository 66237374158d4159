"""Index of an XTC or TRR file: `XdrIndex` has offsets, times and fields of the frames.

The columns are in memory, which ranks of a node may share, or mapped from a file of the node's store.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from himach.io.remote.byte_file import read_status
from himach.io.trajectory.index.timeline import Numbers, Times

#: A row per frame: its offset in the file, its time (ps), and its fields, bits of `himach.io.trajectory.xdr_header`.
COLUMNS = np.dtype([("offset", "<i8"), ("time", "<f8"), ("fields", "<i8")])
Columns = npt.NDArray[np.void]
NO_COLUMNS: Columns = np.empty(0, COLUMNS)


@dataclass
class XdrIndex:
    """Index of the frames of an XTC or TRR file."""

    path: str
    kind: str  # ``"XTC"`` or ``"TRR"``
    n_atoms: int  # per frame
    columns: Columns  # `COLUMNS` (n_frames + 1,): a row per frame, and one with the end of the last frame as its offset
    back: int  # first frame whose time is before its predecessor's; -1 if there is none
    cut: bool  # whether bytes of an incomplete frame follow the last whole one
    size: int
    changed: int
    is_shared: bool = False

    def __post_init__(self) -> None:
        self.n_frames = len(self.columns) - 1

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "columns": NO_COLUMNS if self.is_shared else np.array(self.columns)}

    def is_current(self) -> bool:
        """Return whether the file exists and is unchanged, by its size and time."""
        try:
            status = read_status(self.path)
        except FileNotFoundError:
            return False
        return (status.size, status.changed) == (self.size, self.changed)

    @property
    def facts(self) -> tuple[object, ...]:
        """All but the columns; equal for indexes of the same content of a file."""
        return self.path, self.kind, self.n_atoms, self.n_frames, self.back, self.cut, self.size, self.changed

    @property
    def end(self) -> int:
        """Offset of the end of the last whole frame."""
        return self.place(self.n_frames - 1)[1]

    def place(self, number: int) -> tuple[int, int]:
        """Return the offsets of a frame's start and end."""
        offsets = self.columns["offset"]
        return int(offsets[number]), int(offsets[number + 1])

    def time(self, number: int) -> float:
        """Return a frame's time, ps."""
        return float(self.columns["time"][number])

    def fields(self, number: int) -> int:
        """Return a frame's fields, bits of `himach.io.trajectory.xdr_header`."""
        return int(self.columns["fields"][number])

    def times(self, numbers: Numbers) -> Times:
        """Return the times of frames, float64 (n,), ps."""
        times: Times = self.columns["time"][numbers]
        return times

    def sizes(self, numbers: Numbers) -> Numbers:
        """Return the sizes of frames in bytes, int64 (n,)."""
        offsets = self.columns["offset"]
        sizes: Numbers = offsets[np.asarray(numbers, dtype=np.int64) + 1] - offsets[numbers]
        return sizes


class IndexTimeline:
    """Times of a file's index, with an offset added to each."""

    def __init__(self, index: XdrIndex, offset: float = 0.0) -> None:
        self.index, self.offset = index, offset

    def __len__(self) -> int:
        return self.index.n_frames

    def __getitem__(self, number: int) -> float:
        return self.index.time(number) + self.offset

    def at(self, numbers: Numbers) -> Times:
        """Look up the times."""
        times: Times = self.index.times(numbers) + self.offset
        return times

    def back(self, n_frames: int) -> int | None:
        """Return it as the walk over the file found it."""
        return self.index.back if 0 <= self.index.back < n_frames else None
