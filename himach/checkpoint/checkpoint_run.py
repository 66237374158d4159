"""A run that keeps its pairs: `open_kept()` finds what is kept already, and where what is mapped now will go."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from himach.checkpoint.directory import FingerprintVersion, PairsDirectory, Place
from himach.checkpoint.map_fingerprint import MapFingerprint, differences
from himach.checkpoint.opened_files import OpenedFiles
from himach.checkpoint.reuse import Found, find_parts
from himach.errors import HimachError
from himach.parallel.collective import on_first_rank
from himach.parallel.communicator import Communicator
from himach.selection import Selected

__all__ = ["CheckpointRun", "open_kept"]

_WHOLE = "pairs of {:,} frames were combined with those of frames that are not selected"


@dataclass
class CheckpointRun:
    """What a run has from earlier ones, and where it keeps its own.

    Attributes
    ----------
    directory
        Held by the first rank until `release`.
    frames
        The selected frame numbers.
    places
        For each analysis where its pairs go.
    found
        What is there already.
    reason
        Why pairs that are there are not used, or that they are although something differs; for people.
    lasting
        Whether pairs stay when the run has ended well.
    files
        What this rank opened.
    unstable
        For each analysis what no later run will find to be the same, so that it uses none of these pairs; by name, each
        with the reason.
    """

    directory: PairsDirectory
    frames: Selected
    places: list[Place]
    found: Found
    reason: str
    lasting: bool
    files: OpenedFiles
    unstable: list[dict[str, str]]

    def release(self, well: bool) -> None:
        """Let other runs have the directory; on the first rank, and when all others write no more."""
        self.directory.release()
        if well and not self.lasting:
            shutil.rmtree(self.directory.path, ignore_errors=True)


def open_kept(
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
    """Find what is kept, and begin to keep (collective).

    Parameters
    ----------
    comm
        All ranks.
    path
        The directory of kept pairs.
    labels
        Names of the analyses, each once.
    fingerprints
        Gives what makes up the map of each; called on the first rank.
    combined
        Whether each has a combine().
    homes
        The modules that they are from.
    frames
        The selected frame numbers.
    reuse
        ``"auto"``, ``"always"`` or ``"never"``.
    lasting
        Whether the user named the directory: then it stays.
    memory
        Bytes that kept pairs may take on this rank before they are left on the disk.
    files
        What this rank opened until now.

    Raises
    ------
    UsageError
        On every rank, where the directory cannot be used.
    """
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
        told = [(label, reason) for label, (_, reason) in zip(labels, chosen, strict=True) if reason]
        generations = [generation for generation, _ in chosen]
        return generations, told, [generation.private for generation in generations]

    try:
        generations, told, private = on_first_rank(comm, begin, share=True)
        found = find_parts(comm, generations, private, homes, frames, memory)
    except BaseException:
        directory.release()
        raise
    places = [Place(*one) for one in zip(generations, combined, private, homes, strict=True)]
    told += [(label, _WHOLE.format(lost)) for label, lost in zip(labels, found.lost, strict=True) if lost]
    reason = "; ".join(text if len(labels) == 1 else f"for {label}, {text}" for label, text in told)
    unstable = [{} if one.fingerprint is None else one.fingerprint.unstable for one in generations]
    return CheckpointRun(directory, frames, places, found, reason, lasting, files, unstable)


def _generation(
    directory: PairsDirectory, label: str, now: MapFingerprint, reuse: str, files: Mapping[str, str]
) -> tuple[FingerprintVersion, str]:
    """Return the generation that a run uses, and why it is not the last one as it is."""
    there = directory.generations(label)
    known = [generation for generation in there if generation.fingerprint is not None]
    if reuse == "never" or not known:
        lost = "" if reuse == "never" else "; ".join(generation.damage for generation in there if generation.damage)
        return directory.begin(label, now), "reuse is 'never'" if known else lost
    told = [
        [*differences(one.fingerprint, now), *one.changed_files(files)] for one in known if one.fingerprint is not None
    ]
    same = next((generation for generation, differs in zip(known[::-1], told[::-1], strict=True) if not differs), None)
    if same is None and reuse == "auto":
        return directory.begin(label, now), "; ".join(told[-1])
    used = same or known[-1]
    current = FingerprintVersion(used.path, used.number, used.key, now)
    with contextlib.suppress(OSError, HimachError):
        current.write()  # as the trajectory is now
    return current, "" if same else f"used although {'; '.join(told[-1])}"
