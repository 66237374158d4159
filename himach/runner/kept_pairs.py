"""Pairs that a run keeps: where, when it commits them, what it reuses of earlier runs, and what it reports."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from himach.errors import UsageError
from himach.io.datasets.source import Source
from himach.output.claim import FOLDER, PAIRS
from himach.ranks.collective import warn_once
from himach.ranks.quiet import say
from himach.runner.options import Job
from himach.runner.rank_run import RankRun

if TYPE_CHECKING:
    from himach.checkpoint.checkpoint_writer import CheckpointWriter
    from himach.checkpoint.map_fingerprint import MapFingerprint
    from himach.checkpoint.reuse import CheckpointRun

#: Environment variable: seconds between two commits; a run without a request for pairs keeps them after twice that.
EVERY = "HIMACH_KEEP_EVERY"
#: Part of `max_time` that is reserved for commits: this fraction, but at most this many seconds.
LEFT, MOST_LEFT = 0.05, 20.0


def pairs_directory(job: Job, out: Path | None) -> Path | None:
    """Return the directory for a run's pairs: the requested one, else one under its output directory."""
    if job.pairs is not None:
        return job.pairs
    if job.between is not None:
        return job.between
    return None if out is None or job.unkept else out / FOLDER / PAIRS


@contextmanager
def kept_pairs(run: RankRun) -> Iterator[CheckpointRun | None]:
    """Open the kept pairs, if any, until the outcome is complete (collective)."""
    comm, job, opened, files = run.world.comm, run.job, run.opened, run.files
    assert run.place is not None
    out, labels = run.place.path, run.place.labels
    pairs, reuse = comm.bcast((pairs_directory(job, out), job.reuse))
    if pairs is None or files is None:  # both follow the first rank
        yield None
        return
    from himach.checkpoint.map_fingerprint import map_fingerprint
    from himach.checkpoint.reuse import PairsRequest, open_pairs

    first_stages = [chain[0] for chain in run.chains]

    def fingerprints() -> list[MapFingerprint]:
        stamp = opened.stamp
        return [
            map_fingerprint(first, view.universe, dataset=stamp, frames=opened.frames, steps=job.steps(opened.frames))
            for first, view in zip(first_stages, run.views, strict=True)
        ]

    lasts = comm.bcast(job.pairs is not None or (job.between is not None and job.member is None))
    combined = [first.defines("combine") for first in first_stages]
    homes = [type(first).__module__ for first in first_stages]
    request = PairsRequest(pairs, labels, combined, homes, opened.frames, files, reuse, lasts, _interval())
    checkpoint = open_pairs(comm, request, fingerprints)
    files.mapping = [vars(first) for first in first_stages]
    succeeded = False
    try:
        warn_once(comm, [_damage_warning(pairs, checkpoint.plan.bad)] if checkpoint.plan.bad else [])
        requested = lasts or job.max_time is not None
        warn_once(comm, list(_unstable_warnings(pairs, labels, checkpoint)) if comm.rank == 0 and requested else [])
        announced = job.between is None and job.member is None
        if comm.rank == 0 and announced and (message := _resume_message(job, out, checkpoint)):
            say(f"himach: {message}", sys.stderr)
        yield checkpoint
        succeeded = True
    finally:
        if comm.rank == 0:
            checkpoint.release(succeeded and job.member is None)  # the ensemble removes those of all members together


def make_writer(run: RankRun, checkpoint: CheckpointRun, source: Source, memory: int) -> CheckpointWriter:
    """Return the writer of this rank's pairs."""
    from himach.checkpoint.checkpoint_writer import CheckpointWriter

    delay = 0.0 if checkpoint.request.lasting else max(0.0, unrequested_keep_time(run.job, run.started) - time.time())
    total = sum(run.share.counts.values())
    return CheckpointWriter(checkpoint, run.world.comm, total, source, memory, delay)


def unrequested_keep_time(job: Job, started: float) -> float:
    """Return the time from which a run without a request for pairs keeps them."""
    at_once = job.member is not None and job.max_time is not None  # keep finished members, too
    return started if at_once else started + 2 * _interval()


def keeping_warnings(checkpoint: CheckpointRun | None, writer: CheckpointWriter) -> list[str]:
    """Return warnings that say why this rank stopped keeping pairs."""
    where = "" if checkpoint is None else f" in {checkpoint.directory.path}"
    return [f"not all pairs of this run are kept{where}: {writer.reason}"] if writer.reason else []


def mapping_deadline(max_time: float | str | None, started: float) -> float | None:
    """Return the time at which mapping stops so that commits still fit; None for no limit."""
    if max_time is None:
        return None
    seconds = float(max_time)
    return started + seconds - min(LEFT * seconds, MOST_LEFT)


def _interval() -> float:
    from himach.checkpoint.checkpoint_writer import EVERY as USUAL

    text = os.environ.get(EVERY)
    try:
        return USUAL if text is None else float(text)
    except ValueError:
        raise UsageError(f"{EVERY}={text}: it is a number of seconds") from None


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


def _unstable_warnings(path: Path, labels: Sequence[str], checkpoint: CheckpointRun) -> Iterator[str]:
    """Yield warnings of values that no later run can compare, so that none uses the pairs."""
    for label, reasons in zip(labels, checkpoint.unstable, strict=True):
        for name, reason in reasons.items():
            yield (
                f"{label}: {name} ({reason}) cannot be compared with that of another run, so no later run uses the "
                f"pairs that are kept in {path}; make it in map(), or name it in `caches` if no result depends on it"
            )


def _damage_warning(path: Path, texts: Sequence[str]) -> str:
    what, their = (f"{len(texts)} parts", "their") if len(texts) > 1 else ("a part", "its")
    return f"{what} of the pairs kept in {path} cannot be used ({texts[0]}); {their} frames are mapped again"
