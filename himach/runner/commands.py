"""Work of ranks, which `on_ranks()` does here or on ranks that it starts.

`RunCommand` is ``himach run`` as plain text, which each rank interprets; `stage_command()` is ``himach stage``.
"""

import logging
import os
import pickle
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from himach.errors import HimachError, UsageError, as_himach, printable_lines
from himach.output.figures.drawer import Drawer
from himach.ranks.collective import check_together, is_everywhere, on_first_rank, run_collectively
from himach.ranks.communicator import World, alone
from himach.ranks.launch.pool import RANK, RankPool, pack_work
from himach.ranks.launch.preload import interrupts_wait, preload
from himach.ranks.launch.stop_requests import sigusr1_ignored
from himach.ranks.process_exit import guard_os_exit, is_interruption, promised_ranks, under_launcher
from himach.ranks.quiet import quiet_ranks, say
from himach.ranks.ranks import Ranks, check_machine
from himach.runner.options import Job, Update, parse_keywords
from himach.staging.options import StageOptions

if TYPE_CHECKING:  # it imports numpy, which the starting process does not need
    from himach.output.record import Record
    from himach.result import Result
    from himach.runner.rank import RankOutcome

T = TypeVar("T")


@dataclass(frozen=True)
class RunCommand:
    """Run analyses and print their outcome."""

    analyses: tuple[str, ...]  # like `parameters`, as `himach.runner.scripts.find_analyses` takes them
    parameters: tuple[str, ...]
    keywords: tuple[str, ...]  # NAME=VALUE for MDAnalysis
    options: Mapping[str, Any]  # fields of a `Job`; others have their defaults or the values of the repeated run
    rerun: Path | None  # record of the run to repeat, or its folder
    started: float  # when the user started the run
    update: Update | None = None  # which update of a live run this is
    dry: bool = False  # only report what the run would do
    drawer: Drawer | None = None  # process that draws figures, if any
    printed: bool = True  # whether to print the outcome

    @property
    def keeps(self) -> bool:
        """Whether the command line names a place where pairs may be kept."""
        return "pairs" in self.options or "out" in self.options

    @property
    def quiet(self) -> bool:
        """Whether to print no messages."""
        return bool(self.options.get("quiet"))

    def job_fields(self) -> dict[str, Any]:
        """Return the fields of a `Job`, including the keywords."""
        return {**self.options, "keywords": parse_keywords(self.keywords)}

    def __call__(self, world: World) -> "tuple[str | None, Record | None]":
        """Run as one of the ranks; return, on rank 0, a summary unless quiet, and the record without its members."""
        with quiet_ranks(world.comm.rank, command=True):
            preload()
            from himach.output.summary import summary
            from himach.result import print_outcome
            from himach.runner.scripts import script_digests

            job = self._make_job(world)
            scripts = script_digests(job.analyses)
            first_digests = world.comm.bcast(list(scripts.values()))
            run_collectively(world.comm, partial(_check_same_scripts, first_digests, scripts))
            if self.dry:
                from himach.runner.dry_run import dry_run

                text = dry_run(world, job)
                if text is not None:
                    print(text)
                return None, None
            result = run_here(world, job, self.started)
            if self.printed and (self.update is None or self.update.last):
                print_outcome(result, sys.stdout)
            on_first_rank(world.comm, partial(_raise_losses, result))
            if world.comm.rank:
                return None, None
            message = None if self.quiet or result.outcome is None else f"\n{summary(result.record, result.out)}"
            # Entries of members may load whole outcomes, whose classes a process that starts ranks may not know.
            return message, {name: value for name, value in result.record.items() if name != "ensemble"}

    def _make_job(self, world: World) -> Job:
        """Make the job on every rank; if pairs may be kept, record which files are opened while modules are loaded."""
        from himach.runner.rerun import recorded_job, repeatable_record
        from himach.runner.scripts import find_analyses

        record = files = None
        if self.keeps or self.rerun or self.update:
            from himach.checkpoint.sources import OpenedFiles

            files = OpenedFiles()
        if self.rerun is not None:
            record = on_first_rank(world.comm, partial(repeatable_record, self.rerun), share=True)

        def make() -> Job:
            with nullcontext() if files is None else files.recording():
                if record is not None:
                    return recorded_job(record, self.parameters, self.job_fields())
                changes = {} if self.update is None else self.update.changes(self.quiet)
                values = {"trajectories": (), **self.job_fields(), **changes}
                analyses = find_analyses(self.analyses, self.parameters)
                return Job(**values, analyses=analyses, several=len(analyses) > 1)

        loaded = {} if files is None else files.digests
        return replace(run_collectively(world.comm, make), loaded=loaded, drawer=self.drawer)


def _raise_losses(result: "Result") -> None:
    """Raise an error for outputs that could not be written, after the outcome was printed."""
    if result.record["errors"]:
        raise HimachError("; ".join(result.record["errors"]))


def _check_same_scripts(first: list[bytes], own: dict[str, bytes]) -> None:
    """Refuse to run two versions of a script: it can be edited while a thousand ranks start."""
    for (path, digest), other in zip(own.items(), first, strict=False):
        if digest != other:
            raise UsageError(
                f"{path} is not what the first rank has run: it was changed while the ranks were starting, or is "
                "another file on another node; start the run again"
            )


def stage_command(options: StageOptions, assemble: bool, world: World) -> str | None:
    """Stage a trajectory, or `assemble` its slices, as one of the ranks; return a message on rank 0 unless quiet."""
    with quiet_ranks(world.comm.rank, command=True):
        preload()
        from himach.staging.assemble import assemble_here
        from himach.staging.stage import stage

        message = assemble_here(world, options) if assemble else str(stage(world, options))
        return None if options.quiet or world.comm.rank else message


def run_here(world: World, job: Job, started: float) -> "Result":
    """Run `job` as one of the ranks of `world`."""
    with interrupts_wait():
        import MDAnalysis  # noqa: F401
    from himach.result import Result

    done = perform(world, job, started)
    return Result(done.last_stages, done.outcomes, done.record, job.several, job.labels, job.out, done.members)


def perform(world: World, job: Job, started: float) -> "RankOutcome":
    """Run a job as one of the ranks of `world`: member by member for an ensemble, else in one pass."""
    if job.ensemble is None:
        from himach.runner import rank

        return rank.perform(world, job, started)
    from himach.runner.ensemble import run  # only ensembles need this import

    return run.perform(world, job, job.ensemble, started)


def on_ranks(work: Callable[[World], T], ranks: int | Ranks = 0, keeps: bool = False) -> T:
    """Run `work` on several ranks or in this process; return its value on rank 0 or in this process."""
    if ranks:
        packed = pack_work(work)
        do = ranks.do if isinstance(ranks, Ranks) else partial(RankPool(RANK, ranks).do, last=True)
        value: T = pickle.loads(do(packed, keeps))
        return value
    if under_launcher():
        from himach.ranks.mpi import abort, connect

        check_together()
        world = connect()
    else:
        world = alone()
    try:
        with guard_os_exit(), sigusr1_ignored():
            return work(world)
    except BaseException as error:
        if world.comm.size > 1 and not is_everywhere(error):
            report(error)
            abort(as_himach(error).exit_code)
        if is_interruption(error):
            raise
        raise as_himach(error) from error.__cause__ if isinstance(error, HimachError) else error


def report(error: BaseException) -> None:
    """Print an error in readable form to standard error."""
    if os.environ.get("HIMACH_DEBUG"):
        import traceback

        traceback.print_exception(error)
    say(printable_lines(f"himach: error: {as_himach(error)}"), sys.stderr, logging.ERROR)


def check_ranks(ranks: int | Ranks | None) -> None:
    """Refuse a number of ranks that is invalid, too large for this machine, or different from the launcher's."""
    size = ranks.size if isinstance(ranks, Ranks) else ranks
    if size is None:
        return
    if not isinstance(size, int):
        raise UsageError(f"ranks is {size!r}: it is a whole number of ranks, or himach.Ranks")
    if under_launcher() and size != promised_ranks():
        raise UsageError(
            f"{size} ranks, but a launcher started {promised_ranks()}; leave their number out under srun or mpiexec"
        )
    if size < 1:
        raise UsageError(f"ranks must be 1 or more, not {size}")
    if not (isinstance(ranks, Ranks) or under_launcher()):
        check_machine(size)
