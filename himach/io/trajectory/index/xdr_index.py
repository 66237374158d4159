"""`XdrIndex`: where the frames of an XTC or TRR file begin, when they were taken, and which fields they have.

The columns lie in memory, which ranks of a node may share, or are mapped from a file of the node's store.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from himach.io.remote.byte_file import read_status
from himach.io.trajectory.index.timeline import Numbers, Times

#: A row a frame: its first byte in the file, its time (ps), and bits of `himach.io.trajectory.xdr_header`.
COLUMNS = np.dtype([("offset", "<i8"), ("time", "<f8"), ("fields", "<i8")])
Columns = npt.NDArray[np.void]
NO_COLUMNS: Columns = np.empty(0, COLUMNS)


@dataclass
class XdrIndex:
    """The frames of one XTC or TRR file."""

    path: str  # the file
    kind: str  # ``"XTC"`` or ``"TRR"``
    n_atoms: int  # atoms in each frame
    columns: Columns  # `COLUMNS` (n_frames + 1,): a row a frame, and one whose offset is the end of the last frame
    back: int  # the first frame that was taken before the one before it; -1 if none was
    cut: bool  # whether bytes of an unfinished frame follow the last whole one
    size: int
    changed: int
    is_shared: bool = False

    def __post_init__(self) -> None:
        self.n_frames = len(self.columns) - 1

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "columns": NO_COLUMNS if self.is_shared else np.array(self.columns)}

    def is_current(self) -> bool:
        """Tell whether the file is there and has not changed since, by its size and time."""
        try:
            status = read_status(self.path)
        except FileNotFoundError:
            return False
        return (status.size, status.changed) == (self.size, self.changed)

    @property
    def facts(self) -> tuple[object, ...]:
        """What two indexes of the same content of a file have in common."""
        return self.path, self.kind, self.n_atoms, self.n_frames, self.back, self.cut, self.size, self.changed

    @property
    def end(self) -> int:
        """The byte after the last whole frame."""
        return self.place(self.n_frames - 1)[1]

    def place(self, number: int) -> tuple[int, int]:
        """Return the first byte of a frame, and the one after its last."""
        offsets = self.columns["offset"]
        return int(offsets[number]), int(offsets[number + 1])

    def time(self, number: int) -> float:
        """Return when a frame was taken, ps."""
        return float(self.columns["time"][number])

    def fields(self, number: int) -> int:
        """Return what is in a frame: bits of `himach.io.trajectory.xdr_header`."""
        return int(self.columns["fields"][number])

    def times(self, numbers: Numbers) -> Times:
        """Return the times of frames, float64 (n,), ps."""
        times: Times = self.columns["time"][numbers]
        return times

    def sizes(self, numbers: Numbers) -> Numbers:
        """Return the bytes of frames, int64 (n,)."""
        offsets = self.columns["offset"]
        sizes: Numbers = offsets[np.asarray(numbers, dtype=np.int64) + 1] - offsets[numbers]
        return sizes


class IndexTimeline:
    """Times as the index of a file has them, and what is added to each."""

    def __init__(self, index: XdrIndex, offset: float = 0.0) -> None:
        self.index, self.offset = index, offset

    def __len__(self) -> int:
        return self.index.n_frames

    def __getitem__(self, number: int) -> float:
        return self.index.time(number) + self.offset

    def at(self, numbers: Numbers) -> Times:
        """Look them up."""
        times: Times = self.index.times(numbers) + self.offset
        return times

    def back(self, n_frames: int) -> int | None:
        """Return what the walk over the file has found."""
        return self.index.back if 0 <= self.index.back < n_frames else None
