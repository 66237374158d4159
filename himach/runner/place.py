"""Where the outcome of a run goes: `outcome_place()` claims the directory during the run and collects warnings.

`finish_all()` makes the outcomes on the first rank, with their units and intervals.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from himach.analysis import Analysis
from himach.engine import Results
from himach.engine.failures import RAISED, failure
from himach.errors import UsageError
from himach.output.claim import FOLDER, STAGED, Claim, prepare_out
from himach.output.directory import write_run
from himach.output.file_names import unique_names
from himach.output.parts import collect_tables, uneven_parts
from himach.output.record import Record
from himach.output.table import Table, default_outcome
from himach.ranks.collective import on_first_rank
from himach.ranks.communicator import World
from himach.ranks.quiet import collect_warnings
from himach.runner.estimates import add_estimates
from himach.runner.options import Job


@dataclass(frozen=True)
class OutcomePlace:
    """Where the outcome is written; the same on every rank except the claim, which the first one has."""

    path: Path | None  # the directory; None if nothing is written
    claim: Claim | None  # on the directory; on the first rank
    labels: Sequence[str]  # unique names of the analyses
    quiet: bool  # whether no progress is shown
    warned: list[str]  # warnings of this rank
    job: Job

    @property
    def staged(self) -> Path | None:
        """Folder for files that any rank writes before `write`."""
        return None if self.path is None else self.path / FOLDER / STAGED

    def write(
        self, analyses: Sequence[Analysis], outcomes: Sequence[Any], record: Record, staged: Sequence[str] = ()
    ) -> list[str]:
        """Write outcomes, plots and record beside the `staged` files; on the first rank."""
        assert self.claim is not None
        self.claim.staged_files = staged
        job, results = self.job, [*zip(self.labels, analyses, outcomes, strict=True)]
        drawing = partial(located, method="plot", rank=0)
        return write_run(self.claim, results, record, drawing, job.drawer, job.units, job.table, job.figure)


@contextmanager
def outcome_place(world: World, job: Job) -> Iterator[OutcomePlace]:
    """Claim the place of a job's outcome (collective)."""
    comm = world.comm
    labels = unique_names(job.labels)
    # A script may set these on its first rank alone; they hold for all.
    out, quiet = comm.bcast((job.out, job.quiet))
    on_first_rank(comm, job.check_place)
    claim = None if out is None else on_first_rank(comm, partial(prepare_out, out, labels, job.force))
    try:
        with collect_warnings() as warned:
            yield OutcomePlace(out, claim, labels, quiet, warned, job)
    finally:
        if claim is not None:  # on the first rank
            claim.release()


@contextmanager
def located(analysis: Analysis, method: str, rank: int) -> Iterator[None]:
    """Say in an analysis's exception which method raised it and where; a UsageError says that itself."""
    try:
        yield
    except UsageError:
        raise
    except RAISED as error:
        raise failure(analysis, method, error, rank) from error


def finish_all(
    stages: Sequence[Analysis], results: Sequence[Results], tables: Sequence[Table | None], place: OutcomePlace
) -> tuple[list[Any], dict[str, dict[str, str]], dict[str, Record]]:
    """Return the outcomes of last stages, units of columns by table, and estimates, whose intervals get into tables."""
    outcomes = [_finish(*items) for items in zip(stages, results, tables, strict=True)]
    columns = units(place.labels, outcomes)
    try:
        return outcomes, columns, add_estimates(place.labels, outcomes, place.job.level, place.job.equilibration)
    except UsageError:  # as in `units`
        return outcomes, columns, {}


def _finish(stage: Analysis, results: Results, table: Table | None) -> Any:
    """Return what finish() of a last stage returns; without a finish(), the table of keys and results."""
    reduced: Any = results
    if table is not None and stage.yields_rows():
        reduced = table
    elif table is not None:
        results.rows = table
    if stage.defines("finish"):
        with located(stage, "finish", 0):
            outcome = stage.finish(reduced)
        for text in uneven_parts(outcome, stage.label()):
            warnings.warn(text, stacklevel=2)
        return outcome
    main = reduced if isinstance(reduced, Table) else default_outcome(reduced, stage.key_names)
    if table is None or table is main:
        return main
    return {stage.label(): main, unique_names(["rows"], taken=[stage.label()])[0]: table}


def units(labels: Sequence[str], outcomes: Sequence[Any]) -> dict[str, dict[str, str]]:
    """Return the units of columns by table, for the record; none if an outcome cannot be written to files."""
    try:
        return {name: dict(table.units) for name, table in collect_tables(labels, outcomes).items() if table.units}
    except UsageError:  # showing or writing the outcome reports it
        return {}
