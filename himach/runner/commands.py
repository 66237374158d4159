"""Requests of ``himach run`` and ``himach stage`` as plain text, which each rank interprets by itself."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from himach.errors import HimachError, UsageError
from himach.output.figures.drawer import Drawer
from himach.ranks.collective import on_first_rank, run_collectively
from himach.ranks.communicator import World
from himach.ranks.launch.preload import preload
from himach.ranks.quiet import quiet_ranks, say
from himach.ranks.ranks import Ranks
from himach.runner.options import Job, LiveOptions, RunOptions, parse_keywords
from himach.staging.options import StageOptions

if TYPE_CHECKING:  # it imports numpy, which the starting process does not need
    from himach.output.record import Record
    from himach.result import Result
    from himach.runner.live.updates import Update


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

    def __call__(self, world: World) -> str | None:
        """Run as one of the ranks; return a summary line on rank 0 unless quiet."""
        return self.run(world)[0]

    def run(self, world: World) -> tuple[str | None, Record | None]:
        """Run as one of the ranks; return the summary line and, on rank 0, the run's record without its members."""
        with quiet_ranks(world.comm.rank, command=True):
            preload()
            from himach.output.summary import summary
            from himach.result import print_outcome
            from himach.runner.run import run_here
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
        from himach.runner.rerun import read_record, recorded_job
        from himach.runner.scripts import find_analyses

        record = files = None
        if self.keeps or self.rerun or self.update:
            from himach.checkpoint.sources import OpenedFiles

            files = OpenedFiles()
        if self.rerun is not None:
            record = on_first_rank(world.comm, partial(read_record, self.rerun), share=True)

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


def _raise_losses(result: Result) -> None:
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


@dataclass(frozen=True)
class StageCommand:
    """Stage a trajectory."""

    keywords: tuple[str, ...]  # ``NAME=VALUE`` for MDAnalysis
    options: Mapping[str, Any]  # fields of `himach.staging.options.StageOptions` that were given
    assemble: bool = False  # assemble slices that were pushed under the trajectory's name

    def __call__(self, world: World) -> str | None:
        """Stage as one of the ranks; return a message on rank 0 unless quiet."""
        with quiet_ranks(world.comm.rank, command=True):
            preload()
            from himach.staging.assembly.assemble import assemble_here
            from himach.staging.stage import stage

            options = run_collectively(
                world.comm, lambda: StageOptions(**self.options, keywords=parse_keywords(self.keywords))
            )
            message = assemble_here(world, options) if self.assemble else str(stage(world, options))
            return None if options.quiet or world.comm.rank else message


def follow(command: RunCommand, live: LiveOptions, ranks: int) -> str | None:
    """Run a command repeatedly while frames arrive, on `ranks` ranks; return the summary line of the last run."""
    from himach.runner.follow import run_live
    from himach.runner.run import on_ranks

    def run_update(world: World, pool: Ranks | None, update: Update) -> tuple[str | None, Record | None]:
        work = replace(command, update=update, started=time.time()).run
        summary, record = work(world) if pool is None else on_ranks(work, pool, command.keeps)
        if summary is not None and not update.last:
            say(summary.lstrip("\n"), sys.stderr)
        return summary, record

    options = {name: value for name, value in command.job_fields().items() if name != "command"}
    request = RunOptions(**{"trajectories": (), **options})
    return run_live(request, live, ranks or None, run_update)
