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
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from himach.parallel.communicator import World
    from himach.runner.job import Job
    from himach.runner.live.updates import Update
    from himach.runner.staging import StageJob

__all__ = ["RunCommand", "StageCommand", "run_live"]


@dataclass(frozen=True)
class RunCommand:
    """Run analyses and print their outcome; see `himach.runner.job.Job`.

    Attributes
    ----------
    analyses, parameters
        As of `himach.runner.scripts.find_analyses`.
    trajectories, topology, start, stop, step, frames, cache, memory, pairs, reuse, max_time, out, quiet, command
        As of a job; what is None, or empty, is as by default, or as in the run that is repeated.
    keywords
        ``NAME=VALUE`` for MDAnalysis.
    again
        The record of a run to repeat, or its folder; None for a new one, which has analyses and trajectories.
    began
        `time.time()` at which the user started the run.
    update
        Of a live run, which of its runs this is.
    dry
        Tell what the run would do, and do it not.
    """

    analyses: tuple[str, ...]
    parameters: tuple[str, ...]
    trajectories: tuple[Path, ...]
    topology: Path | None
    keywords: tuple[str, ...]
    start: int | None
    stop: int | None
    step: int | None
    frames: str | None
    cache: str | None
    memory: str | None
    pairs: Path | None
    reuse: str | None
    max_time: str | None
    out: Path | None
    quiet: bool
    again: Path | None
    command: tuple[str, ...]
    began: float
    update: Update | None = None
    dry: bool = False

    def __call__(self, world: World) -> str | None:
        """Do it as one of the ranks; return a line that sums it up, on rank 0 and unless quiet."""
        from himach.parallel.collective import on_every_rank
        from himach.parallel.quiet import quiet_ranks
        from himach.runner.starting.lean import import_mdanalysis

        with quiet_ranks(world.comm.rank, command=True):
            import_mdanalysis()
            from himach.result import print_outcome, summary
            from himach.runner.run import run_here

            job = on_every_rank(world.comm, partial(self._noted, self._maker(world)))
            scripts = _scripts(job)
            first = world.comm.bcast(list(scripts.values()))
            on_every_rank(world.comm, partial(_same_scripts, first, scripts))
            if self.dry:
                from himach.runner.plans.dry_run import dry_run

                text = dry_run(world, job)
                if text is not None:
                    print(text)
                return None
            result = run_here(world, job, self.began)
            if self.update is None or self.update.last:
                print_outcome(result, sys.stdout)
            return None if self.quiet or result.outcome is None else f"\n{summary(result.record, result.out)}"

    def updated(self, update: Update) -> RunCommand:
        """Return the same as one of the runs of a live run."""
        return replace(
            self, trajectories=tuple(update.trajectories), stop=update.stop, update=update, began=time.time()
        )

    def _noted(self, make: Callable[[], Job]) -> Job:
        """Make the job; where pairs may be kept, it notes which files are opened while modules are loaded."""
        if self.pairs is None and self.out is None and self.again is None and self.update is None:
            return make()
        from himach.keeping.fingerprint.opened_files import OpenedFiles

        files = OpenedFiles()
        with files.looking():
            job = make()
        job.loaded = files.digests
        return job

    def _maker(self, world: World) -> Callable[[], Job]:
        """Return what makes the job on every rank, after the record that it repeats was read on the first."""
        if self.again is None:
            return self._job
        from himach.parallel.collective import on_first_rank
        from himach.runner.again import read_record

        return partial(self._recorded_job, on_first_rank(world.comm, partial(read_record, self.again), share=True))

    def _job(self) -> Job:
        from himach.runner.job import Job, parse_keywords
        from himach.runner.scripts import find_analyses

        return Job(
            analyses=find_analyses(self.analyses, self.parameters),
            trajectories=self.trajectories,
            topology=self.topology,
            keywords=parse_keywords(self.keywords),
            start=self.start,
            stop=self.stop,
            step=self.step,
            frames=self.frames,
            cache=self.cache or "auto",
            memory=self.memory,
            pairs=self.pairs,
            reuse=self.reuse or "auto",
            max_time=self.max_time,
            out=self.out,
            quiet=self.quiet or not (self.update is None or self.update.last),
            several=len(self.analyses) > 1,
            command=self.command,
            between=None if self.update is None else self.update.pairs,
            live=None if self.update is None else self.update.told,
        )

    def _recorded_job(self, record: dict[str, Any]) -> Job:
        from himach.runner.again import absolute, recorded_job
        from himach.runner.job import parse_keywords, wherever

        given = {
            # A dataset's name stays one.
            "trajectories": [absolute(path) if path.exists() else path for path in self.trajectories] or None,
            "topology": absolute(self.topology),
            "start": self.start,
            "stop": self.stop,
            "step": self.step,
            "frames": self.frames,
            "cache": None if self.cache is None else wherever(self.cache),
            "memory": self.memory,
            "pairs": absolute(self.pairs),
            "reuse": self.reuse,
            "max_time": self.max_time,
            "out": absolute(self.out),
            "quiet": self.quiet,
            "command": self.command,
        }
        return recorded_job(record, self.parameters, parse_keywords(self.keywords), given)


def _scripts(job: Job) -> dict[str, bytes]:
    from himach.runner.scripts import scripts_run

    return scripts_run(job.analyses)


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
    """Stage a trajectory; see `himach.runner.staging.StageJob`.

    Attributes
    ----------
    trajectories, topology, dataset, placement, follow, idle, quiet, copies, repair, server, layout
        As of a job of staging.
    cache, quota
        The same, as words; None for the default.
    keywords
        ``NAME=VALUE`` for MDAnalysis.
    assemble
        Put together what was pushed as slices under the name that is the trajectory.
    """

    trajectories: tuple[Path, ...]
    topology: Path | None
    dataset: str | None
    placement: Literal["spread", "runs"]
    cache: str | None
    quota: str | None
    follow: bool
    idle: float | None
    keywords: tuple[str, ...]
    quiet: bool
    assemble: bool = False
    copies: int | None = None
    repair: bool = False
    server: str = ""
    layout: Literal["frame", "time", "both"] | None = None

    def __call__(self, world: World) -> str | None:
        """Do it as one of the ranks; return what came of it, on rank 0 and unless quiet."""
        from himach.errors import UsageError
        from himach.parallel.collective import on_every_rank
        from himach.parallel.quiet import quiet_ranks
        from himach.runner.starting.lean import import_mdanalysis

        with quiet_ranks(world.comm.rank, command=True):
            import_mdanalysis()
            from himach.runner.staging import stage

            job = on_every_rank(world.comm, self._job)
            if self.assemble:
                if self.layout is not None:
                    raise UsageError("--layout is of frames that are there: --assemble first, then stage with --layout")
                from himach.runner.assembling.here import assemble_here

                done = assemble_here(world, job)
                return None if self.quiet or world.comm.rank else done
            staged = stage(world, job)
            return None if self.quiet or world.comm.rank else str(staged)

    def _job(self) -> StageJob:
        from himach.io.store.sizes import parse_size
        from himach.runner.job import parse_keywords
        from himach.runner.staging import StageJob

        return StageJob(
            trajectories=self.trajectories,
            topology=self.topology,
            keywords=parse_keywords(self.keywords),
            dataset=self.dataset,
            placement=self.placement,
            cache=self.cache or "auto",
            quota=None if self.quota is None else parse_size(self.quota),
            follow=self.follow,
            idle=self.idle,
            quiet=self.quiet,
            copies=self.copies,
            repair=self.repair,
            server=self.server,
            layout=self.layout,
        )


def run_live(command: RunCommand, asked: Mapping[str, Any], ranks: int) -> str | None:
    """Run again and again while frames come; return a line that sums up the last run, as the command does.

    Parameters
    ----------
    command
        What each run does.
    asked
        What is asked of all together: every, idle, dataset, buffer and stride of a `LiveJob`.
    ranks
        Ranks of this machine to start, once for all runs; 0 for none.
    """
    from himach.parallel.communicator import alone
    from himach.runner.job import parse_keywords
    from himach.runner.live.updates import LiveJob, give_way, go_live
    from himach.runner.run import on_ranks
    from himach.runner.staying.ranks import Ranks

    live = LiveJob(
        command.trajectories,
        command.topology,
        parse_keywords(command.keywords),
        command.cache or "auto",
        *(command.pairs, command.out, command.start, command.stop, command.step),
        **asked,
    )
    live.check()
    keeps = (command.pairs or command.out) is not None

    def update(one: Update, do: Callable[[RunCommand], str | None]) -> str | None:
        summary = do(command.updated(one))
        if summary is not None and not one.last:
            print(summary.lstrip("\n"), file=sys.stderr)
        return summary

    if ranks:
        with Ranks(ranks) as held:
            on_held = partial(update, do=partial(on_ranks, ranks=held, keeps=keeps))
            return go_live(alone(), live, command.quiet, on_held, lambda: on_ranks(give_way, held))
    return on_ranks(lambda world: go_live(world, live, command.quiet, partial(update, do=lambda one: one(world))))
