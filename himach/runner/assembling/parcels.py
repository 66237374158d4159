"""Slices on their way from node to node: a head of numbers, and the arrays behind it. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.frame import RawFrame
from himach.io.slices.held import Slice

__all__ = ["Parcels", "unpack"]

Bytes = npt.NDArray[np.uint8]

_HEAD = np.dtype(
    [
        ("number", "<i8"),
        ("rank", "<i8"),
        ("n", "<i8"),
        ("time", "<f8"),
        ("box", "<f4", 6),
        ("has_box", "?"),
        ("fields", "u1"),
        ("unused", "u1", 6),
    ]
)
_VELOCITIES, _FORCES = 1, 2


class Parcels:
    """Slices for one node, packed one behind the other into bytes that grow."""

    def __init__(self) -> None:
        self._bytes: Bytes = np.empty(1 << 20, np.uint8)
        self._size = 0

    def add(self, slice_: Slice) -> None:
        """Add a slice; its arrays are copied."""
        frame = slice_.frame
        head = np.zeros(1, _HEAD)
        head["number"], head["rank"], head["n"], head["time"] = frame.number, slice_.rank, len(slice_.ids), frame.time
        if frame.box is not None:
            head["box"], head["has_box"] = frame.box, True
        head["fields"] = _VELOCITIES * (frame.velocities is not None) | _FORCES * (frame.forces is not None)
        self._put(head)
        self._put(slice_.ids)
        for vectors in (frame.positions, frame.velocities, frame.forces):
            if vectors is not None:
                self._put(vectors)

    def _put(self, array: npt.NDArray[Any]) -> None:
        size = array.nbytes
        if self._size + size > len(self._bytes):
            grown = np.empty(max(2 * len(self._bytes), self._size + size), np.uint8)
            grown[: self._size] = self._bytes[: self._size]
            self._bytes = grown
        self._bytes[self._size : self._size + size] = array.reshape(-1).view(np.uint8)
        self._size += size

    def clear(self) -> None:
        """Forget the slices, and keep the memory."""
        self._size = 0

    def content(self) -> Bytes:
        """Return the bytes."""
        return self._bytes[: self._size]


def unpack(data: Bytes) -> Iterator[Slice]:
    """Yield the slices in bytes; their arrays are views of these.

    Raises
    ------
    ValueError
        The bytes are not what `Parcels` made.
    """
    at = 0
    while at < len(data):
        head = _take(data, at, _HEAD, 1)[0]
        n, fields = int(head["n"]), int(head["fields"])
        at += _HEAD.itemsize
        ids = _take(data, at, np.dtype("<u4"), n)
        at += ids.nbytes
        vectors: list[npt.NDArray[np.float32] | None] = []
        for there in (True, fields & _VELOCITIES, fields & _FORCES):
            vectors.append(_take(data, at, np.dtype("<f4"), 3 * n).reshape(n, 3) if there else None)
            at += 12 * n if there else 0
        box = np.array(head["box"], dtype=np.float32) if head["has_box"] else None
        positions = vectors[0]
        assert positions is not None
        frame = RawFrame(int(head["number"]), float(head["time"]), positions, box, vectors[1], vectors[2])
        yield Slice(int(head["rank"]), frame, ids)


def _take(data: Bytes, at: int, kind: np.dtype[Any], count: int) -> npt.NDArray[Any]:
    size = kind.itemsize * count
    if count < 0 or at + size > len(data):
        raise ValueError("slices that came from another node are cut short")
    return data[at : at + size].view(kind)
