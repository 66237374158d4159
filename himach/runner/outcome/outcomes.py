"""What a run gave, on the first rank: `outcomes_of()` its analyses, their units and intervals, the run's record."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from himach.analysis import Analysis
from himach.errors import UsageError
from himach.opening.options import Job
from himach.output.names import unique_names
from himach.output.parts import uneven_parts, units_of
from himach.output.record import Bytes, FaultyFrames, Record, Reused, Times, Uncertainty
from himach.output.table import Table, default_outcome
from himach.parallel.communicator import World
from himach.runner.outcome.place import located

if TYPE_CHECKING:
    from himach.checkpoint.checkpoint_run import CheckpointRun
    from himach.engine import Passed, Results
    from himach.zazen.share import Share

__all__ = ["LEVEL", "estimates_of", "outcomes_of", "record_of", "units"]

#: Confidence of intervals, where none is asked for.
LEVEL = 0.95


def outcomes_of(stages: Sequence[Analysis], results: Sequence[Results], tables: Sequence[Table | None]) -> list[Any]:
    """Return what finish() of each last stage gives of its results, or the table of keys and results."""
    outcomes = []
    for stage, given, table in zip(stages, results, tables, strict=True):
        found: Any = given
        if table is not None and stage.yields_rows():
            found = table
        elif table is not None:
            given.rows = table
        if stage.defines("finish"):
            with located(stage, "finish", 0):
                outcomes.append(stage.finish(found))
            for text in uneven_parts(outcomes[-1], stage.label()):
                warnings.warn(text, stacklevel=2)
        else:
            whole = found if isinstance(found, Table) else default_outcome(found, stage.key_names)
            beside = [] if table is None or table is whole else unique_names(["rows"], taken=[stage.label()])
            outcomes.append({stage.label(): whole, beside[0]: table} if beside else whole)
    return outcomes


def units(labels: Sequence[str], outcomes: Sequence[Any]) -> dict[str, dict[str, str]]:
    """Return the units of columns by table, for the record; none where an outcome has no form in files."""
    try:
        return units_of(labels, outcomes)
    except UsageError:  # a table that is none says so when it is shown or written
        return {}


def estimates_of(labels: Sequence[str], outcomes: Sequence[Any], job: Job) -> dict[str, Uncertainty]:
    """Return how sure tables are, to which intervals are added; of none where an outcome has no form in files."""
    from himach.runner.outcome.estimates import add_estimates

    usual = LEVEL if job.confidence is None else job.confidence
    level = None if usual == "off" else float(usual)
    try:
        return add_estimates(labels, outcomes, level, job.equilibration)
    except UsageError:  # as of units
        return {}


def record_of(
    world: World,
    asked: Mapping[str, Any],
    share: Share,
    kept: CheckpointRun | None,
    passed: Passed,
    read: Mapping[str, int],
    seconds: Mapping[str, float],
    told: tuple[float, list[str]],
) -> Record:
    """Return what the run was and did; told are when it began and what this rank was warned of."""
    import numpy as np

    read_by_all = world.total(np.array([read[what] for what in ("cache", "origin", "damaged")], np.int64))
    cache, origin, damaged = read_by_all.tolist()
    started, said = told
    said += [text for text in world.comm.allreduce(list(said), _texts) if text not in said]
    times = [datetime.fromtimestamp(second).astimezone() for second in (started, time.time())]
    done = {
        "frames": sum(share.counts.values()) + (0 if kept is None else kept.found.reused),
        "faulty": FaultyFrames(damaged=damaged, missing=0),  # which is set where the selection is known
        "reused": Reused(frames=0, reason="") if kept is None else Reused(frames=kept.found.reused, reason=kept.reason),
        "ranks": world.comm.size,
        "nodes": len(world.nodes),
        "assignment": share.counts,
        "bytes": Bytes(cache=cache, origin=origin, shuffled=passed.shuffled),
        "seconds": seconds,
        "pairs": passed.pairs,
        "errors": [],
        "warnings": said,  # what is still warned of comes into it
        "date": times[0].date().isoformat(),
        "times": Times(
            start=times[0].isoformat(timespec="milliseconds"), end=times[1].isoformat(timespec="milliseconds")
        ),
    }
    return cast(Record, {**asked, **done})


def _texts(some: list[str], more: list[str]) -> list[str]:
    """Return texts, each once."""
    return list(dict.fromkeys([*some, *more]))
