"""What runs that ask for few atoms of a dataset's frames have cost on a node: `Uses`, kept beside the frames.

Each such run earns a share of its own time for making the time-major form. So those that ask again and again get it,
whoever asks once never waits for it, and no run waits for more than that share, or for one chunk that several have
earned. It is the argument of who rents until that has cost what buying costs, and then buys (Karlin, Manasse, Rudolph,
Sleator, Algorithmica 3 (1988) 79).
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from himach.io.store.store import Dataset
from himach.io.timemajor.layout import BLOCK_ATOMS, CHUNK_FRAMES
from himach.io.timemajor.tracks import PAGE, bytes_of_frame

__all__ = ["Uses", "is_worth_it"]

NAME = "uses.json"  # of the attachment
SHARE = 0.25  # of the time that runs take is for the form
RUNS = 3  # that ask for few atoms before it is begun
GAIN = 4.0  # times fewer bytes, at least
FIRST_SPEED = 100e6  # bytes of frames that a process turns a second, until that is known


@dataclass
class Uses:
    """Runs that asked for few atoms.

    Attributes
    ----------
    runs
        How many there were.
    credit
        Seconds that they have earned, and that were not spent yet.
    speed
        Bytes of frames that a process turned a second, as it was last measured.
    wanted
        False once somebody has asked for the frames alone.
    """

    runs: int = 0
    credit: float = 0.0
    speed: float = FIRST_SPEED
    wanted: bool = True

    @classmethod
    def of(cls, dataset: Dataset) -> Uses:
        """Return what is known of a dataset; nothing if that is damaged."""
        try:
            told = json.loads(dataset.attachment(NAME) or b"{}")
            uses = cls(int(told["runs"]), float(told["credit"]), float(told["speed"]), bool(told["wanted"]))
        except (ValueError, TypeError, KeyError):
            return cls()
        return uses if 0 < uses.speed < math.inf and 0 <= uses.credit < math.inf else cls()

    def keep(self, dataset: Dataset) -> None:
        """Keep it beside the frames; of two runs that do so at once, one is forgotten."""
        dataset.attach(NAME, json.dumps(asdict(self)).encode())

    def add(self, seconds: float) -> None:
        """Count a run that took so long."""
        self.runs += 1
        self.credit += SHARE * seconds

    def seconds(self, nbytes: int, took: float) -> float:
        """Return how long chunks of frames of so many bytes may be made now, after a run that took so long; 0: not.

        As long as that run has earned, and at least one chunk, as far as all have earned that.
        """
        one = nbytes / self.speed
        if not self.wanted or self.runs < RUNS or self.credit < one:
            return 0.0
        return min(self.credit, max(SHARE * took, one))

    def spend(self, seconds: float, nbytes: int) -> None:
        """Note that each process has turned so many bytes of frames in that time; 0: nothing came of it."""
        self.credit = max(0.0, self.credit - seconds) if nbytes else 0.0
        if nbytes and seconds > 0:
            self.speed = nbytes / seconds


def is_worth_it(dataset: Dataset, n_atoms: int, atoms: npt.NDArray[np.int64], n_read: int) -> bool:
    """Tell whether a run that read some atoms of so many frames one by one could have read far less as tracks."""
    natives = dataset.native
    if not natives or not len(atoms):
        return False
    length = frame_bytes(dataset)
    blocks = len(np.unique(atoms // BLOCK_ATOMS))
    chunks = -(-len(natives) // CHUNK_FRAMES)
    tracks = len(natives) * length * len(atoms) / n_atoms + chunks * blocks * 2 * PAGE
    return n_read * bytes_of_frame(length, n_atoms, atoms) >= GAIN * tracks


def frame_bytes(dataset: Dataset) -> int:
    """Return how long the record of a frame is, by the first one held natively; 0 if there is none."""
    natives = dataset.native
    (place,) = dataset.locate(np.array([natives.min()], dtype=np.int64)) if natives else (None,)
    return 0 if place is None else int(place[3])
