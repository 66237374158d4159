"""What the tests of staging, eviction and the cache commands share: small stores with made-up frames."""

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from himach.io.store.bodhi import crc32c
from himach.io.store.store import Dataset, Store

N_ATOMS = 500


def positions_of(number: int, n_atoms: int = N_ATOMS) -> np.ndarray:
    return np.random.default_rng(number).normal(size=(n_atoms, 3)).astype(np.float32)


def fill(
    path: Path, numbers: Iterable[int], name: str = "/made/up.xtc", *, native: bool = False, segment_bytes: int = 0
) -> Dataset:
    dataset = Store(path).dataset(name, b"one", segment_bytes=segment_bytes)
    for number in numbers:
        assert dataset.write(number, float(number), None, positions_of(number), native=native)
    dataset.close()
    return dataset


def on_grid(seed: object, shape: tuple[int, ...], top: int = 5000) -> np.ndarray:
    """Positions that XTC could have held, so that they are packed."""
    steps = np.random.default_rng(seed).integers(0, top, shape)
    return steps.astype(np.float32) * np.float32(0.001) * np.float32(10)


def spoil(path: Path, at: int, content: bytes = b"\xff" * 4) -> None:
    """Put other bytes into a file; `at` below 0 counts from its end."""
    with open(path, "r+b") as file:
        file.seek(at, os.SEEK_END if at < 0 else os.SEEK_SET)
        file.write(content)


def flip(path: Path, at: int, bits: int = 4) -> None:
    with open(path, "rb") as file:
        file.seek(at)
        spoil(path, at, bytes([file.read(1)[0] ^ bits]))


def set_version(path: Path, version: int) -> None:
    """Have a file of a store say that it is of another version, by a right checksum."""
    data = bytearray(path.read_bytes())
    data[4:6], data[12:16] = version.to_bytes(2, "little"), bytes(4)
    size = int.from_bytes(data[8:12], "little")
    data[12:16] = crc32c(bytes(data[:size])).to_bytes(4, "little")
    path.write_bytes(data)


def segment_files(dataset: Dataset) -> list[Path]:
    return sorted(dataset.path.glob("*.seg"))


def place_of(dataset: Dataset, number: int) -> tuple[Path, int, int]:
    """Segment file, offset and length of a frame's record."""
    segment, kind, _, offset, length = dataset.places([number]).tolist()[0]
    return dataset.path / f"{'na'[kind]}-{segment:016x}.seg", offset, length
