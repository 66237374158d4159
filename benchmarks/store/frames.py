"""Datasets of 430 KB frames, and reading them whole."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from himach.io.frame_source import ReadOptions
from himach.io.store.store import Dataset, Store

__all__ = ["BATCH_BYTES", "FRAME_BYTES", "N_ATOMS", "N_FRAMES", "fill", "frames", "read", "segments_of"]

N_ATOMS = 35_833
N_FRAMES = 1_200
FRAME_BYTES = N_ATOMS * 12
BATCH_BYTES = 16 << 20  # between two waits for the disk


def frames() -> Iterator[npt.NDArray[np.float32]]:
    """Give positions of one frame after another, in the same array."""
    positions = np.random.default_rng(1).normal(size=(N_ATOMS, 3)).astype(np.float32)
    while True:
        yield positions
        positions[0, 0] += 1


def fill(place: Path, n: int = N_FRAMES) -> Dataset:
    """Make a dataset of `n` frames."""
    dataset = Store(place).dataset("bench")
    for number, positions in zip(range(n), frames(), strict=False):
        dataset.write(number, float(number), None, positions)
    dataset.close()
    return dataset


def segments_of(dataset: Dataset) -> list[Path]:
    """Return the segment files in the order of their making."""
    return sorted(dataset.path.glob("*.seg"))


def read(dataset: Dataset, n: int = N_FRAMES, *, direct: Literal["auto", "on", "off"] = "auto") -> None:
    """Read the first `n` frames; a miss is an error of the benchmark."""
    missed = sum(frame is None for frame in dataset.read(np.arange(n), ReadOptions(direct=direct)))
    if missed:
        raise AssertionError(f"{missed} frames of the benchmark were misses")
