"""`run()`: one call for a script, a REPL, a notebook, or every rank of an MPI job.

It decides where the work is done: in this process alone, in the ranks that a launcher started (this process is one of
them), or in ranks that it starts on this machine.
"""

from __future__ import annotations

import copy
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar

from himach.errors import HimachError, UsageError, as_himach, knowing_arguments, printable_lines
from himach.launch.rank_pool import RANK, spawn
from himach.launch.ranks import Ranks, check_machine
from himach.launch.stop_requests import sigusr1_ignored
from himach.opening.options import FramesRequest, Job, LiveOptions, RunOptions, this_command
from himach.parallel.environment import is_interruption, promised_rank, promised_ranks, under_launcher
from himach.parallel.process_exit import working
from himach.parallel.progress import is_watched
from himach.parallel.quiet import quiet_ranks

if TYPE_CHECKING:
    from MDAnalysis import Universe

    from himach.analysis import Analysis
    from himach.opening.member import Member
    from himach.output.record import Record
    from himach.parallel.communicator import World
    from himach.result import Result
    from himach.runner.live.updates import Update

__all__ = ["check_ranks", "on_ranks", "report", "run", "run_here", "run_live"]

PathLike = str | os.PathLike[str]

T = TypeVar("T")


@knowing_arguments
def run(
    analysis: Analysis | type[Analysis] | str | Sequence[Analysis | type[Analysis] | str],
    trajectory: PathLike | Sequence[PathLike] | Universe | None = None,
    topology: PathLike | None = None,
    *,
    ensemble: PathLike | Sequence[Member] | None = None,
    start: int | None = None,
    stop: int | None = None,
    step: int | None = None,
    frames: Any = None,
    whole: bool = False,
    nojump: bool = False,
    center: str | None = None,
    fit: str | None = None,
    reference: PathLike | None = None,
    ranks: int | Ranks | None = None,
    cache: PathLike = "auto",
    memory: int | str | None = None,
    pairs: PathLike | None = None,
    reuse: Literal["auto", "always", "never"] = "auto",
    max_time: float | str | None = None,
    out: PathLike | None = None,
    force: bool = False,
    units: bool = False,
    table: str | Sequence[str] = "csv",
    figure: str | Sequence[str] = "png",
    features: bool = False,
    confidence: float | Literal["off"] | None = None,
    equilibration: float | str | None = None,
    progress: bool | None = None,
    verbose: bool | None = None,
    universe: Mapping[str, Any] | None = None,
    every: int | None = None,
    on_update: Callable[[Result], object] | None = None,
    idle: float | None = None,
    until: str | None = None,
    dataset: str | None = None,
    stride_when_late: int | None = None,
    buffer: int | str | None = None,
) -> Result:
    """Analyse a trajectory.

    Parameters
    ----------
    analysis
        One analysis or several, which then share one pass over the frames. A text is what ``himach run`` calls one:
        ``"rdf"``, ``"script.py"``, ``"module:Class"``; its parameters are the default ones.
    trajectory
        A trajectory file, several that follow one another, a frame directory, or the name of a staged dataset; or a
        running engine, ``imd://HOST:PORT``. Or a Universe of MDAnalysis: the same frames, of its files or of its
        memory, its topology as it is now, and its transformations, if these need no other frame. The Universe stays at
        the frame at which it is.
    topology
        Topology file; not needed where the trajectory carries it.
    ensemble
        In place of `trajectory` many simulations: `himach.Member` objects, a CSV file with the columns ``name`` and
        ``trajectory`` (and ``topology``, ``group``, ...), or a pattern such as ``"sims/*/traj.xtc"``, for which
        `topology` may be a pattern, too.
    start, stop, step
        Choice of frames as in ``universe.trajectory[start:stop:step]``: half-open, negative allowed.
    frames
        In place of these, frame numbers that ascend, negative ones from the end, or a boolean for every frame, as in
        ``universe.trajectory[frames]``; or a text such as ``"0,5,10-20"``, whose ranges have both their ends.
    whole
        Whether molecules are made whole, by their bonds, before map() sees a frame.
    nojump
        Whether atoms are followed through the periodic boundary, from the first selected frame on. All frames are read
        once more for that, before the first map().
    center
        Selection of atoms that are moved to the middle of the box; all others move with them.
    fit
        Selection of atoms that are superposed on the reference; all others move with them.
    reference
        Structure file for `fit`; None: the first selected frame.
    ranks
        None: this process alone, or, where mpiexec or srun started several, this process as one of them. A number:
        that many MPI ranks are started on this machine; the analyses may be defined in a notebook's cells. `Ranks`:
        the run takes these, which are ready; they may be in a job of SLURM's.
    cache
        ``"auto"``: frames are kept on the node's local disk, and read from there the next time; ``"off"``: they are
        not; or a directory on that disk, in which ``{node}`` stands for the node's name.
    memory
        Bytes that the pairs of a node's ranks may take together, or a size such as ``"2GB"``; what is beyond goes to
        the node's disk (``$TMPDIR``, else ``/var/tmp``). None: a quarter of what the node or its control group has.
    pairs
        Directory in which what map() gave is kept, so that a later run maps only frames that are not there: one that
        goes on after an end of any kind, over a longer trajectory, another choice of frames, or with a new reduce().
        All nodes must see it.
    reuse
        What to do where pairs were kept by another code, parameters or data: ``"auto"``: map again beside them, and say
        why; ``"always"``: use them all the same; ``"never"``: map again in any case.
    max_time
        Time after which no more frames are mapped, in seconds or as ``"55m"``, ``"1h30m"``, ``"HH:MM:SS"``: what is
        mapped is kept in `pairs`, or under `out`, and a `TimeUpError` is raised; the same call then goes on.
    out
        Directory for tables, arrays, plots and the record of the run.
    force
        Whether to replace what a run of other analyses left in `out`.
    units
        Whether the headers of CSV files in `out` name the units of columns: ``r (Å)``, where it is ``r`` without.
    table
        Formats of tables in `out` beside CSV: ``"parquet"``, ``"nc"`` (NetCDF), ``"xvg"``; several as a list, or as a
        text with commas between.
    figure
        Formats of plots in `out`: ``"png"``, ``"svg"``, ``"pdf"``, or several of them, such as ``"svg,pdf"``.
    features
        Whether to write, of each member of an ensemble, the columns of tables in time as ``features/TABLE/MEMBER.npz``
        in `out`: ``X`` (frames, columns), ``time_ps`` and ``columns``.
    confidence
        Level of the intervals that stand beside estimates, 0.95 by default; ``"off"``: there are none.
    equilibration
        Which values count for the means of columns in time: ``"auto"``: those from where the column is equilibrated; a
        number: those from this time on, in ps; None: all, and where it is equilibrated is told.
    progress
        Whether to show progress on standard error; None shows it in a terminal or notebook only. As `out`, it is what
        the first rank says where there are several.
    verbose
        MDAnalysis's name for `progress`.
    universe
        Keywords for MDAnalysis (dt, atom_style, ...).
    every
        The trajectory is still being written, pushed or staged, or comes from a running engine: the run goes on while
        frames come, and there is an outcome every so many of them, in `out` and for `on_update`.
    on_update
        Called with the result of each; by default a notebook shows it in place of the one before.
    idle
        Seconds without a new frame after which such a run ends; None: an engine's end does, or Ctrl-C.
    until
        A condition such as ``"rdf.g<0.02"``, looked at `every` so many frames: such a run ends when the intervals of
        that column of that table, in its unit, were within that half-width at three outcomes in a row.
    dataset
        Name of the dataset in which an engine's frames are kept.
    stride_when_late
        Where the analysis is behind by more than `buffer`, keep every so-manieth frame, and do not pause the engine.
    buffer
        Bytes of an engine's frames, or a size such as ``"2GB"``, by which the analysis may be behind; None: 2 GB.

    Returns
    -------
    Result
        With ``outcome``, ``record`` and ``plot()``. On ranks other than the first the outcome is None.

    Raises
    ------
    UsageError
        If an argument, a parameter or a path cannot be used.
    TrajectoryError
        If the data cannot be used.
    AnalysisError
        If a method of the analysis failed; the error says where.
    RankError
        If ranks could not be started, or one died.
    TimeUpError
        If `max_time` was over before all frames were mapped.
    """
    asked = partial(_asked, locals())
    started = time.time()
    # A mistake that all ranks make is told once.
    job, live = on_ranks(partial(_agreed, asked)) if under_launcher() else asked()
    held = None if under_launcher() else ranks
    if live or on_update is not None or job.engines:
        return _run_live(job, live, held, on_update)
    if held is not None:
        return _told(_run_on_spawned_ranks(job, started, held))
    with quiet_ranks(promised_rank()):
        return _told(on_ranks(lambda world: run_here(world, job, started)))


def _agreed(asked: Callable[[], T], world: World) -> T:
    from himach.parallel.collective import on_every_rank

    return on_every_rank(world.comm, asked)


def _asked(given: Mapping[str, Any]) -> tuple[Job, LiveOptions]:
    """Return what the arguments of `run` ask for."""
    progress, verbose = given["progress"], given["verbose"]
    if progress is not None and verbose is not None and progress != verbose:
        raise UsageError(f"verbose={verbose} is another word for progress, which is {progress}; give one of them")
    progress = verbose if progress is None else progress
    analyses = [_instance(item) for item in _as_list(given["analysis"])]
    for one in analyses:
        _forget_groups(one)
    options = {each.name: given[each.name] for each in fields(RunOptions) if each.metadata}
    paths = {name: None if given[name] is None else Path(given[name]) for name in ("pairs", "out", "reference")}
    job = Job(
        **{**options, **paths, **_where(given)},
        cache=os.fspath(given["cache"]),
        quiet=not (is_watched() if progress is None else progress),
        analyses=analyses,
        several=_is_several(given["analysis"]),
        command=this_command(),
    )
    live = LiveOptions(**{each.name: given[each.name] for each in fields(LiveOptions)})
    check_ranks(given["ranks"])
    return job, live


def _told(result: Result) -> Result:
    """Warn of what of the outcome could not be written; it is in the result."""
    for error in result.record["errors"]:
        warnings.warn(error, stacklevel=4)
    return result


def check_ranks(ranks: int | Ranks | None) -> None:
    """Refuse a number of ranks that is none, too large for this machine, or another one than a launcher has started."""
    size = ranks.size if isinstance(ranks, Ranks) else ranks
    if size is None:
        return
    if not isinstance(size, int):
        raise UsageError(f"ranks is {size!r}: it is a whole number of ranks, or himach.Ranks")
    if under_launcher() and size != promised_ranks():
        raise UsageError(
            f"ranks={size}, but a launcher started {promised_ranks()} ranks; leave ranks out under srun or mpiexec"
        )
    if size < 1:
        raise UsageError(f"ranks must be 1 or more, not {size}")
    if not (isinstance(ranks, Ranks) or under_launcher()):
        check_machine(size)


def _run_live(
    job: Job, live: LiveOptions, ranks: int | Ranks | None, on_update: Callable[[Result], object] | None
) -> Result:
    """Run again and again while frames come; each run has the analyses as they were given."""
    from himach.parallel.collective import on_first_rank
    from himach.runner.live.display import shown_to

    show = shown_to(on_update)

    def update(world: World, held: Ranks | None, one: Update) -> tuple[Result, Record]:
        asked = replace(job, analyses=copy.deepcopy(job.analyses), **one.changes(job.quiet))
        began = time.time()
        result = run_here(world, asked, began) if held is None else _run_on_spawned_ranks(asked, began, held)
        on_first_rank(world.comm, lambda: show(result) if one.new else None)
        return result, result.record

    with quiet_ranks(promised_rank() if ranks is None else 0):
        return run_live(job, live, ranks, update)


def run_live(
    asked: FramesRequest,
    live: LiveOptions,
    ranks: int | Ranks | None,
    update: Callable[[World, Ranks | None, Update], tuple[T, Record | None]],
) -> T:
    """Run again and again while frames come; return what the last run gave.

    Parameters
    ----------
    asked, live
        What is asked of all runs together.
    ranks
        Ranks of this machine to start, once for all runs, whose number was checked, or `Ranks`; None: this process
        works alone, or is one of the ranks that a launcher started.
    update
        Does one run: in the world, or on the ranks that are held. Returns what it gave, and on the first rank its
        record.
    """
    from himach.parallel.communicator import alone
    from himach.runner.live.updates import check_live, give_way, go_live, nothing

    check_live(asked, live)
    if isinstance(ranks, Ranks) and ranks.elsewhere and asked.engines:
        raise UsageError(
            "frames of an engine come to this machine, whose store ranks in a job do not see: give ranks=n of this "
            "machine, or call himach run in the job"
        )
    if ranks is None:
        return on_ranks(lambda world: go_live(world, asked, live, partial(update, world, None)))
    with nullcontext(ranks) if isinstance(ranks, Ranks) else Ranks(ranks, oversubscribe=True) as held:
        ready = nothing if held is ranks else give_way
        return go_live(alone(), asked, live, partial(update, alone(), held), lambda: on_ranks(ready, held))


def _import_mdanalysis() -> None:
    """Import MDAnalysis, and let Ctrl-C wait for it: what was imported by half cannot be imported again."""
    here = threading.current_thread() is threading.main_thread()
    if "MDAnalysis" in sys.modules or not here or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return
    interrupts: list[int] = []
    signal.signal(signal.SIGINT, lambda number, place: interrupts.append(number))
    try:
        import MDAnalysis  # noqa: F401
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if interrupts:
        raise KeyboardInterrupt


def run_here(world: World, job: Job, started: float) -> Result:
    """Run `job` as one of the ranks of `world`."""
    _import_mdanalysis()
    from himach.result import Result
    from himach.runner.perform import perform
    from himach.staging.assembly.api import assemble_for_run

    done = perform(world, job, started, assemble_for_run)
    return Result(done.last_stages, done.outcomes, done.record, job.several, job.labels, job.out, done.members)


def on_ranks(work: Callable[[World], T], ranks: int | Ranks = 0, keeps: bool = False) -> T:
    """Do `work` on several ranks, or alone; return what it returned on rank 0, or here.

    Parameters
    ----------
    work
        Called with the world on every rank; can be pickled if ranks are to be started.
    ranks
        Ranks of this machine to start, or `Ranks`; 0: this process works alone, or is one of the ranks that a
        launcher started.
    keeps
        Whether it may keep pairs, for which ranks of this machine get time when they are told to end.

    Raises
    ------
    HimachError
        As it was raised by `work`. One that only this rank of several has ends all ranks, after it was printed.
    """
    if ranks:
        from himach.launch.work_pickle import pack_work, unpack_value

        packed = pack_work(work)
        value: T = unpack_value(
            ranks.do(packed, keeps) if isinstance(ranks, Ranks) else spawn(RANK, ranks, packed, keeps, forks=True)
        )
        return value
    from himach.parallel.collective import is_everywhere

    world = _world_of_this_process()
    try:
        with working(), sigusr1_ignored():
            return work(world)
    except BaseException as error:
        if world.comm.size > 1 and not is_everywhere(error):
            _end_all_ranks(error)
        if is_interruption(error):
            raise
        raise as_himach(error) from error.__cause__ if isinstance(error, HimachError) else error


def _end_all_ranks(error: BaseException) -> NoReturn:
    """Tell of an error that the other ranks do not know of, and end them."""
    from himach.parallel.mpi import abort

    report(error)
    abort(as_himach(error).exit_code)


def _world_of_this_process() -> World:
    """Return the world of the ranks that a launcher started, or of this process alone, which needs no MPI."""
    if under_launcher():
        from himach.parallel.mpi import connect

        return connect()
    from himach.parallel.communicator import alone

    return alone()


def report(error: BaseException) -> None:
    """Print an error as a person should see it, on standard error."""
    if os.environ.get("HIMACH_DEBUG"):
        import traceback

        traceback.print_exception(error)
    print(printable_lines(f"himach: error: {as_himach(error)}"), file=sys.stderr, flush=True)


def _run_on_spawned_ranks(job: Job, started: float, ranks: int | Ranks) -> Result:
    from himach.opening.shared_arrays import by_value
    from himach.runner.job_pickle import PickledJob, unpack_result

    with by_value(isinstance(ranks, Ranks) and ranks.elsewhere):
        work = PickledJob.of(job, started)
    packed = on_ranks(work, ranks, job.keeps)
    assert packed is not None
    return unpack_result(packed, job)


def _is_several(analysis: Any) -> bool:
    return isinstance(analysis, Sequence) and not isinstance(analysis, str)


def _as_list(analysis: Any) -> list[Any]:
    return list(analysis) if _is_several(analysis) else [analysis]


def _instance(item: Any) -> Analysis:
    from himach.adapted import is_foreign
    from himach.analysis import Analysis

    if isinstance(item, str):
        from himach.runner.scripts import find_class

        return find_class(item)()
    if is_foreign(item) or is_foreign(type(item)):
        raise UsageError(f"{item!r} is an analysis of MDAnalysis: himach.mdanalysis.run(...) runs what it is made of")
    if isinstance(item, type) and issubclass(item, Analysis):
        return item()
    if not isinstance(item, Analysis):
        raise UsageError(
            f"{item!r} is no himach.Analysis; give one or its class (himach.examples.load(name) has the built-ins)"
        )
    return item


def _forget_groups(analysis: Analysis) -> None:
    """Let groups of atoms that are parameters, of later stages too, be as they were given, not an earlier run's."""
    stages: list[Any] = []
    stage: Any = analysis
    while stage is not None and not isinstance(stage, type) and not any(stage is one for one in stages):
        stage.forget_groups()
        stages.append(stage)
        stage = stage.then


def _where(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a job that say what is analysed: of files, of many simulations, or of a Universe."""
    from himach.opening.universe_input import from_universe, is_universe

    trajectory, topology, keywords = given["trajectory"], given["topology"], given["universe"]
    if not is_universe(trajectory):
        return {
            "trajectories": [] if trajectory is None else _paths(trajectory),
            "topology": None if topology is None else Path(topology),
            "keywords": dict(keywords or {}),
            "ensemble": given["ensemble"],
        }
    for name, value in (("topology", topology), ("universe", keywords), ("ensemble", given["ensemble"])):
        if value:
            raise UsageError(f"{name}: the run takes that of the Universe which it is given; leave it out")
    found = from_universe(trajectory)
    return {
        "trajectories": found.trajectories,
        "topology": found.topology_file,
        "keywords": found.keywords,
        "given": found,
    }


def _paths(trajectory: PathLike | Sequence[PathLike]) -> list[Path]:
    if isinstance(trajectory, (str, os.PathLike)):
        return [Path(trajectory)]
    try:
        return [Path(path) for path in trajectory]
    except TypeError:
        raise UsageError(
            f"{trajectory!r:.80} is no trajectory; give a file, several, the name of a dataset, or a Universe"
        ) from None
