"""What ``himach run`` and ``himach stage`` ask for, as plain values that travel to the ranks that do it.

A command is called with the world of ranks, on every rank. What its words mean (scripts, parameters, keywords) each
rank finds out by itself, so that nothing but words has to travel, and the process that starts ranks imports little.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from himach.launch.helper import Helper
    from himach.launch.ranks import Ranks
    from himach.opening.options import Job, LiveOptions
    from himach.output.record import Record
    from himach.parallel.communicator import World
    from himach.result import Result
    from himach.runner.live.updates import Update
    from himach.staging.options import StageOptions

__all__ = ["RunCommand", "StageCommand", "follow"]


@dataclass(frozen=True)
class RunCommand:
    """Run analyses and print their outcome.

    Attributes
    ----------
    analyses, parameters
        As of `himach.runner.scripts.find_analyses`.
    keywords
        ``NAME=VALUE`` for MDAnalysis.
    given
        Fields of `himach.opening.options.Job` that were given; others are as by default, or as in the run that is
        repeated.
    again
        The record of a run to repeat, or its folder; None for a new one, which has analyses and trajectories.
    began
        `time.time()` at which the user started the run.
    update
        Of a live run, which of its runs this is.
    dry
        Tell what the run would do, and do it not.
    helper
        A process that draws, if there is one.
    shown
        Whether the outcome is printed.
    """

    analyses: tuple[str, ...]
    parameters: tuple[str, ...]
    keywords: tuple[str, ...]
    given: Mapping[str, Any]
    again: Path | None
    began: float
    update: Update | None = None
    dry: bool = False
    helper: Helper | None = None
    shown: bool = True

    @property
    def keeps(self) -> bool:
        """Whether there is a place in which pairs may be kept, as far as the command line tells."""
        return "pairs" in self.given or "out" in self.given

    @property
    def quiet(self) -> bool:
        """Whether no line is printed."""
        return bool(self.given.get("quiet"))

    def asked(self) -> dict[str, Any]:
        """Return fields of a `Job` with the keywords among them."""
        from himach.opening.options import parse_keywords

        return {**self.given, "keywords": parse_keywords(self.keywords)}

    def __call__(self, world: World) -> str | None:
        """Do it as one of the ranks; return a line that sums it up, on rank 0 and unless quiet."""
        return self.recorded(world)[0]

    def recorded(self, world: World) -> tuple[str | None, Record | None]:
        """Do it; return that line and, on rank 0, the record of the run."""
        from himach.launch.lazy_mdanalysis import import_mdanalysis
        from himach.parallel.collective import on_every_rank, on_first_rank
        from himach.parallel.quiet import quiet_ranks

        with quiet_ranks(world.comm.rank, command=True):
            import_mdanalysis()
            from himach.output.summary import summary
            from himach.result import print_outcome
            from himach.runner.run import run_here
            from himach.runner.scripts import scripts_run

            job = replace(on_every_rank(world.comm, partial(self._noted, self._maker(world))), helper=self.helper)
            scripts = scripts_run(job.analyses)
            first = world.comm.bcast(list(scripts.values()))
            on_every_rank(world.comm, partial(_same_scripts, first, scripts))
            if self.dry:
                text = _dry_run(world, job)
                if text is not None:
                    print(text)
                return None, None
            result = run_here(world, job, self.began)
            if self.shown and (self.update is None or self.update.last):
                print_outcome(result, sys.stdout)
            on_first_rank(world.comm, partial(_refuse_losses, result))
            if world.comm.rank:
                return None, None
            said = None if self.quiet or result.outcome is None else f"\n{summary(result.record, result.out)}"
            return said, result.record

    def _noted(self, make: Callable[[], Job]) -> Job:
        """Make the job; where pairs may be kept, it notes which files are opened while modules are loaded."""
        if not self.keeps and self.again is None and self.update is None:
            return make()
        from himach.checkpoint.opened_files import OpenedFiles

        files = OpenedFiles()
        with files.looking():
            job = make()
        return replace(job, loaded=files.digests)

    def _maker(self, world: World) -> Callable[[], Job]:
        """Return what makes the job on every rank, after the record that it repeats was read on the first."""
        if self.again is None:
            return self._job
        from himach.parallel.collective import on_first_rank
        from himach.runner.rerun import read_record, recorded_job

        record = on_first_rank(world.comm, partial(read_record, self.again), share=True)
        return lambda: recorded_job(record, self.parameters, self.asked())

    def _job(self) -> Job:
        from himach.opening.options import Job
        from himach.runner.scripts import find_analyses

        changes = {} if self.update is None else self.update.changes(self.quiet)
        analyses = find_analyses(self.analyses, self.parameters)
        return Job(**{"trajectories": (), **self.asked(), **changes}, analyses=analyses, several=len(analyses) > 1)


def _refuse_losses(result: Result) -> None:
    """Raise the error of what could not be written, after the outcome was printed."""
    from himach.errors import HimachError

    if result.record["errors"]:
        raise HimachError("; ".join(result.record["errors"]))


def _dry_run(world: World, job: Job) -> str | None:
    """Return what a run would do, on the first rank."""
    if job.ensemble is None:
        from himach.runner.dry_run import dry_run as of_one

        return of_one(world, job)
    from himach.runner.ensemble.dry_run import dry_run as of_many

    return of_many(world, job)


def _same_scripts(first: list[bytes], own: dict[str, bytes]) -> None:
    """Refuse to mix what two versions of a script give: a script can be edited while a thousand ranks start."""
    from himach.errors import UsageError

    for (path, digest), other in zip(own.items(), first, strict=False):
        if digest != other:
            raise UsageError(
                f"{path} is not what the first rank has run: it was changed while the ranks were starting, or is "
                "another file on another node; start the run again"
            )


@dataclass(frozen=True)
class StageCommand:
    """Stage a trajectory.

    Attributes
    ----------
    keywords
        ``NAME=VALUE`` for MDAnalysis.
    given
        Fields of `himach.staging.options.StageOptions` that were given.
    assemble
        Put together what was pushed as slices under the name that is the trajectory.
    """

    keywords: tuple[str, ...]
    given: Mapping[str, Any]
    assemble: bool = False

    def __call__(self, world: World) -> str | None:
        """Do it as one of the ranks; return what came of it, on rank 0 and unless quiet."""
        from himach.errors import UsageError
        from himach.launch.lazy_mdanalysis import import_mdanalysis
        from himach.parallel.collective import on_every_rank
        from himach.parallel.quiet import quiet_ranks

        with quiet_ranks(world.comm.rank, command=True):
            import_mdanalysis()
            from himach.staging.stage import stage

            options = on_every_rank(world.comm, self._options)
            if self.assemble:
                if options.layout is not None:
                    raise UsageError("--layout is of frames that are there: --assemble first, then stage with --layout")
                from himach.staging.assembly.api import assemble_here

                done = assemble_here(world, options)
            else:
                done = str(stage(world, options))
            return None if options.quiet or world.comm.rank else done

    def _options(self) -> StageOptions:
        from himach.opening.options import parse_keywords
        from himach.staging.options import StageOptions

        return StageOptions(**self.given, keywords=parse_keywords(self.keywords))


def follow(command: RunCommand, live: LiveOptions, ranks: int) -> str | None:
    """Run again and again while frames come; return a line that sums up the last run, as the command does.

    Parameters
    ----------
    command
        What each run does.
    live
        What is asked of all together.
    ranks
        Ranks of this machine to start, once for all runs; 0 for none.
    """
    from himach.opening.options import RunOptions
    from himach.runner.run import on_ranks, run_live

    def update(world: World, held: Ranks | None, one: Update) -> tuple[str | None, Record | None]:
        work = replace(command, update=one, began=time.time()).recorded
        summary, record = work(world) if held is None else on_ranks(work, held, command.keeps)
        if summary is not None and not one.last:
            print(summary.lstrip("\n"), file=sys.stderr)
        return summary, record

    given = {name: value for name, value in command.asked().items() if name != "command"}
    asked = RunOptions(**{"trajectories": (), **given})
    return run_live(asked, live, ranks or None, update)
