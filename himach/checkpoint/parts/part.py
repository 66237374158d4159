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
from pyroaring import BitMap64

from himach.checkpoint.parts.blocks import PartBlock, read_block, write_blocks
from himach.checkpoint.parts.columns import PARSE_ERRORS, ColumnFile, ColumnWriter
from himach.checkpoint.parts.frames import Numbers, chosen_rows, find_requested, read_covered, write_covered
from himach.engine.pairs.block import SHARDS, Block, Form, Kind
from himach.engine.stamps import FrameTable

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
    """Write a part, of blocks of any kinds; return its path.

    `numbers`: int64 (n,): the frame number of each row of `table`, whose steps belong to one selection.
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
    """Return what a part says of itself; its pairs are not read."""
    file = ColumnFile(path)
    try:
        return _summary(file)
    finally:
        file.close()


def open_part(
    path: Path, *, pickles: bool, identity: str = "", home: str = "", load: bool = True, check: bool = True
) -> Part:
    """Open a part; raises BadPartError for whatever is wrong with it, also if it is not of the map `identity`.

    Where values may be `pickles`, they must be of an analysis of the module `home`, if that is not "". Unless its pairs
    are to be in memory from now on (`load`), reading them may raise that error later, where its file is changed
    meanwhile. `check` is False where this process has just written it.
    """
    file = ColumnFile(path)
    try:
        if file.description.get("identity") != identity:
            raise file.bad("it is of another map")
        summary = _summary(file)
        if check:
            file.verify(load)
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
    """A part that was checked."""

    def __init__(self, file: ColumnFile, summary: Summary, pickles: bool, home: str) -> None:
        described = file.description
        foreign = str(described["home"]) if home and described["home"] != home else ""
        self.covered, self.combined = summary.covered, summary.combined
        self.pairs, self.nbytes = summary.pairs, summary.nbytes
        numbers = file.column(described["numbers"], np.int64, -1)
        times, boxes = file.column(described["times"], np.float64, len(numbers)), None
        if described["boxes"] is not None:
            boxes = file.column(described["boxes"], np.float32, len(numbers), 6)
        if len(numbers) and not BitMap64(numbers.astype(np.uint64)) <= self.covered:
            raise ValueError("it has pairs of frames that it does not cover")
        self.frames = FrameTable(numbers, times, boxes)  # of its pairs, whose steps are frame numbers
        self.in_memory = file.in_memory
        self._file = file
        self._blocks = [read_block(file, block, len(numbers), pickles, foreign) for block in described["blocks"]]

    def check(self) -> None:
        """Raise ValueError if pairs are of frames that are not there."""
        for block in self._blocks:
            block.check()
            if self.in_memory:
                block.load_objects()

    def on_disk(self, offset: int = 0) -> list[PartBlock]:
        """Return all blocks as they lie in the file, to be read some shards at a time; `offset` is added to `at`."""
        return [replace(block, offset=offset) for block in self._blocks]

    def chosen(self, requested: BitMap64 | None = None, offset: int = 0) -> tuple[list[Block], FrameTable]:
        """Return the pairs of frames that are `requested` (None: all), and the frames of these pairs, by number.

        `at` is `offset` more than the row of these frames.
        """
        frames = self.frames
        blocks = [block.part(0, SHARDS) for block in self._blocks]
        if requested is not None and not self.covered <= requested:
            if self.combined:
                raise ValueError("what combine() made can only be used as a whole")
            mask = find_requested(frames.steps, requested)
            blocks, frames = [chosen_rows(block, mask) for block in blocks], frames.chosen(np.flatnonzero(mask))
            if frames.boxes is not None and np.isnan(frames.boxes).all():
                frames = replace(frames, boxes=None)  # as if the other frames had never been read
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
    described = file.description
    try:
        identity, pairs, combined = described["identity"], described["pairs"], described["combined"]
        if type(identity) is not str or type(pairs) is not int or type(combined) is not bool:
            raise ValueError("it does not say what it has")
        return Summary(identity, read_covered(file, described["covered"]), pairs, file.nbytes, combined)
    except PARSE_ERRORS as error:
        raise file.bad(f"it makes no sense: {error}") from error
