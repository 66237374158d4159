"""Frames of rounds on their way to the store: `Writing`, for a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from himach.io.store.bodhi import GatherHandle
from himach.io.store.store import Dataset, StoreFullError
from himach.runner.assembling.finding import OTHERS
from himach.runner.assembling.target import Target

__all__ = ["Writing"]

Bytes = npt.NDArray[np.uint8]

#: Bytes of frames that are synced together.
DURABLE_BYTES = 32 << 20


class Writing:
    """Writes frames, and knows which are on disk.

    Attributes
    ----------
    full
        Why nothing more is written now; None as long as there is room.
    count
        Frames written so far.
    lost
        Why frames that were to be written are not there, though their slices are gone from memory.
    """

    def __init__(self, target: Target, n_atoms: int) -> None:
        self.full: StoreFullError | None = None
        self.lost: StoreFullError | None = None
        self.count = 0
        self._target = target
        self._at_once = max(1, DURABLE_BYTES // (12 * n_atoms))
        self._dataset: Dataset | None = None
        self._shown: list[int] = []  # written, but not known to be on disk
        self._lock = threading.Lock()  # over what follows
        self._durable: list[int] = []
        self._bad: dict[int, str] = {}

    def write(self, gather: GatherHandle, incoming: Sequence[Bytes]) -> bool:
        """Put this rank's frames of a round together, with what has come for it, and write them.

        Returns
        -------
        bool
            False if the store is full; then `again`.
        """
        for data in incoming:
            if len(data):
                gather.take(data)
        return self.again(gather)

    def again(self, gather: GatherHandle) -> bool:
        """Write what is left of a round; returns as `write`."""
        if not gather.frames:
            return True
        dataset = self._dataset = self._dataset or self._target.open_to_write()
        bad: dict[int, tuple[str, bool]] = {}
        more = True
        while more and self.full is None:
            before = len(self._shown)
            try:
                more = dataset.write_gathered(gather, self._at_once - len(self._shown), self._shown, bad)
            except StoreFullError as error:
                self.full = error
            self.count += len(self._shown) - before
            if len(self._shown) >= self._at_once:
                self.flush()
        with self._lock:
            for number, (why, there) in bad.items():
                self._bad[number] = f"{OTHERS} ({why})" if there else why
        return not more

    def flush(self) -> None:
        """Have all that was written on disk."""
        if self._dataset is None or not self._shown:
            return
        shown, self._shown = self._shown, []
        try:
            self._dataset.flush(durable=True)
        except StoreFullError as error:
            self.full = self.lost = error
            return
        if self.full is not None:  # what was written before a full disk may be undone
            there = self._dataset.holds(np.array(shown, np.int64), native=True)
            if not there.all():
                self.lost = self.full
                shown = np.array(shown, np.int64)[there].tolist()
        with self._lock:
            self._durable += shown

    def take(self) -> tuple[list[int], dict[int, str]]:
        """Return which frames are on disk, and why others are not there, since the last time; from any thread."""
        with self._lock:
            told = self._durable, self._bad
            self._durable, self._bad = [], {}
        return told
