"""What earlier runs kept, for this one: which parts each rank takes over, and which frames are left to be mapped.

A run that keeps its pairs: `open_pairs()` finds what is kept already, and where what is mapped now will go.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from himach.checkpoint.directory import FingerprintVersion, PairsDirectory, Place, is_private
from himach.checkpoint.map_fingerprint import MapFingerprint, differences
from himach.checkpoint.opened_files import OpenedFiles
from himach.checkpoint.parts.columns import BadPartError, DamagedPartError
from himach.checkpoint.parts.part import Part, count_pairs, open_part
from himach.engine.mapping import Mapper
from himach.engine.stamps import FrameTable
from himach.errors import HimachError
from himach.parallel.collective import on_first_rank
from himach.parallel.communicator import Communicator
from himach.selection import Selected, find_steps
from himach.zazen.node_frames import Remaining

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Chosen:
    """A part that a rank takes over."""

    part: Part  # verified
    requested: BitMap64 | None  # numbers of its frames that the run takes from it; None for all

    def give(self, mapper: Mapper, frames: Selected) -> None:
        """Give a mapper the pairs, of a selection of frames."""
        row = len(mapper.stamps)
        if self.requested is None and not self.part.in_memory:
            mapper.adopt(_with_steps(self.part.frames, frames), self.part.pairs, [], self.part.on_disk(row))
        else:
            blocks, table = self.part.chosen(self.requested, row)
            pairs = self.part.pairs if self.requested is None else sum(map(count_pairs, blocks))
            mapper.adopt(_with_steps(table, frames), pairs, blocks)


def _with_steps(table: FrameTable, frames: Selected) -> FrameTable:
    """Return a part's table of frames as a run has it that selects them, among others."""
    return replace(table, steps=find_steps(frames, table.steps))


@dataclass
class Loaded:
    """What a rank takes over for one analysis."""

    parts: list[Chosen] = field(default_factory=list)  # what it puts among its own pairs
    skip: Collection[int] = frozenset()


@dataclass(frozen=True)
class ReusePlan:
    """What all ranks found."""

    loaded: list[Loaded]  # for each analysis
    remaining: Remaining | None  # frames that at least one analysis has to map; None for all
    reused: int  # how many frames need not be mapped
    lost: list[int]
    bad: list[str]  # why parts cannot be used, a text for each


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
) -> ReusePlan:
    """Verify the parts of generations, and divide them among the ranks (collective).

    Those that are damaged are deleted. Where parts take more `memory` (bytes) on this rank, they stay on the disk.
    """
    listed = comm.bcast([_by_size(generation) for generation in generations] if comm.rank == 0 else None)
    own_parts: list[dict[str, Part]] = []
    verified: list[list[_RankParts]] = []
    bad: list[str] = []
    load = sum(size for names in listed for _, size in names[comm.rank :: comm.size]) <= memory
    for generation, names, pickled, home in zip(generations, listed, pickles, homes, strict=True):
        opened: dict[str, Part] = {}
        for path, _ in names[comm.rank :: comm.size]:
            assert generation is not None
            try:
                trusted = pickled and is_private(path)
                opened[path.name] = open_part(path, identity=generation.key, pickles=trusted, home=home, load=load)
            except BadPartError as error:
                bad.append(str(error))
                if isinstance(error, DamagedPartError):
                    with suppress(OSError):
                        path.unlink()  # so that it is said once
        own_parts.append(opened)
        verified.append([_RankParts(comm.rank, name, part.covered, part.combined) for name, part in opened.items()])
    gathered = comm.gather((verified, bad))
    choice = comm.bcast(_choose(gathered, frames) if comm.rank == 0 else None)
    chosen_parts, remaining, reused, lost, skips, all_bad = choice
    loaded = [
        Loaded([Chosen(opened[name], numbers) for name, numbers in chosen.get(comm.rank, {}).items()], skip)
        for opened, chosen, skip in zip(own_parts, chosen_parts, skips, strict=True)
    ]
    return ReusePlan(loaded, remaining, reused, lost, all_bad)


#: For each rank the parts that it takes over, by name, each with the frames that are requested of it; None for all.
_ChosenParts = dict[int, dict[str, BitMap64 | None]]


def _choose(
    gathered: Sequence[tuple[list[list[_RankParts]], list[str]]], frames: Selected
) -> tuple[list[_ChosenParts], Remaining | None, int, list[int], list[Collection[int]], list[str]]:
    """Decide which parts are used; on the first rank."""
    selected = BitMap64(frames if isinstance(frames, range) else frames.numbers.astype(np.uint64))
    bad = [text for _, texts in gathered for text in texts]
    chosen_parts: list[_ChosenParts] = []
    taken_frames: list[BitMap64] = []
    lost: list[int] = []
    for analysis in zip(*(verified for verified, _ in gathered), strict=True):
        parts = [part for rank in analysis for part in rank]
        chosen, covered = choose_parts(parts, selected)
        chosen_parts.append(chosen)
        taken_frames.append(covered)
        lost.append(len((BitMap64.union(*(part.covered for part in parts)) & selected) - covered) if parts else 0)
    shared = BitMap64.intersection(*taken_frames)
    if not any(taken_frames):
        return chosen_parts, None, 0, lost, [frozenset() for _ in taken_frames], bad
    mask = np.ones(len(frames), dtype=np.bool_)
    mask[_steps(shared, frames)] = False
    skips: list[Collection[int]] = [frozenset(_steps(own - shared, frames).tolist()) for own in taken_frames]
    return chosen_parts, Remaining.from_mask(frames, mask), len(shared), lost, skips, bad


def choose_parts(verified: Sequence[_RankParts], selected: BitMap64) -> tuple[_ChosenParts, BitMap64]:
    """Choose parts so that no frame comes twice; return also the frames that they have.

    What combine() made of many frames can be used only where all of them are selected, and in no other part.
    """
    chosen: _ChosenParts = {}
    taken_frames = BitMap64()
    for part in sorted(verified, key=lambda part: (-len(part.covered), part.name)):
        numbers = (part.covered & selected) - taken_frames
        if not numbers or (part.combined and len(numbers) < len(part.covered)):
            continue
        chosen.setdefault(part.rank, {})[part.name] = None if len(numbers) == len(part.covered) else numbers
        taken_frames |= numbers
    return chosen, taken_frames


def frame_numbers(frames: BitMap64) -> Numbers:
    """Return frame numbers as int64 (n,), ascending."""
    return np.asarray(frames.to_array()).astype(np.int64)


def _steps(numbers: BitMap64, frames: Selected) -> Numbers:
    return find_steps(frames, frame_numbers(numbers))


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


_WHOLE = "pairs of {:,} frames were combined with those of frames that are not selected"


@dataclass
class CheckpointRun:
    """What a run has from earlier ones, and where it keeps its own."""

    directory: PairsDirectory  # held by the first rank until `release`
    frames: Selected  # the selected frame numbers
    places: list[Place]  # for each analysis where its pairs go
    plan: ReusePlan  # what is there already
    reason: str  # why pairs that are there are not used, or that they are although something differs; for people
    lasting: bool  # whether pairs stay when the run has ended well
    files: OpenedFiles  # what this rank opened
    unstable: list[dict[str, str]]

    def release(self, succeeded: bool) -> None:
        """Let other runs have the directory; on the first rank, and when all others write no more."""
        self.directory.release()
        if succeeded and not self.lasting:
            shutil.rmtree(self.directory.path, ignore_errors=True)


def open_pairs(
    comm: Communicator,
    path: Path,
    labels: Sequence[str],
    fingerprints: Callable[[], Sequence[MapFingerprint]],
    combined: Sequence[bool],
    homes: Sequence[str],
    frames: Selected,
    reuse: str,
    lasting: bool,
    memory: int,
    files: OpenedFiles,
) -> CheckpointRun:
    """Find what is kept, and begin to keep (collective)."""
    directory = PairsDirectory(path)

    def begin() -> tuple[list[FingerprintVersion], list[tuple[str, str]], list[bool]]:
        if lasting or path.exists():
            directory.claim()
        try:
            named = zip(labels, fingerprints(), strict=True)
            chosen = [_generation(directory, label, now, reuse, files.digests) for label, now in named]
        except BaseException:
            directory.release()
            raise
        reasons = [(label, reason) for label, (_, reason) in zip(labels, chosen, strict=True) if reason]
        generations = [generation for generation, _ in chosen]
        return generations, reasons, [generation.private for generation in generations]

    try:
        generations, reasons, private = on_first_rank(comm, begin, share=True)
        plan = find_parts(comm, generations, private, homes, frames, memory)
    except BaseException:
        directory.release()
        raise
    places = [Place(*item) for item in zip(generations, combined, private, homes, strict=True)]
    reasons += [(label, _WHOLE.format(lost)) for label, lost in zip(labels, plan.lost, strict=True) if lost]
    reason = "; ".join(text if len(labels) == 1 else f"for {label}, {text}" for label, text in reasons)
    unstable = [{} if item.fingerprint is None else item.fingerprint.unstable for item in generations]
    return CheckpointRun(directory, frames, places, plan, reason, lasting, files, unstable)


def _generation(
    directory: PairsDirectory, label: str, now: MapFingerprint, reuse: str, files: Mapping[str, str]
) -> tuple[FingerprintVersion, str]:
    """Return the generation that a run uses, and why it is not the last one as it is."""
    versions = directory.generations(label)
    valid = [generation for generation in versions if generation.fingerprint is not None]
    if reuse == "never" or not valid:
        lost = "" if reuse == "never" else "; ".join(generation.damage for generation in versions if generation.damage)
        return directory.begin(label, now), "reuse is 'never'" if valid else lost
    diffs = [
        [*differences(old.fingerprint, now), *old.changed_files(files)] for old in valid if old.fingerprint is not None
    ]
    same = next((generation for generation, diff in zip(valid[::-1], diffs[::-1], strict=True) if not diff), None)
    if same is None and reuse == "auto":
        return directory.begin(label, now), "; ".join(diffs[-1])
    used = same or valid[-1]
    current = FingerprintVersion(used.path, used.number, used.key, now)
    with contextlib.suppress(OSError, HimachError):
        current.write()  # as the trajectory is now
    return current, "" if same else f"used although {'; '.join(diffs[-1])}"
