"""Listing kept pairs: `find_kept_frames()`, `entries()`."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from himach.checkpoint.directory import LOCK, FingerprintVersion, PairsDirectory
from himach.checkpoint.map_fingerprint import differences
from himach.checkpoint.part import BadPartError, read_summary
from himach.locks import holder
from himach.output.claim import FOLDER, PAIRS
from himach.output.claim import LOCK as CLAIM_LOCK

#: Most ranges of frames that a text lists.
MOST = 4


@dataclass(frozen=True)
class KeptFrames:
    """Location of kept pairs."""

    path: Path  # the directory of kept pairs
    out: Path | None  # the output directory around it, if a run made it unasked: that run did not end
    holder: str  # the process that uses it, as far as known; "" for none
    members: Sequence[Path] = ()  # folders of members of an ensemble


@dataclass(frozen=True)
class Entry:
    """The pairs of one map."""

    analysis: str
    generation: int
    covered: BitMap64 = field(repr=False)  # frame numbers
    n_frames: int | None  # number of frames of the trajectory at the last use; None if unreadable
    pairs: int
    parts: int
    nbytes: int
    used: float  # time of the last use or write, seconds since 1970
    parameters: dict[str, str]  # of the analysis, as text
    trajectory: Sequence[str]  # its files
    differs: list[str]  # differences of the last used generation, a sentence each
    bad: list[str]  # why parts cannot be used, a sentence each
    member: str = ""  # folder of the member of an ensemble; "" for none


def find_kept_frames(path: Path) -> KeptFrames | None:
    """Return where pairs are kept, or None: in `path`, or in `path` as the output directory of an unfinished run."""
    for place in (path, path / FOLDER / PAIRS):
        members = _members_in(place)
        if not members and not PairsDirectory(place).labels():
            continue
        if _output_directory(place) is None:
            return KeptFrames(place, None, holder(place / LOCK), members)
        return KeptFrames(place, _output_directory(place), holder(place.parent / CLAIM_LOCK), members)
    return None


def _members_in(place: Path) -> list[Path]:
    """Return the folders of members of an ensemble: directories of kept pairs with nothing else beside them."""
    own = PairsDirectory(place).labels()
    folders = [path for path in sorted(place.iterdir()) if not path.name.startswith(".")] if place.is_dir() else []
    others = [folder for folder in folders if folder.name not in own]
    members = [folder for folder in others if PairsDirectory(folder).labels()]
    foreign = [path for path in others if path not in members and not (path.is_dir() and not any(path.glob("[!.]*")))]
    return [] if foreign else members


def entries(path: Path) -> list[Entry]:
    """Return the contents of a directory of kept pairs: by analysis, last used generation first; then by member."""
    directory = PairsDirectory(path)
    listed = []
    for label in directory.labels():
        versions = [item for item in directory.generations(label) if item.fingerprint is not None or item.parts()]
        generations = sorted(versions, key=_last_use, reverse=True)
        listed += [_entry(label, generation, generations[0]) for generation in generations]
    for folder in _members_in(path):
        listed += [replace(item, member=folder.name) for item in entries(folder)]
    return listed


def format_frames(entry: Entry) -> str:
    """Return the frames of an entry as text: ``0-9,999 of 10,000``."""
    if not entry.covered:
        return "none"
    step, ranges = stretches(entry.covered)
    by = f" by {step:,}" if step > 1 else ""
    texts = [
        f"{first:,}" if count == 1 else f"{first:,}-{first + (count - 1) * step:,}{by}"
        for first, count in ranges.tolist()
    ]
    named = texts if len(texts) <= MOST else [*texts[: MOST - 1], "...", texts[-1]]
    total = "" if entry.n_frames is None else f" of {entry.n_frames:,}"
    if len(texts) == 1 and step == 1:
        return f"{texts[0]}{total}"
    return f"{len(entry.covered):,}{total}: {', '.join(named)}"


def stretches(covered: BitMap64) -> tuple[int, npt.NDArray[np.int64]]:
    """Return frame numbers as runs with one common step, int64 (n, 2): the first number and the length of each."""
    numbers = np.array(covered.to_array(), dtype=np.int64)
    steps, counts = np.unique(np.diff(numbers), return_counts=True)
    step = int(steps[np.argmax(counts)]) if len(steps) else 1
    first = np.flatnonzero(np.diff(numbers, prepend=np.int64(-1) - step) != step)
    return step, np.stack([numbers[first], np.diff(first, append=len(numbers))], axis=1)


def _entry(label: str, generation: FingerprintVersion, last: FingerprintVersion) -> Entry:
    covered, pairs, parts, nbytes, bad = BitMap64(), 0, 0, 0, []
    for path in generation.parts():
        try:
            nbytes += path.stat().st_size
            summary = read_summary(path)
            if generation.fingerprint is not None and summary.identity != generation.key:
                raise BadPartError(f"{path.name}: it is of another map")
        except (OSError, BadPartError) as error:
            bad.append(str(error))
            continue
        covered |= summary.covered
        pairs += summary.pairs
        parts += 1
    fingerprint = generation.fingerprint
    if generation.damage:
        bad.append(generation.damage)
    differs = []
    if fingerprint is not None and last.fingerprint is not None and generation is not last:
        differs = differences(fingerprint, last.fingerprint)
    return Entry(
        analysis=label,
        generation=generation.number,
        covered=covered,
        n_frames=None if fingerprint is None else fingerprint.dataset.n_frames,
        pairs=pairs,
        parts=parts,
        nbytes=nbytes,
        used=_last_use(generation)[1],
        parameters={}
        if fingerprint is None
        else {name: text or "..." for name, (_, text) in fingerprint.parts.get("parameters", {}).items()},
        trajectory=() if fingerprint is None else fingerprint.dataset.paths,
        differs=differs,
        bad=bad,
    )


def _last_use(generation: FingerprintVersion) -> tuple[bool, float]:
    """Return the sort key of last use; unusable generations sort before all others."""
    times = []
    for path in (generation.path, *generation.path.glob("*")):
        with suppress(OSError):  # deleted meanwhile
            times.append(path.stat().st_mtime)
    return generation.fingerprint is not None, max(times, default=0.0)


def _output_directory(place: Path) -> Path | None:
    """Return the output directory around a directory of kept pairs; None if there is none."""
    whole = place.absolute()
    return place.parent.parent if (whole.name, whole.parent.name) == (PAIRS, FOLDER) else None
