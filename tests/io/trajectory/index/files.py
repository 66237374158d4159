"""XTC files made byte by byte, and what a walk from frame to frame finds in a file, slowly and obviously."""

import struct
from pathlib import Path

import numpy as np

from himach.io.trajectory.index.xdr_index import XdrIndex
from himach.io.trajectory.xdr_header import HEADER_BYTES, BadHeaderError, ShortError, parse_trr, parse_xtc


def small_frame(n_atoms: int, time: float, step: int = 0, payload: bytes = b"") -> bytes:
    """Return a frame of an XTC file with few atoms, whose coordinates are plain; `payload` are the first of them."""
    head = (
        struct.pack(">iiif", 1995, n_atoms, step, time)
        + struct.pack(">9f", *np.eye(3).ravel())
        + struct.pack(">i", n_atoms)
    )
    return head + payload.ljust(12 * n_atoms, b"\0")[: 12 * n_atoms]


def walked(path: Path, kind: str = "XTC") -> list[tuple[int, int, float, int]]:
    """Return first byte, end, time and content of each whole frame, by one walk over the file."""
    content = path.read_bytes()
    parse = parse_xtc if kind == "XTC" else parse_trr
    found, at = [], 0
    while at < len(content):
        try:
            header = parse(content[at : at + HEADER_BYTES])
        except (BadHeaderError, ShortError):
            break
        if at + header.size > len(content):
            break
        found.append((at, at + header.size, header.time, header.fields))
        at += header.size
    return found


def seen(index: XdrIndex) -> list[tuple[int, int, float, int]]:
    """Return the same of an index, which is asked for frames one by one."""
    numbers = np.arange(index.n_frames)
    times, sizes = index.times(numbers), index.sizes(numbers)
    found = [(*index.place(number), index.time(number), index.fields(number)) for number in numbers.tolist()]
    assert [time for _, _, time, _ in found] == times.tolist()
    assert [end - begin for begin, end, _, _ in found] == sizes.tolist()
    return found
