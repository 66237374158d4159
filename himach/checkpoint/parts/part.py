"""A part: one file of kept pairs. `write_part()`, `open_part()`, `Part`; `read_summary()` for what lists them.

A part has blocks, one of each kind, the table of the frames that their pairs are of, and the numbers of all frames that
it covers, with pairs or without. It is written under a name that nobody looks for and then renamed, and never changed.
A power cut may leave it torn all the same; the checksums tell (`himach.checkpoint.parts.columns`).
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from himach.checkpoint.parts.blocks import PartBlock, read_block, write_blocks
from himach.checkpoint.parts.columns import PARSE_ERRORS, BadPartError, ColumnFile, ColumnWriter, DamagedPartError
from himach.checkpoint.parts.frames import KeptFrames, Numbers, among, chosen_rows, read_covered, write_covered
from himach.checkpoint.parts.plain import NotPlainError
from himach.engine.pairs.block import SHARDS, Block, Form, Kind
from himach.engine.stamps.table import FrameTable

__all__ = [
    "BadPartError",
    "DamagedPartError",
    "NotPlainError",
    "Part",
    "PartBlock",
    "Summary",
    "count_pairs",
    "open_part",
    "read_summary",
    "write_part",
]

#: What names of parts end with, and of parts that are being written.
SUFFIX, UNFINISHED = ".pairs", ".tmp"


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

    Parameters
    ----------
    directory
        Where; it exists.
    blocks
        Blocks of any kinds; those of one kind become one, in their order.
    table
        The frames of the blocks, by row; steps are not kept, for they belong to one selection.
    numbers
        int64 (n,): the frame number of each row of `table`.
    covered
        The numbers of all frames of which all pairs are in `blocks`.
    combined
        Whether combine() made the pairs, of several frames one: such a part can only be used as a whole.
    pickles
        Whether values that are Python objects may be pickled.
    identity
        What the part belongs to; `open_part()` is to be given the same.
    home
        The module of the analysis, whose classes those of pickled values may be.
    pairs
        How many pairs map() yielded; None: as many as there are.

    Raises
    ------
    NotPlainError
        If a value would have to be pickled.
    OSError
        If the disk does not take it; nothing is left of it then.
    """
    name = secrets.token_hex(8)
    unfinished, path = directory / f".{name}{UNFINISHED}", directory / f"{name}{SUFFIX}"
    file = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            writer = ColumnWriter(file)
            kinds: dict[Kind, list[Block]] = {}
            for block in blocks:
                kinds.setdefault(block.kind, []).append(block)
            written = [write_blocks(writer, alike, pickles) for alike in kinds.values()]
            writer.finish(
                {
                    "identity": identity,
                    "home": home,
                    "combined": combined,
                    "pairs": sum(map(count_pairs, blocks)) if pairs is None else pairs,
                    "covered": write_covered(writer, covered),
                    "numbers": writer.add(np.ascontiguousarray(numbers, dtype=np.int64)),
                    "times": writer.add(np.ascontiguousarray(table.times)),
                    "boxes": None if table.boxes is None else writer.add(np.ascontiguousarray(table.boxes)),
                    "blocks": written,
                }
            )
        finally:
            os.close(file)  # where a network's disk says that it was full
        os.replace(unfinished, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(unfinished)
        raise
    return path


@dataclass(frozen=True)
class Summary:
    """What a part says of itself: what it belongs to, the frames that it covers, how many pairs and bytes it has."""

    identity: str
    covered: BitMap64 = field(repr=False)
    pairs: int
    nbytes: int
    combined: bool


def read_summary(path: Path) -> Summary:
    """Return what a part says of itself; its pairs are not read.

    Raises
    ------
    BadPartError
        If it cannot be used, as far as that can be told.
    """
    file = ColumnFile(path)
    try:
        return _summary(file)
    finally:
        file.close()


def open_part(
    path: Path, *, pickles: bool, identity: str = "", home: str = "", hold: bool = True, check: bool = True
) -> Part:
    """Open a part and check all of it.

    Parameters
    ----------
    path
        Its file.
    pickles
        Whether it may have values that are pickled.
    identity
        What it must belong to.
    home
        The module of the analysis. Where it was another, values of that one's classes cannot be used; "": any.
    hold
        Whether its pairs are to be in memory from now on; else they are read again where they are asked for.
    check
        Whether to check its pairs: not where this process has just written them.

    Raises
    ------
    BadPartError
        For whatever is wrong with it. Of a part that is not held, reading may raise it later, if its file is made
        shorter, or was made up to deceive.
    """
    file = ColumnFile(path)
    try:
        if file.description.get("identity") != identity:
            raise file.bad("it is of another map")
        summary = _summary(file)
        if check:
            file.verify(hold)
        file.rest()
        part = Part(file, summary, pickles, home)
        if check:
            part.check()
        return part
    except PARSE_ERRORS as error:
        raise file.bad(f"it makes no sense: {error}") from error
    except BaseException:
        file.close()
        raise


class Part:
    """A part that was checked.

    Attributes
    ----------
    path
        Its file.
    covered
        The numbers of the frames whose pairs are in it.
    combined
        Whether it can only be used as a whole.
    pairs, nbytes
        How many pairs it has, and the bytes of its file.
    held
        Whether its pairs are in memory.
    numbers, times, boxes
        The table of frames of its pairs: int64 (n,), float64 (n,) in ps, and float32 (n, 6) in Å and degrees, rows of
        NaN where a frame has no box, None if none has one.
    """

    def __init__(self, file: ColumnFile, summary: Summary, pickles: bool, home: str) -> None:
        said = file.description
        foreign = str(said["home"]) if home and said["home"] != home else ""
        self.path = file.path
        self.covered = summary.covered
        self.combined = summary.combined
        self.pairs = summary.pairs
        self.nbytes = summary.nbytes
        self.numbers: Numbers = file.column(said["numbers"], np.int64, -1)
        self.times: npt.NDArray[np.float64] = file.column(said["times"], np.float64, len(self.numbers))
        self.boxes: npt.NDArray[np.float32] | None = None
        if said["boxes"] is not None:
            self.boxes = file.column(said["boxes"], np.float32, len(self.numbers), 6)
        if len(self.numbers) and not BitMap64(self.numbers.astype(np.uint64)) <= self.covered:
            raise ValueError("it has pairs of frames that it does not cover")
        self.held = file.held
        self._file = file
        self._blocks = [read_block(file, described, pickles, foreign) for described in said["blocks"]]

    def check(self) -> None:
        """Raise ValueError if pairs are of frames that are not there."""
        for block in self._blocks:
            block.check(len(self.numbers))
            if self.held:
                block.know()

    @property
    def frames(self) -> KeptFrames:
        """The table of frames of its pairs."""
        return KeptFrames(self.numbers, self.times, self.boxes)

    def blocks(self) -> list[Block]:
        """Return all blocks, as they were written; `at` is the row of `numbers`."""
        return [block.part(0, SHARDS) for block in self._blocks]

    def on_disk(self, offset: int = 0) -> list[PartBlock]:
        """Return all blocks as they lie in the file, to be read some shards at a time; `offset` is added to `at`."""
        return [replace(block, offset=offset) for block in self._blocks]

    def chosen(self, wanted: BitMap64 | None = None, offset: int = 0) -> tuple[list[Block], KeptFrames]:
        """Return the pairs of frames that are `wanted` (None: of all), and the frames of these pairs.

        `at` is `offset` more than the row of these frames.

        Raises
        ------
        ValueError
            If only some frames are wanted of a part that can only be used as a whole.
        """
        frames = self.frames
        blocks = self.blocks()
        if wanted is not None and not self.covered <= wanted:
            if self.combined:
                raise ValueError("what combine() made can only be used as a whole")
            kept = among(self.numbers, wanted)
            if not kept.all():
                blocks, frames = [chosen_rows(block, kept) for block in blocks], frames.chosen(kept)
        if offset:
            blocks = [replace(block, at=block.at + np.uint32(offset)) for block in blocks]
        return [block for block in blocks if len(block)], frames

    def close(self) -> None:
        """Close the file; what is in memory stays."""
        self._file.close()


def count_pairs(block: Block) -> int:
    """Return how many pairs a block has."""
    if block.form == Form.PAIR or block.values is None:
        return len(block)
    counts = block.values if block.form == Form.INTERVAL else np.bitwise_count(block.values)
    return int(counts.sum(dtype=np.int64))


def _summary(file: ColumnFile) -> Summary:
    said = file.description
    try:
        identity, pairs, combined = said["identity"], said["pairs"], said["combined"]
        if type(identity) is not str or type(pairs) is not int or type(combined) is not bool:
            raise ValueError("it does not say what it has")
        return Summary(identity, read_covered(file, said["covered"]), pairs, file.nbytes, combined)
    except PARSE_ERRORS as error:
        raise file.bad(f"it makes no sense: {error}") from error
