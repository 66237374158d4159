"""Reuse of pairs of earlier runs: which parts each rank loads, and which frames remain to be mapped."""

import contextlib
import shutil
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
from pyroaring import BitMap64

from himach.checkpoint.directory import FingerprintVersion, PairsDirectory
from himach.checkpoint.map_fingerprint import MapFingerprint, differences
from himach.checkpoint.part import BadPartError, DamagedPartError, Part, Summary, count_pairs, open_part
from himach.checkpoint.sources import OpenedFiles
from himach.engine.mapping import Mapper
from himach.errors import HimachError
from himach.ranks.collective import on_first_rank
from himach.ranks.communicator import Communicator
from himach.selection import Numbers, Selected, find_steps
from himach.zazen.node_frames import Remaining


@dataclass(frozen=True)
class Chosen:
    """A part that a rank loads."""

    part: Part  # verified
    requested: BitMap64 | None  # numbers of the frames to load; None for all

    def give(self, mapper: Mapper, frames: Selected) -> None:
        """Pass the pairs to a mapper; `frames` is the run's selection."""
        row = np.uint32(len(mapper.stamps))
        blocks, table = self.part.read(self.requested)
        pairs = self.part.summary.pairs if self.requested is None else sum(map(count_pairs, blocks))
        table = replace(table, steps=find_steps(frames, table.steps))
        mapper.adopt(table, pairs, [replace(block, at=block.at + row) for block in blocks])


@dataclass(frozen=True)
class ReusePlan:
    """What a run reuses."""

    loaded: list[list[Chosen]]  # per analysis: the parts of this rank
    skips: list[Collection[int]]  # per analysis: steps that it has and another one lacks
    remaining: Remaining | None  # frames that at least one analysis has to map; None for all
    reused: int  # number of frames that need no mapping
    lost: list[int]
    bad: list[str]  # why parts cannot be used, one text each


@dataclass(frozen=True)
class _RankParts:
    """What a rank reports about a verified part."""

    rank: int
    name: str
    summary: Summary


def find_parts(
    comm: Communicator,
    generations: Sequence[FingerprintVersion],
    homes: Sequence[str],
    frames: Selected,
) -> ReusePlan:
    """Verify the parts of generations and divide them among the ranks; delete damaged ones (collective)."""
    listed = comm.bcast([generation.parts() for generation in generations] if comm.rank == 0 else None)
    own_parts: list[dict[str, Part]] = []
    verified: list[list[_RankParts]] = []
    bad: list[str] = []
    for generation, names, home in zip(generations, listed, homes, strict=True):
        opened: dict[str, Part] = {}
        for path in names[comm.rank :: comm.size]:
            try:
                opened[path.name] = open_part(path, generation.key, home)
            except BadPartError as error:
                bad.append(str(error))
                if isinstance(error, DamagedPartError):
                    with suppress(OSError):
                        path.unlink()  # so that it is reported once
        own_parts.append(opened)
        verified.append([_RankParts(comm.rank, name, part.summary) for name, part in opened.items()])
    gathered = comm.gather((verified, bad))
    chosen_parts, plan = comm.bcast(_choose(gathered, frames) if comm.rank == 0 else None)
    for opened, chosen in zip(own_parts, chosen_parts, strict=True):
        plan.loaded.append([Chosen(opened[name], numbers) for name, numbers in chosen.get(comm.rank, {}).items()])
    return cast(ReusePlan, plan)


#: For each rank its parts by name, each with the requested frames; None for all.
_ChosenParts = dict[int, dict[str, BitMap64 | None]]


def _choose(
    gathered: Sequence[tuple[list[list[_RankParts]], list[str]]], frames: Selected
) -> tuple[list[_ChosenParts], ReusePlan]:
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
        kept = BitMap64.union(BitMap64(), *(part.summary.covered for part in parts)) & selected
        lost.append(len(kept - covered))
    shared = BitMap64.intersection(*taken_frames)
    if not any(taken_frames):
        return chosen_parts, ReusePlan([], [frozenset() for _ in taken_frames], None, 0, lost, bad)
    mask = np.ones(len(frames), dtype=np.bool_)
    mask[_steps(shared, frames)] = False
    skips: list[Collection[int]] = [frozenset(_steps(own - shared, frames).tolist()) for own in taken_frames]
    return chosen_parts, ReusePlan([], skips, Remaining.from_mask(frames, mask), len(shared), lost, bad)


def choose_parts(verified: Sequence[_RankParts], selected: BitMap64) -> tuple[_ChosenParts, BitMap64]:
    """Choose parts without a frame twice, combined ones as a whole; return them and the frames that they cover."""
    chosen: _ChosenParts = {}
    taken_frames = BitMap64()
    for part in sorted(verified, key=lambda part: (-len(part.summary.covered), part.name)):
        covered = part.summary.covered
        numbers = (covered & selected) - taken_frames
        if not numbers or (part.summary.combined and len(numbers) < len(covered)):
            continue
        chosen.setdefault(part.rank, {})[part.name] = None if len(numbers) == len(covered) else numbers
        taken_frames |= numbers
    return chosen, taken_frames


def _steps(numbers: BitMap64, frames: Selected) -> Numbers:
    return find_steps(frames, np.asarray(numbers.to_array()).astype(np.int64))


_WHOLE = "pairs of {:,} frames were combined with those of frames that are not selected"


@dataclass(frozen=True)
class PairsRequest:
    """The pairs that a run keeps and reuses."""

    path: Path  # their directory
    labels: Sequence[str]  # of the analyses, as `combined` and `homes`
    combined: Sequence[bool]  # whether combine() makes the pairs
    homes: Sequence[str]  # modules of the analyses
    frames: Selected  # the selected frame numbers
    files: OpenedFiles  # opened by this rank
    reuse: str  # the option of the run
    lasting: bool  # whether pairs stay after a successful run
    every: float  # seconds between two commits


@dataclass
class CheckpointRun:
    """What a run reuses from earlier ones, and where it stores its own pairs."""

    request: PairsRequest
    directory: PairsDirectory  # locked by the first rank until `release`
    generations: Sequence[FingerprintVersion]  # per analysis: of its pairs; created at the first commit
    plan: ReusePlan
    reason: str  # why existing pairs are not used, or are used in spite of a difference; for messages
    unstable: list[dict[str, str]]

    def release(self, succeeded: bool) -> None:
        """Unlock the directory; called on the first rank, after all others have stopped writing."""
        self.directory.release()
        if succeeded and not self.request.lasting:
            shutil.rmtree(self.directory.path, ignore_errors=True)


def open_pairs(
    comm: Communicator, request: PairsRequest, fingerprints: Callable[[], Sequence[MapFingerprint]]
) -> CheckpointRun:
    """Find kept pairs and prepare to store new ones (collective)."""
    directory, labels = PairsDirectory(request.path), request.labels

    def begin() -> tuple[list[FingerprintVersion], list[tuple[str, str]]]:
        if request.lasting or request.path.exists():
            directory.claim(private=request.lasting)
        try:
            named = zip(labels, fingerprints(), strict=True)
            chosen = [_generation(directory, label, now, request) for label, now in named]
        except BaseException:
            directory.release()
            raise
        reasons = [(label, reason) for label, (_, reason) in zip(labels, chosen, strict=True) if reason]
        return [generation for generation, _ in chosen], reasons

    try:
        generations, reasons = on_first_rank(comm, begin, share=True)
        plan = find_parts(comm, generations, request.homes, request.frames)
    except BaseException:
        directory.release()
        raise
    reasons += [(label, _WHOLE.format(lost)) for label, lost in zip(labels, plan.lost, strict=True) if lost]
    reason = "; ".join(text if len(labels) == 1 else f"for {label}, {text}" for label, text in reasons)
    unstable = [{} if item.fingerprint is None else item.fingerprint.unstable for item in generations]
    return CheckpointRun(request, directory, generations, plan, reason, unstable)


def _generation(
    directory: PairsDirectory, label: str, now: MapFingerprint, request: PairsRequest
) -> tuple[FingerprintVersion, str]:
    """Return the generation that a run uses, and the reason if it is not the last one unchanged."""
    reuse, files = request.reuse, request.files.digests
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
        current.write()  # records the present state of the trajectory
    return current, "" if same else f"used although {'; '.join(diffs[-1])}"
