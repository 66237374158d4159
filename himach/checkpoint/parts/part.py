"""A part: one file of kept pairs. `write_part()`, `open_part()`, `Part`; `read_summary()` for what lists them.

A part is blocks, one of each kind, as a rank spills them (`himach.engine.shuffle.spill`), and behind them a pickle that
describes them: with the table of the frames that their pairs are of, and the numbers of all frames that it covers, with
pairs or without. It is written under a name that nobody looks for and then renamed, and never changed. A power cut may
leave it torn all the same; the checksums tell.
"""

from __future__ import annotations

import io
import os
import pickle
import secrets
import stat
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from pyroaring import BitMap64

from himach.checkpoint.parts.frames import Numbers, among, chosen_rows
from himach.engine.pairs.block import SHARDS, Block, ColumnSpec, Form, Kind, Raw
from himach.engine.pairs.values import Pickled, restore
from himach.engine.shuffle.spill import Scratch, Spilled, spill
from himach.engine.shuffle.stack import MergedBlocks
from himach.engine.stamps import FrameTable
from himach.errors import HimachError
from himach.io.store.bodhi import crc32c

#: What names of parts end with, and of parts that are being written.
SUFFIX, UNFINISHED = ".pairs", ".tmp"
MAGIC = b"himpairs"
#: What a change of the format increases.
VERSION = 2
#: Magic, version, CRC-32C of the description, where it begins.
HEAD = struct.Struct("<8sIIQ")
#: Bytes that are checked at a time.
PIECE = 1 << 20
#: What is in a pickle that brings classes along.
BY_VALUE = b"cloudpickle.cloudpickle"
#: What a part's own pickles may call: that of numbers and arrays, and nothing that runs code of a file's choice.
_ALLOWED = {("builtins", "complex"), ("numpy", "dtype"), ("numpy", "ndarray"), (Pickled.__module__, "Pickled")} | {
    (f"numpy.{core}.{module}", name)
    for core in ("core", "_core")
    for module, name in (("multiarray", "scalar"), ("multiarray", "_reconstruct"), ("numeric", "_frombuffer"))
}


class BadPartError(HimachError):
    """A file of kept pairs that cannot be used: damaged, of another version, or of another map."""


class DamagedPartError(BadPartError):
    """A file of kept pairs that is not what was written, and never will be again."""


class NotPlainError(HimachError):
    """A value could only be kept as a pickle, which is not allowed here."""


class _Writer(Scratch):
    """A new file of blocks, open for writing."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "xb", buffering=0, opener=partial(os.open, mode=0o600))  # noqa: SIM115
        self.size = HEAD.size

    def _fail(self, what: str, error: OSError) -> NoReturn:
        raise error


@dataclass(frozen=True)
class _PartFile:
    """A file of blocks, which is open only while it is read: there may be more parts than a process can have open."""

    path: Path

    def read(self, at: int, target: Raw) -> None:
        """Fill `target` with what was written from byte `at` on."""
        try:
            # A pipe of that name would be waited for.
            if not stat.S_ISREG(self.path.stat().st_mode):
                raise self.bad("it is no file")
            with open(self.path, "rb") as file:
                file.seek(at)
                if file.readinto(target) < len(target):
                    raise self.damaged("it is torn")
        except OSError as error:
            raise self.bad(f"it cannot be read: {error.strerror}") from error

    def bytes(self, at: int, nbytes: int) -> bytes:
        """Return some bytes."""
        data = np.empty(nbytes, dtype=np.uint8)
        self.read(at, data)
        return data.tobytes()

    def load(self, data: Any) -> Any:
        """Unpickle what a part has: numbers, text, arrays and tuples of these, pickled values as they are."""
        return _Unpickler(io.BytesIO(data)).load()

    def description(self) -> dict[str, Any]:
        """Return the description, checked."""
        magic, version, crc, end = HEAD.unpack(self.bytes(0, HEAD.size))
        if magic != MAGIC:
            raise self.damaged("it is no file of kept pairs")
        if version != VERSION:
            raise self.bad(f"it has the format {version} of kept pairs, this himach has {VERSION}")
        size = self.path.stat().st_size
        data = self.bytes(end, size - end) if HEAD.size <= end <= size else None
        if data is None or crc32c(data) != crc:
            raise self.damaged("it is torn, or its description is damaged")
        try:
            described: dict[str, Any] = self.load(data)
            return described | {"end": end, "nbytes": end + len(data)}
        except Exception as error:  # whatever a pickle of somebody's raises
            raise self.bad(f"its description makes no sense: {error}") from error

    def crc(self, end: int) -> int:
        """Return the checksum of all that is between head and description."""
        crc, piece = 0, np.empty(PIECE, dtype=np.uint8)
        for at in range(HEAD.size, end, PIECE):
            some = piece[: min(PIECE, end - at)]
            self.read(at, some)
            crc = crc32c(some.data, crc)
        return crc

    def bad(self, reason: str) -> BadPartError:
        """Return the error that says why this file cannot be used."""
        return BadPartError(f"{self.path.name}: {reason}")

    def damaged(self, reason: str) -> DamagedPartError:
        """Return the error that says how this file is damaged."""
        return DamagedPartError(f"{self.path.name}: {reason}")


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed in kept pairs")
        return super().find_class(module, name)


def write_part(
    directory: Path,
    blocks: Sequence[Block],
    table: FrameTable,
    numbers: Numbers,
    covered: BitMap64,
    *,
    combined: bool,
    pickles: bool,
    identity: str = "",
    home: str = "",
    pairs: int | None = None,
) -> Path:
    """Write a part; return its path.

    `numbers`: int64 (n,): the frame number of each row of `table`.
    """
    name = secrets.token_hex(8)
    unfinished, path = directory / f".{name}{UNFINISHED}", directory / f"{name}{SUFFIX}"
    pickled = [_check_pickle(value, pickles) for block in blocks for value in _pickled_values(block)]
    kinds: dict[Kind, list[Block]] = {}
    for block in blocks:
        kinds.setdefault(block.kind, []).append(block)
    file = _Writer(unfinished)
    try:
        try:
            spilled = [spill(file, MergedBlocks(alike)) for alike in kinds.values()]
            description = {
                "identity": identity,
                "home": home if pickled else "",
                "pickled": bool(pickled),
                "combined": combined,
                "pairs": sum(map(count_pairs, blocks)) if pairs is None else pairs,
                "covered": covered.serialize(),
                "frames": (np.asarray(numbers, dtype=np.int64), table.times, table.boxes),
                "blocks": [
                    (
                        *(int(block.form), block.width, block.bounds),
                        *({name: tuple(spec) for name, spec in block.specs.items()}, block.starts, block.pickles),
                    )
                    for block in spilled
                ],
                "crc": _PartFile(unfinished).crc(file.size),
            }
            data = pickle.dumps(description, protocol=5)
            head = HEAD.pack(MAGIC, VERSION, crc32c(data), file.append(data))
            file.write(0, head)
        finally:
            file.close()  # where a network's disk says that it was full
        os.replace(unfinished, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(unfinished)
        raise
    return path


def _pickled_values(block: Block) -> list[Pickled]:
    if block.values is None or not block.values.dtype.hasobject:
        return []
    return [value for value in block.values.tolist() if type(value) is Pickled]


def _check_pickle(value: Pickled, pickles: bool) -> bool:
    """Raise NotPlainError if a pickled value is not kept."""
    if not pickles:
        kind = type(restore(value))
        name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
        raise NotPlainError(
            f"values of type {name} are kept as pickles, which is done only in a directory that nobody else can write "
            "to; yield numbers, text, arrays, or tuples of these"
        )
    if value.find(BY_VALUE) >= 0:
        raise NotPlainError(
            f"values of type {type(restore(value)).__name__} are not kept, as their class, or one that they hold, is "
            "that of a program or of a notebook's cell, and another one in the next run; put it in a module"
        )
    return True


@dataclass(frozen=True)
class Summary:
    """What a part says of itself: what it belongs to, the frames that it covers, how many pairs and bytes it has."""

    identity: str
    covered: BitMap64 = field(repr=False)
    pairs: int
    nbytes: int
    combined: bool


def read_summary(path: Path) -> Summary:
    """Return what a part says of itself; its pairs are not read."""
    return _summary(_PartFile(path).description())


def _summary(description: dict[str, Any]) -> Summary:
    covered = BitMap64.deserialize(description["covered"])
    return Summary(
        description["identity"], covered, description["pairs"], description["nbytes"], description["combined"]
    )


def open_part(path: Path, *, pickles: bool, identity: str | None = None, home: str = "") -> Part:
    """Return a part; raises BadPartError if it cannot be used, also if it is not of the map `identity`.

    Where `pickles` are trusted, they must be of an analysis of the module `home`, if that is not "".
    """
    file = _PartFile(path)
    description = file.description()
    if identity is not None and description["identity"] != identity:
        raise file.bad("it is of another map")
    if description["pickled"] and not pickles:
        raise file.bad("it has values that are pickled, which are not read here")
    if description["pickled"] and home and description["home"] != home:
        raise file.bad(f"it has values of classes of {description['home']}, which this run has under another name")
    if file.crc(description["end"]) != description["crc"]:
        raise file.damaged("its pairs are damaged")
    return Part(file, description)


class Part:
    """A part that was checked."""

    def __init__(self, file: _PartFile, description: dict[str, Any]) -> None:
        summary = _summary(description)
        self.covered, self.combined = summary.covered, summary.combined
        self.pairs, self.nbytes = summary.pairs, summary.nbytes
        self.frames = FrameTable(*description["frames"])  # of its pairs, whose steps are frame numbers
        self._blocks = [
            Spilled(Form(form), width, bounds, {name: ColumnSpec(*spec) for name, spec in specs.items()}, file, *where)
            for form, width, bounds, specs, *where in description["blocks"]
        ]

    def on_disk(self, offset: int = 0) -> list[Spilled]:
        """Return all blocks as they lie in the file, to be read some shards at a time; `offset` is added to `at`."""
        return [replace(block, offset=offset) for block in self._blocks]

    def chosen(self, wanted: BitMap64, offset: int = 0) -> tuple[list[Block], FrameTable]:
        """Return the pairs of frames that are `wanted`, and the frames of these pairs, whose steps are numbers."""
        blocks = [block.part(0, SHARDS) for block in self._blocks]
        frames = self.frames
        if not self.covered <= wanted:
            if self.combined:
                raise ValueError("what combine() made can only be used as a whole")
            kept = among(frames.steps, wanted)
            blocks, frames = [chosen_rows(block, kept) for block in blocks], frames.chosen(np.flatnonzero(kept))
            if frames.boxes is not None and np.isnan(frames.boxes).all():
                frames = replace(frames, boxes=None)  # as if the other frames had never been read
        return [replace(block, at=block.at + np.uint32(offset)) for block in blocks if len(block)], frames


def count_pairs(block: Block) -> int:
    """Return how many pairs a block has."""
    if block.form == Form.PAIR or block.values is None:
        return len(block)
    counts = block.values if block.form == Form.INTERVAL else np.bitwise_count(block.values)
    return int(counts.sum(dtype=np.int64))
