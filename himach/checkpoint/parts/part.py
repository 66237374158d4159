"""A part: one file of kept pairs. `write_part()`, `open_part()`, `Part`; `read_summary()` for listings.

A part has one block of each kind, the table of the frames of their pairs, and the numbers of all frames that it covers,
with or without pairs. It is written under a temporary name, then renamed, and never changed. A power cut may still tear
it, which the checksums detect (`himach.checkpoint.parts.columns`).
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
from himach.checkpoint.parts.frames import chosen_rows, find_requested, read_covered, write_covered
from himach.engine.pairs.block import SHARDS, Block, Form, Kind
from himach.engine.stamps import FrameTable

#: Suffixes of parts, and of unfinished ones.
SUFFIX, UNFINISHED = ".pairs", ".tmp"


def write_part(
    directory: Path,
    blocks: Sequence[Block],
    frames: FrameTable,
    covered: BitMap64,
    *,
    combined: bool,
    pickles: bool,
    identity: str = "",
    home: str = "",
    pairs: int | None = None,
) -> Path:
    """Write blocks of any kinds as a part; return its path. The steps of `frames` are frame numbers."""
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
                    "numbers": writer.add(np.ascontiguousarray(frames.steps, dtype=np.int64)),
                    "times": writer.add(np.ascontiguousarray(frames.times)),
                    "boxes": None if frames.boxes is None else writer.add(np.ascontiguousarray(frames.boxes)),
                    "blocks": written,
                }
            )
        finally:
            os.close(file)  # may raise: a network file system reports here that it is full
        os.replace(unfinished, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(unfinished)
        raise
    return path


@dataclass(frozen=True)
class Summary:
    """Summary of a part: its map, its frames, and its numbers of pairs and bytes."""

    identity: str
    covered: BitMap64 = field(repr=False)
    pairs: int
    nbytes: int
    combined: bool


def read_summary(path: Path) -> Summary:
    """Return the summary of a part without reading its pairs."""
    file = ColumnFile(path)
    try:
        return _summary(file)
    finally:
        file.close()


def open_part(
    path: Path, *, pickles: bool, identity: str = "", home: str = "", load: bool = True, check: bool = True
) -> Part:
    """Open a part; raise BadPartError if it is unusable or not of the map `identity`.

    If `pickles` are allowed, they must be of an analysis of module `home`, unless that is "". `load` reads the pairs
    into memory; without it, later reads raise that error if the file has changed. `check` is False if this process has
    just written the part.
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
    """A checked part."""

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
        """Raise ValueError if pairs refer to missing frames."""
        for block in self._blocks:
            block.check()
            if self.in_memory:
                block.load_objects()

    def on_disk(self, offset: int = 0) -> list[PartBlock]:
        """Return all blocks for reading by ranges of shards; `offset` is added to `at`."""
        return [replace(block, offset=offset) for block in self._blocks]

    def chosen(self, requested: BitMap64 | None = None, offset: int = 0) -> tuple[list[Block], FrameTable]:
        """Return the pairs of `requested` frames (None: all) and the table of these frames, with numbers as steps.

        `at` is the row in this table plus `offset`.
        """
        frames = self.frames
        blocks = [block.part(0, SHARDS) for block in self._blocks]
        if requested is not None and not self.covered <= requested:
            if self.combined:
                raise ValueError("what combine() made can only be used as a whole")
            mask = find_requested(frames.steps, requested)
            blocks, frames = [chosen_rows(block, mask) for block in blocks], frames.chosen(np.flatnonzero(mask))
            if frames.boxes is not None and np.isnan(frames.boxes).all():
                frames = replace(frames, boxes=None)  # as if the other frames were never read
        if offset:
            blocks = [replace(block, at=block.at + np.uint32(offset)) for block in blocks]
        return [block for block in blocks if len(block)], frames

    def close(self) -> None:
        """Close the file; data in memory stay."""
        self._file.close()


def count_pairs(block: Block) -> int:
    """Return the number of pairs of a block."""
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
