"""What ``himach run`` and ``himach stage`` ask for, as plain values that travel to the ranks that do it.

A command is called with the world of ranks, on every rank. What its words mean (scripts, parameters, keywords) each
rank finds out by itself, so that nothing but words has to travel, and the process that starts ranks imports little.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from himach.parallel.communicator import World
    from himach.runner.job import Job
    from himach.runner.staging import StageJob

__all__ = ["RunCommand", "StageCommand"]


@dataclass(frozen=True)
class RunCommand:
    """Run analyses and print their outcome; see `himach.runner.job.Job`.

    Attributes
    ----------
    analyses, parameters
        As of `himach.runner.scripts.find_analyses`.
    trajectories, topology, start, stop, step, cache, memory, pairs, reuse, max_time, out, quiet, command
        As of a job; what is None, or empty, is as by default, or as in the run that is repeated.
    keywords
        ``NAME=VALUE`` for MDAnalysis.
    again
        The record of a run to repeat, or its folder; None for a new one, which has analyses and trajectories.
    began
        `time.time()` at which the user started the run.
    """

    analyses: tuple[str, ...]
    parameters: tuple[str, ...]
    trajectories: tuple[Path, ...]
    topology: Path | None
    keywords: tuple[str, ...]
    start: int | None
    stop: int | None
    step: int | None
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

    def __call__(self, world: World) -> str | None:
        """Do it as one of the ranks; return a line that sums it up, on rank 0 and unless quiet."""
        from himach.parallel.collective import on_every_rank
        from himach.parallel.quiet import quiet_ranks
        from himach.result import print_outcome, summary
        from himach.runner.run import run_here

        with quiet_ranks(world.comm.rank, command=True):
            result = run_here(world, on_every_rank(world.comm, self._maker(world)), self.began)
            print_outcome(result, sys.stdout)
            return None if self.quiet or result.outcome is None else f"\n{summary(result.record, result.out)}"

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
            cache=self.cache or "auto",
            memory=self.memory,
            pairs=self.pairs,
            reuse=self.reuse or "auto",
            max_time=self.max_time,
            out=self.out,
            quiet=self.quiet,
            several=len(self.analyses) > 1,
            command=self.command,
        )

    def _recorded_job(self, record: dict[str, Any]) -> Job:
        from himach.runner.again import absolute, recorded_job
        from himach.runner.job import parse_keywords

        given = {
            # A dataset's name stays one.
            "trajectories": [absolute(path) if path.exists() else path for path in self.trajectories] or None,
            "topology": absolute(self.topology),
            "start": self.start,
            "stop": self.stop,
            "step": self.step,
            "cache": self.cache if self.cache in (None, "auto", "off") else str(absolute(Path(self.cache))),
            "memory": self.memory,
            "pairs": absolute(self.pairs),
            "reuse": self.reuse,
            "max_time": self.max_time,
            "out": absolute(self.out),
            "quiet": self.quiet,
            "command": self.command,
        }
        return recorded_job(record, self.parameters, parse_keywords(self.keywords), given)


@dataclass(frozen=True)
class StageCommand:
    """Stage a trajectory; see `himach.runner.staging.StageJob`.

    Attributes
    ----------
    trajectories, topology, dataset, placement, follow, idle, quiet
        As of a job of staging.
    cache, quota
        The same, as words; None for the default.
    keywords
        ``NAME=VALUE`` for MDAnalysis.
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

    def __call__(self, world: World) -> str | None:
        """Do it as one of the ranks; return what came of it, on rank 0 and unless quiet."""
        from himach.parallel.collective import on_every_rank
        from himach.parallel.quiet import quiet_ranks
        from himach.runner.staging import stage

        with quiet_ranks(world.comm.rank, command=True):
            staged = stage(world, on_every_rank(world.comm, self._job))
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
        )
