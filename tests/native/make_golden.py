"""Makes tests/native/golden: a small store with natives, aliens, velocities, forces, boxes and a dropped frame.

Run it only when the format's version changes: ``python tests/native/make_golden.py``. Every build re-reads what earlier
versions wrote; `frame` says what must be found.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from himach.io.store import Store

GOLDEN = Path(__file__).with_name("golden")
NAME, GENERATION = "/sim1", b"golden"
NATIVE, ALIEN, DROPPED = (0, 1, 2, 7), (5, 2, 9), 5
N_ATOMS = 21


def frame(number: int) -> dict[str, object]:
    """The arguments of `Dataset.write` for a frame."""
    values = np.arange(3 * N_ATOMS, dtype=np.float32).reshape(N_ATOMS, 3)
    return {
        "number": number,
        "time": number * 2.5,
        "box": None if number == 7 else np.array([10, 20, 30, 90, 90, 60 + number], dtype=np.float32),
        "positions": values + np.float32(number),
        "velocities": values * np.float32(number) if number in (1, 9) else None,
        "forces": -values if number == 9 else None,
    }


def main() -> None:
    shutil.rmtree(GOLDEN, ignore_errors=True)
    store = Store(GOLDEN)
    with store.dataset(NAME, GENERATION) as dataset:
        for native, numbers in ((True, NATIVE), (False, ALIEN[:1]), (False, ALIEN[1:])):
            for number in numbers:
                assert dataset.write(**frame(number), native=native) or number == 2
            dataset.flush()
    with store.dataset(NAME, GENERATION) as dataset:
        assert dataset.drop([DROPPED]) == 1


if __name__ == "__main__":
    main()
