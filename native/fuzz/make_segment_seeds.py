"""Makes the seeds of fuzz_segment from real segments: ``python native/fuzz/make_segment_seeds.py``."""

from __future__ import annotations

import struct
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "io" / "store"))

from slow_bodhi import crc32c

from himach.io.store.store import Store

SEEDS = Path(__file__).with_name("seeds_segment")
ID = 0x0000000100000001


def molecules(n_atoms: int, number: int) -> np.ndarray:
    """Molecules of three on a grid, some of them split over the box."""
    rng = np.random.default_rng(number)
    first = rng.integers(0, 500, (-(-n_atoms // 3), 1, 3))
    offsets = np.array([[0, 0, 0], [76, 59, 0], [-76, 59, 0]]) + rng.integers(0, 9, (1, 3, 3))
    steps = ((first + offsets) % 500).reshape(-1, 3)[:n_atoms]
    return steps.astype(np.float32) * np.float32(0.001) * np.float32(10)


def seed(n_frames: int, n_atoms: int, dropped: list[int], with_index: bool, packed: bool) -> bytes:
    """One input: the share of the index in 256ths, the index, the segment; both renamed to the target's segment."""
    with tempfile.TemporaryDirectory() as directory:
        dataset = Store(directory).dataset("/s", packed=packed)
        for number in range(n_frames):
            positions = molecules(n_atoms, number) if packed else np.full((n_atoms, 3), number, np.float32)
            dataset.write(number, number, None, positions, positions if number % 2 else None)
        dataset.close()
        if dropped:
            dataset.drop(dropped)
        (segment,) = dataset.path.glob("*.seg")
        old = bytes.fromhex(segment.name[2:18])[::-1]
        new = struct.pack("<Q", ID)
        data = segment.read_bytes().replace(old, new)
        index = segment.with_suffix(".idx").read_bytes().replace(old, new) if with_index else b""
    share = -(-256 * len(index) // (len(index) + len(data)))
    rest = index + data
    while len(rest) * share // 256 < len(index):
        rest += bytes(64)
    return bytes([share]) + rest


def main() -> None:
    """Write the seeds."""
    SEEDS.mkdir(exist_ok=True)
    for i, arguments in enumerate(
        [
            (1, 1, [], True, False),
            (3, 4, [], False, False),
            (4, 3, [1], True, False),
            (3, 200, [0, 2], False, False),
            (2, 40, [], True, True),
            (2, 200, [1], True, True),
            (1, 600, [], False, True),
        ]
    ):
        content = seed(*arguments)
        (SEEDS / f"{i}-{crc32c(content):08x}").write_bytes(content)
    (SEEDS / "empty").write_bytes(b"\0")


if __name__ == "__main__":
    main()
