"""Where the outcome of a run goes: `outcome_place()` has the directory as long as the run takes, and notes warnings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from himach.analysis import Analysis
from himach.engine.failures import RAISED, failure
from himach.errors import UsageError
from himach.opening.options import Job
from himach.output.claim import FOLDER, STAGED, Claim
from himach.output.directory import prepare_out, write_run
from himach.output.names import unique_labels
from himach.output.record import Record
from himach.parallel.collective import on_first_rank
from himach.parallel.communicator import World
from himach.parallel.quiet import heard
from himach.rows.tables import settle

if TYPE_CHECKING:
    from himach.launch.helper import Helper

__all__ = ["OutcomePlace", "located", "outcome_place"]


@dataclass(frozen=True)
class OutcomePlace:
    """Where the outcome is written, the same on every rank but for the claim, which the first one has.

    Attributes
    ----------
    path
        The directory; None: nothing is written.
    claim
        On the first rank, of that directory.
    labels
        Names of the analyses, each once.
    quiet
        Whether no progress is shown.
    said
        What this rank has warned of.
    helper
        A process that draws, if there is one.
    units
        Whether headers of tables name units.
    tables
        Formats of tables.
    figures
        Formats of pictures.
    """

    path: Path | None
    claim: Claim | None
    labels: Sequence[str]
    quiet: bool
    said: list[str]
    helper: Helper | None
    units: bool
    tables: Sequence[str]
    figures: Sequence[str]

    @property
    def staged(self) -> Path | None:
        """Folder for files that any rank writes before `write`."""
        return None if self.path is None else self.path / FOLDER / STAGED

    def write(
        self, analyses: Sequence[Analysis], outcomes: Sequence[Any], record: Record, staged: Sequence[str] = ()
    ) -> list[str]:
        """Write outcomes, plots and record beside what is `staged`; on the first rank."""
        assert self.claim is not None
        drawing = partial(located, method="plot", rank=0)
        try:
            return write_run(
                self.claim,
                self.labels,
                analyses,
                outcomes,
                record,
                drawing,
                self.helper,
                self.units,
                staged,
                self.tables,
                self.figures,
            )
        finally:
            settle(outcomes, self.claim.staged, self.claim.out)


@contextmanager
def outcome_place(world: World, job: Job) -> Iterator[OutcomePlace]:
    """Have the place of a job's outcome (collective).

    Raises
    ------
    UsageError
        If there is no such place, or another run has it.
    """
    comm = world.comm
    labels = unique_labels(job.labels)
    # What a script asks for on its first rank alone holds for all.
    out, quiet = comm.bcast((job.out, job.quiet))
    on_first_rank(comm, job.check_place)
    claim = None if out is None else on_first_rank(comm, partial(prepare_out, out, labels, job.force))
    try:
        with heard() as said:
            yield OutcomePlace(out, claim, labels, quiet, said, job.helper, job.units, job.table, job.figure)
    finally:
        if claim is not None:  # on the first rank
            claim.release()


@contextmanager
def located(analysis: Analysis, method: str, rank: int) -> Iterator[None]:
    """Tell of an exception in a method of the analysis by where it happened; a refused parameter tells that itself."""
    try:
        yield
    except UsageError:
        raise
    except RAISED as error:
        raise failure(analysis, method, error, rank) from error
