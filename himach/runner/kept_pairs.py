"""A run and the pairs that it keeps: where, what it takes over from earlier ones, and what is asked of it meanwhile."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from himach.errors import UsageError
from himach.io.dataset.source import Source
from himach.opening.options import Job
from himach.output.claim import FOLDER, PAIRS
from himach.parallel.collective import warn_once
from himach.parallel.quiet import say
from himach.runner.rank_run import RankRun

if TYPE_CHECKING:
    from himach.checkpoint.checkpoint_writer import CheckpointWriter
    from himach.checkpoint.map_fingerprint import MapFingerprint
    from himach.checkpoint.reuse import CheckpointRun

#: Environment variable: seconds between two commits; keeping without being asked begins after twice as many.
EVERY = "HIMACH_KEEP_EVERY"
#: What is left of the time that was given, for commits: this part, and so many seconds at most.
LEFT, MOST_LEFT = 0.05, 20.0
#: The part of a rank's memory that kept pairs may take before they are left on the disk.
IN_MEMORY = 4


def pairs_directory(job: Job, out: Path | None) -> Path | None:
    """Return where a run keeps its pairs: where it was asked to, else under its output directory."""
    if job.pairs is not None:
        return job.pairs
    if job.between is not None:
        return job.between
    return None if out is None or job.unkept else out / FOLDER / PAIRS


@contextmanager
def kept_pairs(run: RankRun) -> Iterator[CheckpointRun | None]:
    """Have the pairs that are kept, if they are, until the outcome is there (collective)."""
    comm, job, opened, files = run.world.comm, run.job, run.opened, run.files
    assert run.place is not None
    out, labels = run.place.path, run.place.labels
    pairs, reuse = comm.bcast((pairs_directory(job, out), job.reuse))
    if pairs is None or files is None:  # both as the first rank says
        yield None
        return
    from himach.checkpoint.map_fingerprint import map_fingerprint
    from himach.checkpoint.reuse import open_pairs

    first_stages = [chain[0] for chain in run.chains]

    def fingerprints() -> list[MapFingerprint]:
        stamp = opened.stamp(job.keywords)
        return [
            map_fingerprint(first, view.universe, dataset=stamp, frames=opened.frames, steps=job.steps(opened.frames))
            for first, view in zip(first_stages, run.views, strict=True)
        ]

    lasts = comm.bcast(job.pairs is not None or (job.between is not None and job.member is None))
    merged = [first.defines("combine") for first in first_stages]
    homes = [type(first).__module__ for first in first_stages]
    memory = run.memory // run.world.node.size // IN_MEMORY
    checkpoint = open_pairs(
        comm, pairs, labels, fingerprints, merged, homes, opened.frames, reuse, lasts, memory, files
    )
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
            checkpoint.release(succeeded and job.member is None)  # of members all go together


def make_writer(run: RankRun, checkpoint: CheckpointRun, source: Source, memory: int) -> CheckpointWriter:
    """Return what keeps the pairs of this rank's map phase."""
    from himach.checkpoint.checkpoint_writer import CheckpointWriter

    delay = 0.0 if checkpoint.lasting else max(0.0, unrequested_keep_time(run.job, run.started) - time.time())
    total = sum(run.share.counts.values())
    return CheckpointWriter(checkpoint, run.world.comm, total, source.confirm, source.hurry, memory, delay, _interval())


def unrequested_keep_time(job: Job, started: float) -> float:
    """Return the time from which pairs are kept in a run that was not asked to keep them."""
    at_once = job.member is not None and job.max_time is not None  # members that are done, too
    return started if at_once else started + 2 * _interval()


def keeping_warnings(checkpoint: CheckpointRun | None, writer: CheckpointWriter) -> list[str]:
    """Return why this rank ended keeping, to be warned of."""
    where = "" if checkpoint is None else f" in {checkpoint.directory.path}"
    return [f"not all pairs of this run are kept{where}: {writer.reason}"] if writer.reason else []


def mapping_deadline(max_time: float | str | None, started: float) -> float | None:
    """Return the time at which mapping ends, so that there is time to commit; None: not before the last frame."""
    if max_time is None:
        return None
    seconds = float(max_time)
    return started + seconds - min(LEFT * seconds, MOST_LEFT)


def _interval() -> float:
    """Return the seconds between two commits."""
    from himach.checkpoint.checkpoint_writer import EVERY as USUAL

    text = os.environ.get(EVERY)
    try:
        return USUAL if text is None else float(text)
    except ValueError:
        raise UsageError(f"{EVERY}={text}: it is a number of seconds") from None


def _resume_message(job: Job, out: Path | None, checkpoint: CheckpointRun) -> str:
    """Say, before the frames are mapped, which need not be, also in a quiet run; or why all are mapped again."""
    total, reused, reason = len(checkpoint.frames), checkpoint.plan.reused, checkpoint.reason
    if not reused and job.quiet:
        return ""
    if not reused:
        frames = f"all {total:,} frames" if total > 1 else "the frame"
        return f"mapping {frames} again: {reason}" if reason else ""
    source = f"pairs in {job.pairs}" if checkpoint.lasting else f"by a run into {out} that did not end"
    message = f"{reused:,} of {total:,} frames were mapped before ({'; '.join(filter(None, [source, reason]))})"
    if reused < total:
        return f"{message}; mapping {total - reused:,}"
    return message if job.quiet else ""  # which else the summary says


def _unstable_warnings(path: Path, labels: Sequence[str], checkpoint: CheckpointRun) -> Iterator[str]:
    """Say what is never the same, so that no later run uses the pairs."""
    for label, reasons in zip(labels, checkpoint.unstable, strict=True):
        for name, reason in reasons.items():
            yield (
                f"{label}: {name} ({reason}) cannot be compared with that of another run, so no later run uses the "
                f"pairs that are kept in {path}; make it in map(), or name it in `caches` if no result depends on it"
            )


def _damage_warning(path: Path, texts: Sequence[str]) -> str:
    """Say which parts cannot be used."""
    what, their = (f"{len(texts)} parts", "their") if len(texts) > 1 else ("a part", "its")
    return f"{what} of the pairs kept in {path} cannot be used ({texts[0]}); {their} frames are mapped again"
