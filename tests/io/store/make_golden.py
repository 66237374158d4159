"""Makes the golden stores, small ones that every build re-reads: ``python make_golden.py [raw] [packed]``.

``golden`` has natives, aliens, velocities, forces, boxes and a dropped frame; `frame` says what must be found.
``golden_packed`` has packed positions; `packed_frame` says what must be found. Run it only when the format changes.
"""

import shutil
import sys
from pathlib import Path

import numpy as np

from himach.io.store.store import Store

GOLDEN = Path(__file__).with_name("golden")
PACKED = Path(__file__).with_name("golden_packed")
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


N_PACKED = 3
CHAIN, WATERS, IONS = 70, 300, 5  # atoms of a chain, molecules of three, atoms
BOX = 2500  # steps


def packed_frame(number: int) -> dict[str, object]:
    """The arguments of `Dataset.write`: a chain, waters of which some are split over the box, ions; 0.01 Å steps."""
    value = 12345 + number

    def draw(below: int) -> int:
        nonlocal value
        value = value * 1103515245 + 12345 & 0x7FFFFFFF
        return (value >> 8) % below

    steps = [[500 + number, 600, 700]]
    for _ in range(CHAIN - 1):
        steps.append([axis + draw(301) - 150 for axis in steps[-1]])
    for _ in range(WATERS):
        oxygen = [draw(BOX) for _ in range(3)]
        steps.append(oxygen)
        for hydrogen in ([76, 59, 0], [-76, 59, 0]):
            turned = hydrogen[number % 3 :] + hydrogen[: number % 3]
            steps.append([(axis + offset + draw(5)) % BOX for axis, offset in zip(oxygen, turned, strict=True)])
    steps += [[draw(BOX) for _ in range(3)] for _ in range(IONS)]
    positions = np.array(steps, dtype=np.float32) * np.float32(0.001) * np.float32(10)
    return {
        "number": number,
        "time": number * 0.5,
        "box": np.array([25, 25, 25, 90, 90, 90], dtype=np.float32),
        "positions": positions,
        "velocities": positions / np.float32(3) if number == 1 else None,
        "forces": None,
    }


def make_raw() -> None:
    shutil.rmtree(GOLDEN, ignore_errors=True)
    store = Store(GOLDEN)
    with store.dataset(NAME, GENERATION, packed=False) as dataset:
        for native, numbers in ((True, NATIVE), (False, ALIEN[:1]), (False, ALIEN[1:])):
            for number in numbers:
                assert dataset.write(**frame(number), native=native) or number == 2
            dataset.flush()
    with store.dataset(NAME, GENERATION) as dataset:
        assert dataset.drop([DROPPED]) == 1


def make_packed() -> None:
    shutil.rmtree(PACKED, ignore_errors=True)
    with Store(PACKED).dataset(NAME, GENERATION) as dataset:
        for number in range(N_PACKED):
            dataset.write(**packed_frame(number))


if __name__ == "__main__":
    if "raw" in sys.argv:
        make_raw()
    if "packed" in sys.argv:
        make_packed()
