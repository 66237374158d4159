"""A part: one file of kept pairs. `write_part()`, `open_part()`, `Part`; `read_summary()` for listings.

An uncompressed zip of a description, the numbers of all covered frames, and a pickle of the blocks and of the table of
their frames. It is named when complete and never changes; a power cut may tear it, which the checksums of the zip
detect. Reading a pickle can run any code: a file that others can have written is not opened.
"""

import json
import os
import pickle
import secrets
import stat
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import ZipFile

import numpy as np
import numpy.typing as npt
from numpy.lib.format import read_array, write_array
from pyroaring import BitMap64

from himach.checkpoint.directory import PART, is_own, is_private
from himach.engine.pairs.block import Array, Block, Form
from himach.engine.pairs.values import Pickled, dump, restore
from himach.engine.stamps import FrameTable
from himach.errors import HimachError
from himach.files import whole_file

#: Members of a part.
DESCRIPTION, COVERED, PAIRS = "part.json", "covered.npy", "pairs.pickle"
#: Marks a pickle that contains classes by value.
BY_VALUE = b"cloudpickle.cloudpickle"
#: Bytes that are checked at a time.
PIECE = 1 << 20
#: Rows of bits unpacked at a time, one byte per bit.
SPREAD = 1 << 14
#: Where the header of a member has the lengths of the name and the extra field behind it.
NAME_LENGTHS = 26


class BadPartError(HimachError):
    """A file of kept pairs that cannot be used: damaged, of another version, or of another map."""


class DamagedPartError(BadPartError):
    """A file of kept pairs whose content is lost for good."""


class ByValueError(HimachError):
    """A value is of a class that a later run does not have."""


@dataclass(frozen=True)
class Summary:
    """What a part says of itself."""

    identity: str  # of its map
    home: str  # the module whose classes its pickled values may have; "" if none is pickled
    combined: bool  # whether combine() made the pairs
    pairs: int  # that map() yielded
    covered: BitMap64 = field(repr=False)
    nbytes: int = 0


@dataclass(frozen=True)
class Part:
    """A checked part."""

    path: Path
    summary: Summary
    state: tuple[int, ...]  # of the file that was checked

    def read(self, requested: BitMap64 | None = None) -> tuple[list[Block], FrameTable]:
        """Return the pairs of `requested` frames (None: all), and the table of these, whose steps are frame numbers."""
        with _open(self.path) as file:
            if _state(file) != self.state:
                raise BadPartError(f"{self.path.name}: it is another file than it was when it was checked")
            try:
                file.seek(ZipFile(file).getinfo(PAIRS).header_offset + NAME_LENGTHS)  # zipfile would check it again
                file.seek(sum(struct.unpack("<HH", file.read(4))), os.SEEK_CUR)
                blocks, frames = pickle.load(file)
            except Exception as error:  # of another version of numpy, say
                raise BadPartError(
                    f"pairs {self.path} cannot be read ({error!r}); delete this file, and its frames are mapped again"
                ) from error
        if requested is None or self.summary.covered <= requested:
            return blocks, frames
        if self.summary.combined:
            raise ValueError("what combine() made can only be used as a whole")
        present = BitMap64(frames.steps.astype(np.uint64)) & requested
        kept = np.isin(frames.steps, np.array(present.to_array(), dtype=np.int64))
        frames = frames.chosen(np.flatnonzero(kept))
        if frames.boxes is not None and np.isnan(frames.boxes).all():
            frames = replace(frames, boxes=None)  # as if the other frames were never read
        chosen = [_choose_rows(block, kept) for block in blocks]
        return [block for block in chosen if len(block)], frames


def write_part(
    directory: Path,
    blocks: Sequence[Block],
    frames: FrameTable,
    covered: BitMap64,
    *,
    identity: str = "",
    home: str = "",
    combined: bool = False,
    pairs: int | None = None,
) -> Path:
    """Write blocks as a part, with frame numbers as steps."""
    path = directory / f"{secrets.token_hex(8)}{PART}"
    columns = [block.values.tolist() for block in blocks if block.values is not None and block.values.dtype.hasobject]
    pickled = [value for values in columns for value in values if type(value) is Pickled]
    for value in pickled:
        if value.find(BY_VALUE) >= 0:
            raise ByValueError(
                f"values of type {type(restore(value)).__name__} are not kept, as their class, or one that they hold, "
                "is that of a program or of a notebook's cell, and another one in the next run; put it in a module"
            )
    about = {"identity": identity, "home": home if pickled else "", "combined": combined}
    described = about | {"pairs": sum(map(count_pairs, blocks)) if pairs is None else pairs}
    with whole_file(path, mode=0o600) as file, ZipFile(file, "w") as archive:
        archive.writestr(DESCRIPTION, json.dumps(described))
        with archive.open(COVERED, "w", force_zip64=True) as member:
            write_array(member, np.array(covered.to_array(), dtype=np.int64))
        with archive.open(PAIRS, "w", force_zip64=True) as member:
            dump((list(blocks), frames), member)
    return path


def read_summary(path: Path) -> Summary:
    """Return the summary of a part without reading its pairs."""
    with _open(path) as file:
        return _read_summary(path, file)


def open_part(path: Path, identity: str = "", home: str = "") -> Part:
    """Check a part of the map `identity`, by an analysis of the module `home` ("": any)."""
    with _open(path) as file:
        # The file itself, which a directory above may have had in another's place when it was opened.
        if not (is_own(os.fstat(file.fileno())) and all(map(is_private, path.parents[:2]))):
            raise BadPartError(f"{path.name}: others can have written it")
        summary = _read_summary(path, file)
        if summary.identity != identity:
            raise BadPartError(f"{path.name}: it is of another map")
        if home and summary.home not in ("", home):
            raise BadPartError(
                f"{path.name}: it has pickles of {summary.home}, and this run has its classes under another name"
            )
        try:
            with ZipFile(file) as archive, archive.open(PAIRS) as member:
                while member.read(PIECE):
                    pass
        except Exception as error:  # zipfile raises errors of many kinds
            raise _unreadable(path, error) from error
        return Part(path, summary, _state(file))


def count_pairs(block: Block) -> int:
    """Return the number of pairs of a block."""
    if block.form == Form.PAIR or block.values is None:
        return len(block)
    counts = block.values if block.form == Form.INTERVAL else np.bitwise_count(block.values)
    return int(counts.sum(dtype=np.int64))


def _open(path: Path) -> BinaryIO:
    try:
        # O_NONBLOCK: a pipe of that name would block.
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError as error:
        raise BadPartError(f"{path.name}: it cannot be opened: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise BadPartError(f"{path.name}: it is no file")
    return os.fdopen(file, "rb")


def _state(file: BinaryIO) -> tuple[int, ...]:
    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _read_summary(path: Path, file: BinaryIO) -> Summary:
    try:
        with ZipFile(file) as archive:
            described = json.loads(archive.read(DESCRIPTION))
            with archive.open(COVERED) as member:
                numbers = read_array(member).astype(np.uint64)
            fields = {name: described[name] for name in ("identity", "home", "combined", "pairs")}
        return Summary(**fields, covered=BitMap64(numbers), nbytes=os.fstat(file.fileno()).st_size)
    except Exception as error:  # zipfile and numpy raise errors of many kinds
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> BadPartError:
    if isinstance(error, OSError | MemoryError):
        return BadPartError(f"{path.name}: it cannot be read: {error}")
    return DamagedPartError(f"{path.name}: it is torn or damaged: {error}")


def _choose_rows(block: Block, kept: npt.NDArray[np.bool_]) -> Block:
    """Return the pairs of a block whose frames are `kept`, bool (n,) by row of its table."""
    columns = block.columns()
    at, places = columns["at"], np.concatenate([[0], np.cumsum(kept)]).astype(np.uint32)
    if block.form == Form.PAIR:
        rows: Any = kept[at]
    elif block.form == Form.INTERVAL:
        # The kept frames of an interval are an interval again.
        columns["values"] = places[at + columns["values"]] - places[at]
        rows = columns["values"] != 0
    else:
        columns["values"] = _compact_bits(at, columns["values"], kept)
        rows = columns["values"].any(axis=1)
    columns["at"] = places[at]
    bounds = np.concatenate([[0], np.cumsum(rows)])[block.bounds]
    return Block(block.form, block.width, bounds, **{name: column[rows] for name, column in columns.items()})


def _compact_bits(at: Array, bits: Array, kept: npt.NDArray[np.bool_]) -> Array:
    """Return rows of bits (n, w), which begin at frames `at`, reduced to the bits of kept frames."""
    together = np.zeros_like(bits)
    width = 64 * bits.shape[1]
    order = np.argsort(at, kind="stable")
    breaks = np.union1d(np.flatnonzero(np.diff(at[order])) + 1, np.arange(SPREAD, len(at), SPREAD))
    for rows in filter(len, np.split(order, breaks)):
        first = int(at[rows[0]])
        frames = kept[first : first + width]
        spread = np.unpackbits(bits[rows].view(np.uint8), axis=1, bitorder="little")[:, : len(frames)]
        packed = np.zeros((len(rows), width // 8), dtype=np.uint8)
        left = np.packbits(spread[:, frames], axis=1, bitorder="little")
        packed[:, : left.shape[1]] = left
        together[rows] = packed.view(np.uint64)
    return together
