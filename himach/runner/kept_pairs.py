"""Pairs of earlier runs and of this one: `kept_pairs()` opens them until the outcome is complete."""

import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from himach.analysis import Analysis
from himach.checkpoint import checkpoint_writer
from himach.checkpoint.map_fingerprint import MapFingerprint, map_fingerprint
from himach.checkpoint.reuse import CheckpointRun, PairsRequest, open_pairs
from himach.checkpoint.sources import OpenedFiles
from himach.errors import UsageError
from himach.io.datasets.opening import OpenFrames
from himach.io.universe.view import View
from himach.output.claim import FOLDER, PAIRS
from himach.ranks.communicator import Communicator
from himach.ranks.quiet import say
from himach.runner.options import Job
from himach.runner.place import OutcomePlace

#: Environment variable: seconds between two commits; a run without a request for pairs keeps them after twice that.
EVERY = "HIMACH_KEEP_EVERY"


@contextmanager
def kept_pairs(
    comm: Communicator,
    job: Job,
    opened: OpenFrames,
    place: OutcomePlace,
    files: OpenedFiles | None,
    mapped: Sequence[tuple[Analysis, View]],
) -> Iterator[CheckpointRun | None]:
    """Open the kept pairs of analyses that are set up until the outcome is complete (collective).

    `files` records what they open; it is None if no pairs are kept.
    """
    if files is None:
        yield None
        return

    def fingerprints() -> list[MapFingerprint]:
        stamp, frames, steps = opened.stamp, opened.frames, job.steps(opened.frames)
        return [
            map_fingerprint(first, view.universe, dataset=stamp, frames=frames, steps=steps) for first, view in mapped
        ]

    under_out = None if place.path is None else place.path / FOLDER / PAIRS
    lasts = job.pairs is not None or (job.between is not None and job.member is None)
    pairs, reuse, lasts = comm.bcast((job.pairs or job.between or under_out, job.reuse, lasts))
    combined = [first.defines("combine") for first, _ in mapped]
    homes = [type(first).__module__ for first, _ in mapped]
    request = PairsRequest(pairs, place.labels, combined, homes, opened.frames, files, reuse, lasts, _interval())
    checkpoint = open_pairs(comm, request, fingerprints)
    files.mapping = [vars(first) for first, _ in mapped]
    succeeded = False
    try:
        if comm.rank == 0:
            _report(job, place.path, checkpoint)
        yield checkpoint
        succeeded = True
    finally:
        if comm.rank == 0:
            checkpoint.release(succeeded and job.member is None)  # an ensemble removes all of its own together


def unrequested_keep_time(job: Job, started: float) -> float:
    """Return the time from which a run without a request for pairs keeps them."""
    at_once = job.member is not None and job.max_time is not None  # keep finished members, too
    return started if at_once else started + 2 * _interval()


def _interval() -> float:
    text = os.environ.get(EVERY)
    try:
        return checkpoint_writer.EVERY if text is None else float(text)
    except ValueError:
        raise UsageError(f"{EVERY}={text}: it is a number of seconds") from None


def _report(job: Job, out: Path | None, checkpoint: CheckpointRun) -> None:
    """Warn of pairs that cannot be used, and say how many frames are reused, or why all are mapped again."""
    path, bad = checkpoint.request.path, checkpoint.plan.bad
    if bad:
        what, their = (f"{len(bad)} parts", "their") if len(bad) > 1 else ("a part", "its")
        text = f"{what} of the pairs kept in {path} cannot be used ({bad[0]}); {their} frames are mapped again"
        warnings.warn(text, stacklevel=2)
    for label, reasons in zip(checkpoint.request.labels, checkpoint.unstable, strict=True):
        if reasons and (checkpoint.request.lasting or job.max_time is not None):
            name, reason = next(iter(reasons.items()))
            warnings.warn(
                f"{label}: {name} ({reason}) cannot be compared with that of another run, so no later run uses the "
                f"pairs that are kept in {path}; make it in map(), or name it in `caches` if no result depends on it",
                stacklevel=2,
            )
    if job.between is None and job.member is None and (message := _resume_message(job, out, checkpoint)):
        say(f"himach: {message}", sys.stderr)


def _resume_message(job: Job, out: Path | None, checkpoint: CheckpointRun) -> str:
    """Return how many frames are reused, also in a quiet run, or why all are mapped again."""
    total, reused, reason = len(checkpoint.request.frames), checkpoint.plan.reused, checkpoint.reason
    if not reused and job.quiet:
        return ""
    if not reused:
        frames = f"all {total:,} frames" if total > 1 else "the frame"
        return f"mapping {frames} again: {reason}" if reason else ""
    source = f"pairs in {job.pairs}" if checkpoint.request.lasting else f"by a run into {out} that did not end"
    message = f"{reused:,} of {total:,} frames were mapped before ({'; '.join(filter(None, [source, reason]))})"
    if reused < total:
        return f"{message}; mapping {total - reused:,}"
    return message if job.quiet else ""  # otherwise the summary says it
