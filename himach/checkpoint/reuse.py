"""What earlier runs kept, for this one: which parts each rank takes over, and which frames are left to be mapped."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from himach.checkpoint.directory import FingerprintVersion, is_private
from himach.checkpoint.parts.part import BadPartError, DamagedPartError, Part, count_pairs, open_part
from himach.engine.mapping import Mapper
from himach.parallel.communicator import Communicator
from himach.selection import Selected, steps_of
from himach.zazen.remaining import Remaining

__all__ = ["Chosen", "Found", "Loaded", "find_parts", "numbers_of", "take_over"]

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Chosen:
    """A part that a rank takes over.

    Attributes
    ----------
    part
        Verified.
    wanted
        Numbers of its frames that the run takes from it; None for all.
    """

    part: Part
    wanted: BitMap64 | None

    def give(self, mapper: Mapper, frames: Selected) -> None:
        """Give a mapper the pairs, of a selection of frames."""
        row = len(mapper.stamps)
        if self.wanted is None and not self.part.held:
            mapper.adopt(self.part.frames.table(frames), self.part.pairs, [], self.part.on_disk(row))
        else:
            blocks, rows = self.part.chosen(self.wanted)
            pairs = self.part.pairs if self.wanted is None else sum(map(count_pairs, blocks))
            for block in blocks:  # in place: nobody else has them
                np.add(block.at, np.uint32(row), out=block.at)
            mapper.adopt(rows.table(frames), pairs, blocks)


@dataclass
class Loaded:
    """What a rank takes over for one analysis.

    Attributes
    ----------
    parts
        What it puts among its own pairs.
    skip
        Steps that need not be mapped for this analysis, though another one needs them.
    """

    parts: list[Chosen] = field(default_factory=list)
    skip: Collection[int] = frozenset()


@dataclass(frozen=True)
class Found:
    """What all ranks found.

    Attributes
    ----------
    loaded
        For each analysis.
    remaining
        Frames that at least one analysis has to map; None for all.
    reused
        How many frames need not be mapped.
    lost
        For each analysis how many selected frames are there, and combined with others that are not selected.
    bad
        Why parts cannot be used, a text for each.
    """

    loaded: list[Loaded]
    remaining: Remaining | None
    reused: int
    lost: list[int]
    bad: list[str]


@dataclass(frozen=True)
class _RankParts:
    """What a rank tells of a part that it has verified."""

    rank: int
    name: str
    covered: BitMap64
    combined: bool


def find_parts(
    comm: Communicator,
    generations: Sequence[FingerprintVersion | None],
    pickles: Sequence[bool],
    homes: Sequence[str],
    frames: Selected,
    memory: int,
) -> Found:
    """Verify the parts of generations, and divide them among the ranks (collective).

    Those that are damaged are deleted.

    Parameters
    ----------
    comm
        All ranks.
    generations
        For each analysis where its pairs are kept, the same on every rank; None: nowhere.
    pickles
        For each whether values may be pickles.
    homes
        The modules that the analyses are from.
    frames
        The selected frame numbers.
    memory
        Bytes that parts may take on this rank; where they are more, they stay on the disk.
    """
    listed = comm.bcast([_by_size(generation) for generation in generations] if comm.rank == 0 else None)
    mine: list[dict[str, Part]] = []
    told: list[list[_RankParts]] = []
    bad: list[str] = []
    hold = sum(size for names in listed for _, size in names[comm.rank :: comm.size]) <= memory
    for generation, names, pickled, home in zip(generations, listed, pickles, homes, strict=True):
        opened: dict[str, Part] = {}
        for path, _ in names[comm.rank :: comm.size]:
            assert generation is not None
            try:
                trusted = pickled and is_private(path)
                opened[path.name] = open_part(path, identity=generation.key, pickles=trusted, home=home, hold=hold)
            except BadPartError as error:
                bad.append(str(error))
                if isinstance(error, DamagedPartError):
                    with suppress(OSError):
                        path.unlink()  # so that it is said once
        mine.append(opened)
        told.append([_RankParts(comm.rank, name, part.covered, part.combined) for name, part in opened.items()])
    everyone = comm.gather((told, bad))
    choice = comm.bcast(_choose(everyone, frames) if comm.rank == 0 else None)
    wanted, remaining, reused, lost, skips, all_bad = choice
    loaded = [
        Loaded([Chosen(opened[name], some) for name, some in chosen.get(comm.rank, {}).items()], skip)
        for opened, chosen, skip in zip(mine, wanted, skips, strict=True)
    ]
    return Found(loaded, remaining, reused, lost, all_bad)


#: For each rank the parts that it takes over, by name, each with the frames that are wanted of it; None for all.
_Wanted = dict[int, dict[str, BitMap64 | None]]


def _choose(
    everyone: Sequence[tuple[list[list[_RankParts]], list[str]]], frames: Selected
) -> tuple[list[_Wanted], Remaining | None, int, list[int], list[Collection[int]], list[str]]:
    """Decide which parts are used; on the first rank."""
    selected = BitMap64(frames if isinstance(frames, range) else frames.numbers.astype(np.uint64))
    bad = [text for _, texts in everyone for text in texts]
    wanted: list[_Wanted] = []
    taken: list[BitMap64] = []
    lost: list[int] = []
    for analysis in zip(*(told for told, _ in everyone), strict=True):
        parts = [part for rank in analysis for part in rank]
        chosen, covered = take_over(parts, selected)
        wanted.append(chosen)
        taken.append(covered)
        lost.append(len((BitMap64.union(*(part.covered for part in parts)) & selected) - covered) if parts else 0)
    shared = BitMap64.intersection(*taken)
    if not any(taken):
        return wanted, None, 0, lost, [frozenset() for _ in taken], bad
    left = np.ones(len(frames), dtype=np.bool_)
    left[_steps(shared, frames)] = False
    skips: list[Collection[int]] = [frozenset(_steps(own - shared, frames).tolist()) for own in taken]
    return wanted, Remaining.of(frames, left), len(shared), lost, skips, bad


def take_over(told: Sequence[_RankParts], selected: BitMap64) -> tuple[_Wanted, BitMap64]:
    """Choose parts so that no frame comes twice; return also the frames that they have.

    What combine() made of many frames can be used only where all of them are selected, and in no other part.
    """
    wanted: _Wanted = {}
    taken = BitMap64()
    for part in sorted(told, key=lambda part: (-len(part.covered), part.name)):
        some = (part.covered & selected) - taken
        if not some or (part.combined and len(some) < len(part.covered)):
            continue
        wanted.setdefault(part.rank, {})[part.name] = None if len(some) == len(part.covered) else some
        taken |= some
    return wanted, taken


def numbers_of(frames: BitMap64) -> Numbers:
    """Return frame numbers as int64 (n,), ascending."""
    return np.asarray(frames.to_array()).astype(np.int64)


def _steps(numbers: BitMap64, frames: Selected) -> Numbers:
    return steps_of(frames, numbers_of(numbers))


def _by_size(generation: FingerprintVersion | None) -> list[tuple[Path, int]]:
    """Return the parts and their bytes, the largest first, so that each rank gets about as much as any other."""
    parts = [] if generation is None else [(path, _size(path)) for path in generation.parts()]
    return sorted(parts, key=lambda part: (-part[1], part[0]))


def _size(path: Path) -> int:
    """Return the bytes of a file; 0 where there is none, which whoever opens it says."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
