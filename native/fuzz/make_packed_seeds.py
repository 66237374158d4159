"""Makes the seeds of fuzz_packed: ``python native/fuzz/make_packed_seeds.py``."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from himach.io.store.bodhi import Packer, crc32c

SEEDS = Path(__file__).with_name("seeds_packed")


def grid(steps: np.ndarray) -> np.ndarray:
    """Positions as from XTC."""
    return steps.astype(np.float32) * np.float32(0.001) * np.float32(10)


def frames() -> list[np.ndarray]:
    """Make steps of small frames: a chain, molecules of several sizes, some split over the box, equal atoms."""
    rng = np.random.default_rng(1)
    found = [np.cumsum(rng.integers(-150, 151, (120, 3)), axis=0), np.zeros((64, 3), dtype=int)]
    for sites, box in ((3, 500), (4, 3000), (5, 100_000), (6, 800)):
        first = rng.integers(0, box, (50, 1, 3))
        found.append((first + rng.integers(-90, 90, (1, sites, 3)) * (np.arange(sites) > 0)[:, None]) % box)
    return [np.reshape(steps, (-1, 3)) for steps in found]


def main() -> None:
    """Write the seeds."""
    SEEDS.mkdir(exist_ok=True)
    for steps in frames():
        blocks = Packer().pack(grid(steps))
        if blocks is None:
            raise AssertionError("a seed is not packed")
        content = struct.pack("<H", len(steps) - 1) + blocks[0]
        (SEEDS / f"{len(steps)}-{crc32c(content):08x}").write_bytes(content)


if __name__ == "__main__":
    main()
