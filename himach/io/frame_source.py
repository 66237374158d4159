"""Frames by number, from wherever they come: `FrameSource`, and `ReadOptions`, what of them is read, and how."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from himach.frame import RawFrame

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ReadOptions:
    """What of frames is read, and how. A source may read more than that, and has its own way where it has one alone."""

    # The atoms that are needed: int64 (n,), ascending; or runs of them, first and last + 1, int64 (n, 2), ascending and
    # apart; None for all. Arrays keep their shape (n_atoms, 3): rows of other atoms hold anything, and are not checked.
    atoms: Numbers | None = None
    fields: int = 0  # of `himach.frame.FIELDS`, or-ed, what to read beside the stamps; 0 for all there is
    # Whether cold data bypasses the page cache; "auto" where the dataset is larger than half of the memory.
    direct: Literal["auto", "on", "off"] = "auto"
    request_bytes: int = 0  # of a read request; 0 for 512 KiB, or 2 MiB where the page cache is bypassed
    ring: int = 0  # requests read ahead; 0 for 6, or 3 where the page cache is bypassed
    ahead: bool = True  # read ahead in a thread, which few small frames are not worth
    unpack: bool = True  # give the frames' arrays; else frames are read and checked as they lie, and these are None

    @cached_property
    def ranges(self) -> Numbers | None:
        """The runs of neighbouring atoms as `atom_ranges` gives them; None for all atoms."""
        return self.atoms if self.atoms is None or self.atoms.ndim == 2 else atom_ranges(self.atoms)

    @property
    def first_atoms(self) -> int | None:
        """How many atoms from the first on have all that are needed among them; None for all atoms."""
        return None if self.ranges is None else int(self.ranges[-1, 1]) if len(self.ranges) else 0


#: All of every frame.
WHOLE = ReadOptions()


class FrameSource(ABC):
    """Frames of one trajectory by number, for one thread at a time."""

    @abstractmethod
    def holds(self, numbers: Numbers) -> npt.NDArray[np.bool_]:
        """Return which of the frames it has, bool (n,)."""

    @abstractmethod
    def read(self, numbers: Sequence[int] | Numbers, options: ReadOptions = WHOLE) -> Iterator[RawFrame | None]:
        """Yield frames in the order of `numbers`, whose arrays hold until the next; None where a cache has none.

        Consecutive ones are read fastest. Raises ValueError for atoms as `atom_ranges` does.
        """


def atom_ranges(atoms: Numbers) -> Numbers:
    """Return the runs of neighbouring atoms: first and last + 1, C-contiguous int64 (n, 2), of ascending int64 (n,)."""
    if atoms.dtype != np.int64 or atoms.ndim != 1:
        raise ValueError("atoms must be an int64 array of one dimension")
    steps = np.diff(atoms)
    if len(atoms) and (atoms[0] < 0 or (steps < 1).any()):
        raise ValueError("atoms must be indices from 0 on, ascending, each once")
    starts = np.concatenate([[True], steps > 1]) if len(atoms) else np.zeros(0, dtype=bool)
    firsts, lasts = atoms[starts], atoms[np.roll(starts, -1)]
    return np.ascontiguousarray(np.stack([firsts, lasts + 1], axis=1))
