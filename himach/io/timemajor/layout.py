"""How the time-major form of a dataset lies in a store: `ChunkLayout` and `ChunkStamps`, arithmetic without I/O.

The form is a dataset beside its own, named with `SUFFIX`, of the same generation. Frame numbers are cut into *chunks*
of `Layout.span` numbers. Of the frames that a node holds in a chunk, each *track* is the positions of one atom in all
of them, and a record has the tracks of a block of atoms one after the other, each under a checksum of its own. One more
record tells the chunk's frames, and is written when all others are there.
"""

from __future__ import annotations

import itertools
import json
import math
import secrets
import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from himach.io.store import bodhi

__all__ = ["CHUNK_FRAMES", "FACTS", "FORM", "MOST_FRAMES", "SUFFIX", "ChunkLayout", "ChunkStamps", "span_for"]

Numbers = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]

#: Behind the name of a dataset: that of its time-major form.
SUFFIX = " [time-major]"
#: Name of the attachment that tells the layout; native/store/eviction.c knows by it what goes first.
FACTS = "time-major.json"
#: Name of the attachment to a dataset's frames that has the identity of its form.
FORM = "time-major-form"
VERSION = 1
CHUNK_FRAMES = 2048  # of a node, in a chunk, about
MOST_FRAMES = 4 * CHUNK_FRAMES
MOST_SPAN = 1 << 32  # frame numbers in a chunk, which stamps count in 32 bits
BLOCK_ATOMS = 32  # in a record
MAGIC = b"hmTracks"
HEAD = struct.Struct("<8sII")  # magic, frames, frames that have a box
WHERE = struct.Struct("<QQQ")  # identity, span, chunk
ROW_BYTES = 12
BOX_BYTES = 24


@dataclass(frozen=True)
class ChunkLayout:
    """How the time-major form of a dataset is cut.

    Attributes
    ----------
    n_atoms
        Of the dataset.
    span
        Frame numbers in a chunk; a node that holds every Nth frame has a Nth of them.
    block_atoms
        Atoms in a record.
    identity
        Drawn when the form is begun, and noted beside the dataset's own frames, too: it tells the form from one that
        was there before, of other chunks or of other frames of the name.
    """

    n_atoms: int
    span: int
    block_atoms: int = BLOCK_ATOMS
    identity: int = 0

    @classmethod
    def drawn(cls, n_atoms: int, span: int) -> ChunkLayout:
        """Return the layout of a form that is begun now."""
        return cls(n_atoms, span, identity=secrets.randbits(53))  # any reader of JSON takes so many bits

    @property
    def n_blocks(self) -> int:
        """Records with tracks in a chunk."""
        return -(-self.n_atoms // self.block_atoms)

    def stamps_record(self, chunk: npt.ArrayLike) -> Numbers:
        """Return the number of the record that tells the frames of a chunk."""
        return np.asarray(chunk, dtype=np.int64) * (self.n_blocks + 1)

    def tracks_record(self, chunk: npt.ArrayLike, block: npt.ArrayLike) -> Numbers:
        """Return the number of the record that has the tracks of a block of atoms."""
        return self.stamps_record(chunk) + np.asarray(block, dtype=np.int64) + 1

    def has_room(self, number: int) -> bool:
        """Tell whether records have numbers that a store takes, of the chunk that has this frame."""
        return (number // self.span + 1) * (self.n_blocks + 1) <= bodhi.MAX_NUMBER

    def atoms_of(self, block: int) -> range:
        """Return the atoms of a block."""
        return range(block * self.block_atoms, min(self.n_atoms, (block + 1) * self.block_atoms))

    def encode(self) -> bytes:
        """Return it as an attachment."""
        return json.dumps({"version": VERSION, **self.__dict__}).encode()

    @classmethod
    def parse(cls, content: bytes | None) -> ChunkLayout | None:
        """Return what an attachment tells; None if there is none, or it is damaged or of another version."""
        try:
            told = json.loads(content or b"")
            layout = cls(*(int(told[name]) for name in ("n_atoms", "span", "block_atoms", "identity")))
            right = told["version"] == VERSION and min(layout.n_atoms, layout.span, layout.block_atoms) > 0
        except (ValueError, TypeError, KeyError):
            return None
        return layout if right else None


def span_for(n_frames: int, first: int, last: int) -> int:
    """Return how many frame numbers make a chunk where a node holds so many frames, from the first to the last."""
    apart = (last - first) / (n_frames - 1) if n_frames > 1 else 1.0
    return min(CHUNK_FRAMES << round(math.log2(max(1.0, apart))), MOST_SPAN)


@dataclass(frozen=True)
class ChunkStamps:
    """The frames of a chunk.

    Attributes
    ----------
    numbers
        Frame numbers, int64 (n,), ascending.
    times
        float64 (n,), ps.
    boxed
        Which of them have a box, bool (n,).
    boxes
        float32 (n, 6); of frames without a box, anything.
    """

    numbers: Numbers
    times: npt.NDArray[np.float64]
    boxed: npt.NDArray[np.bool_]
    boxes: Vectors

    def encode(self, first: int) -> Vectors:
        """Return them as the positions of a record, float32 (rows, 3); `first` is the chunk's first number."""
        parts = [
            HEAD.pack(MAGIC, len(self.numbers), int(np.count_nonzero(self.boxed))),
            (self.numbers - first).astype("<u4").tobytes(),
            self.times.astype("<f8").tobytes(),
            np.packbits(self.boxed, bitorder="little").tobytes(),
            self.boxes[self.boxed].astype("<f4").tobytes(),
        ]
        content = b"".join(parts)
        padded = content + bytes(-len(content) % ROW_BYTES)
        return np.frombuffer(padded, dtype=np.float32).reshape(-1, 3)

    @classmethod
    def parse(cls, rows: Vectors, first: int) -> ChunkStamps | None:
        """Return what a record's positions tell; None if they are not those of a chunk's frames."""
        content = np.ascontiguousarray(rows).view(np.uint8).reshape(-1)
        if len(content) < HEAD.size:
            return None
        magic, n, n_boxes = HEAD.unpack(content[: HEAD.size].tobytes())
        sizes = [4 * n, 8 * n, -(-n // 8), BOX_BYTES * n_boxes]
        ends = np.cumsum([HEAD.size, *sizes])
        if magic != MAGIC or n == 0 or ends[-1] > len(content):
            return None
        offsets, times, bits, told = (content[begin:end].tobytes() for begin, end in itertools.pairwise(ends.tolist()))
        boxed = np.unpackbits(np.frombuffer(bits, np.uint8), count=n, bitorder="little").astype(bool)
        if np.count_nonzero(boxed) != n_boxes:
            return None
        boxes = np.zeros((n, 6), dtype=np.float32)
        boxes[boxed] = np.frombuffer(told, dtype="<f4").reshape(-1, 6)
        numbers = np.frombuffer(offsets, dtype="<u4").astype(np.int64) + first
        return cls(numbers, np.frombuffer(times, dtype="<f8"), boxed, boxes)

    @property
    def nbytes(self) -> int:
        """Bytes of them as a record."""
        return (
            HEAD.size + 12 * len(self.numbers) + len(self.numbers) // 8 + BOX_BYTES * int(np.count_nonzero(self.boxed))
        )

    def key(self, layout: ChunkLayout, chunk: int) -> float:
        """Return what stands as time in all records of the chunk, so that no tracks of other frames are taken for it.

        Nor those of a form that was there before or has come since, whose chunks may be others.
        """
        where = WHERE.pack(layout.identity, layout.span, chunk)
        content = self.encode(chunk * layout.span).tobytes()
        return float((len(self.numbers) << 32) + bodhi.crc32c(where + content))
