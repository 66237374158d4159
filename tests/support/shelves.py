"""What the tests of staging, eviction and the cache commands share: small stores with made-up frames."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from himach.io.store.store import Dataset, Store

N_ATOMS = 500


def positions_of(number: int, n_atoms: int = N_ATOMS) -> np.ndarray:
    return np.random.default_rng(number).normal(size=(n_atoms, 3)).astype(np.float32)


def fill(
    path: Path, numbers: Iterable[int], name: str = "/made/up.xtc", *, native: bool = False, segment_bytes: int = 0
) -> Dataset:
    """Put frames into a dataset, closed for writing."""
    dataset = Store(path).dataset(name, b"one", segment_bytes=segment_bytes)
    for number in numbers:
        assert dataset.write(number, float(number), None, positions_of(number), native=native)
    dataset.close()
    return dataset


def segment_files(dataset: Dataset) -> list[Path]:
    return sorted(dataset.path.glob("*.seg"))


def place_of(dataset: Dataset, number: int) -> tuple[Path, int, int]:
    """Segment file, offset and length of a frame's record."""
    segment, kind, offset, length = dataset.locate(np.array([number]))[0]
    return dataset.path / f"{'na'[kind]}-{segment:016x}.seg", offset, length
