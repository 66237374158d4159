"""`follow()`: runs over arriving frames of a running engine, a dataset that fills, or files that grow."""

import copy
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from himach.errors import UsageError, checks_arguments
from himach.io.datasets.member import Member
from himach.output.record import Record
from himach.ranks.collective import on_first_rank
from himach.ranks.communicator import World, alone
from himach.ranks.process_exit import promised_rank, under_launcher
from himach.ranks.quiet import quiet_ranks, say
from himach.ranks.ranks import Ranks
from himach.runner.commands import RunCommand, on_ranks, run_here
from himach.runner.live.updates import check_live, go_live, start_ranks
from himach.runner.options import LiveOptions, Output, RunOptions, Update
from himach.runner.run import Analyses, PathLike, requested_job, run_on_spawned_ranks
from himach.transformations import NoJump, Transformation

if TYPE_CHECKING:
    from himach.result import Result

T = TypeVar("T")


@checks_arguments
def follow(
    analysis: "Analyses",
    source: PathLike | Sequence[PathLike] | None = None,
    topology: PathLike | None = None,
    *,
    every: int | None = None,
    idle: float | None = None,
    until: str | None = None,
    on_update: "Callable[[Result], object] | None" = None,
    dataset: str | None = None,
    buffer: int | str | None = None,
    stride_when_late: int | None = None,
    index: PathLike | None = None,
    ensemble: PathLike | Sequence[Member] | None = None,
    start: int | None = None,
    stop: int | None = None,
    step: int | None = None,
    transform: Sequence[Transformation | NoJump] = (),
    ranks: int | Ranks | None = None,
    cache: PathLike = "auto",
    memory: int | str | None = None,
    pairs: PathLike | None = None,
    reuse: Literal["auto", "always", "never"] = "auto",
    out: PathLike | Output | None = None,
    confidence: float | Literal["off"] | None = None,
    equilibration: float | str | None = None,
    progress: bool | None = None,
    universe: Mapping[str, Any] | None = None,
    **parameters: Any,
) -> "Result":
    """Analyse frames while they come, again and again, and at the end all of them.

    Parameters
    ----------
    analysis
        As of `himach.run`.
    source
        Where frames come from: a running engine, ``imd://HOST:PORT``; the name of a dataset that is being pushed or
        staged; a file that grows, or several of which the last one does.
    topology
        Topology file; not needed where the source carries it.
    every
        There is an outcome every so many frames, in `out` and for `on_update`; None: at the end alone.
    idle
        Seconds without a new frame after which it ends; None: an engine's end does, or Ctrl-C.
    until
        A condition such as ``"rdf.g<0.02"``, compared every so many frames (`every`): it ends when the intervals of
        that column of that table, in its unit, were within that half-width at three outcomes in a row.
    on_update
        Called with the result of each; by default a notebook shows it in place of the one before.
    dataset
        Name of the dataset in which an engine's frames are kept.
    buffer
        Bytes of an engine's frames, or a size such as ``"2GB"``, by which the analysis may be behind; None: 2 GB.
    stride_when_late
        Where the analysis is behind by more than `buffer`, keep every N-th frame, and do not pause the engine.
    ensemble
        In place of `source` many simulations, of which some are running engines.
    index, start, stop, step, transform, ranks, cache, memory, pairs, reuse, out, confidence, equilibration, progress
        As of `himach.run`.
    universe, **parameters
        As of `himach.run`.

    Returns
    -------
    Result
        The last one: that of a run over the frames that came, which are kept.

    Raises
    ------
    TrajectoryError
        If no frame came; other errors are those of `himach.run`.

    Examples
    --------
    >>> himach.follow("rmsd", trajectory, topology, selection="name CA", stop=3, idle=0.1)
    Result(rmsd (3 rows of time_ps, rmsd); 3 frames)
    """
    arguments = locals()
    job = requested_job({**arguments, "trajectory": source})
    live = LiveOptions(**{field.name: arguments[field.name] for field in fields(LiveOptions)})
    show = on_update or _notebook_cell()
    own_ranks = None if under_launcher() else ranks

    def run_update(world: World, pool: Ranks | None, update: Update) -> "tuple[Result, Record]":
        changed = replace(job, analyses=copy.deepcopy(job.analyses), **update.changes(job.quiet))
        started = time.time()
        result = run_here(world, changed, started) if pool is None else run_on_spawned_ranks(changed, started, pool)
        on_first_rank(world.comm, lambda: show(result) if update.new else None)
        return result, result.record

    with quiet_ranks(promised_rank() if own_ranks is None else 0):
        return run_live(job, live, own_ranks, run_update)


def run_live(
    request: RunOptions,
    live: LiveOptions,
    ranks: int | Ranks | None,
    update: Callable[[World, Ranks | None, Update], tuple[T, Record | None]],
) -> T:
    """Run repeatedly while frames arrive; return the result of the last run."""
    check_live(request, live)
    if isinstance(ranks, Ranks) and ranks.elsewhere and request.engines:
        raise UsageError(
            "frames of an engine come to this machine, whose store ranks in a job do not see: give ranks=n of this "
            "machine, or call himach run in the job"
        )
    if ranks is None:
        return on_ranks(lambda world: go_live(world, request, live, partial(update, world, None)))
    with nullcontext(ranks) if isinstance(ranks, Ranks) else Ranks(ranks, oversubscribe=True) as pool:
        return go_live(alone(), request, live, partial(update, alone(), pool), lambda: on_ranks(start_ranks, pool))


def _notebook_cell() -> "Callable[[Result], object]":
    """Return a function that shows each result below the running notebook cell, in place of the previous one."""
    if "ipykernel" not in sys.modules or "IPython" not in sys.modules or sys.modules["IPython"].get_ipython() is None:
        return lambda result: None
    handles: list[Any] = []

    def show(result: "Result") -> None:
        from IPython.display import display

        if handles:
            handles[0].update(result)
        else:
            handles.append(display(result, display_id=True))

    return show


def follow_command(command: RunCommand, live: LiveOptions, ranks: int) -> str | None:
    """Run a command repeatedly while frames arrive, on `ranks` ranks; return the summary line of the last run."""

    def run_update(world: World, pool: Ranks | None, update: Update) -> tuple[str | None, Record | None]:
        work = replace(command, update=update, started=time.time())
        summary, record = work(world) if pool is None else on_ranks(work, pool, command.keeps)
        if summary is not None and not update.last:
            say(summary.lstrip("\n"), sys.stderr)
        return summary, record

    options = {name: value for name, value in command.job_fields().items() if name != "command"}
    request = RunOptions(**{"trajectories": (), **options})
    return run_live(request, live, ranks or None, run_update)
