"""`run()`: one call for a script, a notebook, or every rank of an MPI job; it decides where the work is done."""

import os
import pickle
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from himach.adapted import is_foreign
from himach.analysis import Analysis, state_without_universe
from himach.errors import AnalysisError, UsageError, checks_arguments, unknown_argument
from himach.io.datasets.member import Member
from himach.io.datasets.request import TransformOptions
from himach.io.datasets.universe_input import from_universe, is_universe
from himach.io.trajectories.urls.url_names import strip_scheme
from himach.output.record import Record
from himach.ranks.collective import run_collectively
from himach.ranks.communicator import World
from himach.ranks.process_exit import promised_rank, under_launcher
from himach.ranks.progress import is_watched
from himach.ranks.quiet import quiet_ranks
from himach.ranks.ranks import Ranks
from himach.ranks.shared_arrays import by_value
from himach.runner.commands import check_ranks, on_ranks, perform, run_here
from himach.runner.options import OUTPUT, Job, LiveOptions, Output, RunOptions, stages, this_command
from himach.runner.scripts import declared_stages, find_class

if TYPE_CHECKING:
    from MDAnalysis import Universe

    from himach.result import Result
    from himach.transformations import NoJump, Transformation

PathLike = str | os.PathLike[str]
Analyses: TypeAlias = "Analysis | type[Analysis] | str | Sequence[Analysis | type[Analysis] | str]"

T = TypeVar("T")
#: Pickled outcomes, the record, and the states of the last stages.
PackedOutcome: TypeAlias = tuple[bytes, Record, list[dict[str, bytes]]]

LIVE = ("on_update", *(field.name for field in fields(LiveOptions)))
#: Hints for arguments that other functions or objects have.
INSTEAD = {
    **dict.fromkeys(
        (field.name for field in fields(TransformOptions)),
        "it is one of transform=[...], such as himach.transformations.Whole() or Fit('protein', reference=FILE)",
    ),
    **{name: f"it is out=himach.Output(DIR, {into}=...)" for name, into in OUTPUT.items()},
    **dict.fromkeys(LIVE, "himach.follow() analyses frames that still come"),
    "verbose": "it is progress=...",
    "trajectory": "it is called source",  # of himach.follow()
}


@checks_arguments
def run(
    analysis: "Analyses",
    trajectory: "PathLike | Sequence[PathLike] | Universe | None" = None,
    topology: PathLike | None = None,
    *,
    index: PathLike | None = None,
    ensemble: PathLike | Sequence[Member] | None = None,
    start: int | str | None = None,
    stop: int | str | None = None,
    step: int | str | None = None,
    frames: Any = None,
    transform: "Sequence[Transformation | NoJump]" = (),
    ranks: int | Ranks | None = None,
    cache: PathLike = "auto",
    memory: int | str | None = None,
    pairs: PathLike | None = None,
    reuse: Literal["auto", "always", "never"] = "auto",
    max_time: float | str | None = None,
    out: PathLike | Output | None = None,
    confidence: float | Literal["off"] | None = None,
    equilibration: float | str | None = None,
    progress: bool | None = None,
    universe: Mapping[str, Any] | None = None,
    **parameters: Any,
) -> "Result":
    """Analyse a trajectory.

    Parameters
    ----------
    analysis
        An analysis or several, which then share one pass over the frames. A text is what ``himach run`` calls it:
        ``"rdf"``, ``"script.py"``, ``"module:Class"``.
    trajectory
        A trajectory file, several that follow one another, a frame directory, or the name of a staged dataset. Or a
        Universe of MDAnalysis: its frames, its present topology, and those of its transformations that need no other
        frame. The Universe stays at its frame.
    topology
        Topology file; not needed where the trajectory carries it.
    index
        Index file of GROMACS (.ndx): ``group NAME`` in a selection has the atoms of its group.
    ensemble
        In place of `trajectory` many simulations: `himach.Member` objects, a CSV file with the columns ``name`` and
        ``trajectory`` (and ``topology``, ``group``, ...), or a pattern such as ``"sims/*/traj.xtc"``, for which
        `topology` may be a pattern, too.
    start, stop, step
        Choice of frames as in ``universe.trajectory[start:stop:step]``: half-open, negative allowed. A text is a time:
        ``start="10ns", stop="50ns", step="100ps"``.
    frames
        In place of these, frame numbers that ascend, negative ones from the end, or a boolean for every frame; or a
        text such as ``"0,5,10-20"``, whose ranges have both their ends.
    transform
        Transformations of each frame before map(), from `himach.transformations`, each once, in the order ``Whole()``,
        ``NoJump()``, ``Cluster("protein")``, ``Center("protein")``, ``Wrap()``, ``Fit("protein", reference=FILE)``.
    ranks
        A number starts that many MPI ranks on this machine; the analyses may be defined in a notebook's cells.
        `Ranks` are ranks that stay, also in a job of SLURM's. None: this process, alone or as mpiexec or srun started
        it.
    cache
        ``"auto"`` keeps frames on the node's local disk, and reads them from there the next time; ``"off"`` does not;
        or a directory on that disk, in which ``{node}`` stands for the node's name.
    memory
        Bytes that the pairs of a node's ranks may take together, or a size such as ``"2GB"``; the rest goes to the
        node's disk (``$TMPDIR``, else ``/var/tmp``). None: a quarter of what the node or its control group has.
    pairs
        Directory that all nodes see, in which the results of map() are kept: a later run maps only frames that are
        missing there, after an end of any kind, of a longer trajectory, another choice of frames, or a new reduce().
    reuse
        Kept pairs of other code, parameters or data: ``"auto"`` maps again and says why, ``"always"`` uses them,
        ``"never"`` maps in any case.
    max_time
        Time after which no more frames are mapped, in seconds or as ``"55m"``, ``"1h30m"``, ``"HH:MM:SS"``: their pairs
        are kept in `pairs`, or under `out`, and a `TimeUpError` is raised; the same call then goes on.
    out
        Directory for tables, arrays, plots and the record of the run; or `himach.Output`, which says in which formats.
    confidence
        Level of the intervals beside estimates, 0.95 by default; ``"off"``: there are none.
    equilibration
        Start of the values that count for means of columns in time: ``"auto"`` detects it, a number is a time in ps;
        None: all values count, and the detected start is reported.
    progress
        Whether to show progress on standard error; None shows it in a terminal or notebook only. Of several ranks, the
        first says this and `out`.
    universe
        Keywords for MDAnalysis (dt, atom_style, ...).
    **parameters
        Parameters of the one analysis, where it is a class or a text: ``himach.run("rmsd", u, selection="name CA")``.

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

    Examples
    --------
    >>> himach.run("rmsd", u, selection="name CA", stop=3)
    Result(rmsd (3 rows of time_ps, rmsd); 3 frames)
    """
    arguments = locals()
    started = time.time()
    job = requested_job(arguments)
    if ranks is not None and not under_launcher():
        return _warn_of_losses(run_on_spawned_ranks(job, started, ranks))
    with quiet_ranks(promised_rank()):
        return _warn_of_losses(on_ranks(lambda world: run_here(world, job, started)))


def requested_job(arguments: Mapping[str, Any]) -> Job:
    """Return the job that arguments of `run` or `himach.follow` describe; report an error of all ranks once."""
    make = partial(_job, arguments)
    return on_ranks(lambda world: run_collectively(world.comm, make)) if under_launcher() else make()


def _job(arguments: Mapping[str, Any]) -> Job:
    analysis = arguments["analysis"]
    several = isinstance(analysis, Sequence) and not isinstance(analysis, str)
    analyses = [_instance(item, several, arguments) for item in (analysis if several else [analysis])]
    for stage in (stage for first in analyses for stage in declared_stages(first)):
        if isinstance(stage, Analysis):  # groups of atoms of an earlier run are its Universe's, not what the user set
            stage.drop_atom_groups()
    names = [field.name for field in fields(RunOptions) if field.metadata]
    options = {name: arguments[name] for name in ("transform", *names) if name in arguments}
    progress = arguments["progress"]
    job = Job(
        **{**options, **Output.options(arguments["out"]), **_sources(arguments)},
        cache=os.fspath(arguments["cache"]),
        quiet=not (is_watched() if progress is None else progress),
        analyses=analyses,
        several=several,
        command=this_command(),
    )
    check_ranks(arguments["ranks"])
    return job


def _warn_of_losses(result: "Result") -> "Result":
    """Warn of outputs that could not be written; the result still has them."""
    for error in result.record["errors"]:
        warnings.warn(error, stacklevel=4)
    return result


def run_on_spawned_ranks(job: Job, started: float, ranks: int | Ranks) -> "Result":
    """Run `job` on ranks of this machine, or `Ranks`."""
    with by_value(isinstance(ranks, Ranks) and ranks.elsewhere):
        work = pickle_job(job, started)
    packed = on_ranks(work, ranks, job.keeps)
    assert packed is not None
    from himach.result import Result  # it imports numpy

    packed_outcomes, record, states = packed
    outcomes, members = pickle.loads(packed_outcomes)
    last_stages = [stages(analysis)[-1] for analysis in job.analyses]
    if members:
        from himach.runner.ensemble.plot import EnsemblePlot

        last_stages = [EnsemblePlot() for _ in last_stages]
    # They get their final state on rank 0, so that plot() finds what setup() kept.
    for stage, state in zip(last_stages, states, strict=True):
        stage.__dict__.update({name: pickle.loads(value) for name, value in state.items()})
    return Result(last_stages, outcomes, record, job.several, job.labels, job.out, members)


def pickle_job(job: Job, started: float) -> Callable[[World], PackedOutcome | None]:
    """Return a job as work for ranks, pickled with the code that its analyses need in another process."""
    from himach.ranks.launch.code_pickle import dumps

    with _pickling("an analysis cannot be sent to other ranks"), sent_by_value(job.analyses):
        return partial(_run_pickled, dumps((job, started)))


def _run_pickled(data: bytes, world: World) -> PackedOutcome | None:
    """Run the job; return its outcomes, its record and the states of its last stages on rank 0."""
    import cloudpickle

    with quiet_ranks(world.comm.rank):
        with _pickling("an analysis cannot be rebuilt on other ranks"):
            job, started = pickle.loads(data)
        done = perform(world, job, started)
        if world.comm.rank != 0:
            return None
        with _pickling("the outcome of finish() cannot be sent back from the ranks"):
            outcomes = cloudpickle.dumps((done.outcomes, done.members))
        return outcomes, done.record, [state_without_universe(stage) for stage in done.last_stages]


@contextmanager
def _pickling(refusal: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise AnalysisError(f"{refusal}: {type(error).__name__}: {error}") from error


def sent_by_value(analyses: Iterable[object]) -> AbstractContextManager[None]:
    """Pickle the code of these objects by value where another process could not import it by name."""
    from himach.ranks.launch.code_pickle import by_value, unknown_elsewhere

    return by_value(unknown_elsewhere(cls.__module__ for analysis in analyses for cls in type(analysis).__mro__))


def _instance(item: Any, several: bool, arguments: Mapping[str, Any]) -> Analysis:
    """Return an instance, of a class with the parameters among the arguments of `run`; raise UsageError for others."""
    if isinstance(item, str):
        item = find_class(item)
    elif is_foreign(item) or is_foreign(type(item)):
        raise UsageError(f"{item!r} is an analysis of MDAnalysis: himach.mdanalysis.run() takes its instances")
    elif not isinstance(item, Analysis) and not (isinstance(item, type) and issubclass(item, Analysis)):
        raise UsageError(
            f"{item!r} is no himach.Analysis; give one or its class (himach.examples.load(name) has the built-ins)"
        )
    parameters, known = arguments["parameters"], item.parameters()
    made = several or isinstance(item, Analysis)
    for name in parameters:
        if made or name not in known:
            instead = {**INSTEAD, **dict.fromkeys(known if made else (), "set it where the analysis is made")}
            names = [*({} if made else known), *(name for name in arguments if name != "parameters")]
            raise unknown_argument("follow" if "source" in arguments else "run", name, names, instead)
    return item if isinstance(item, Analysis) else item(**parameters)


def _sources(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a job that name its data: files, an ensemble, or a Universe."""
    trajectory, topology, keywords = arguments["trajectory"], arguments["topology"], arguments["universe"]
    if not is_universe(trajectory):
        return {
            "trajectories": [] if trajectory is None else _paths(trajectory),
            "topology": None if topology is None else Path(strip_scheme(topology)),
            "keywords": dict(keywords or {}),
            "ensemble": arguments["ensemble"],
        }
    for name, value in (("topology", topology), ("universe", keywords), ("ensemble", arguments["ensemble"])):
        if value:
            raise UsageError(f"{name}: the run takes that of the Universe which it is given; leave it out")
    source = from_universe(trajectory)
    return {
        "trajectories": source.trajectories,
        "topology": source.topology_file,
        "keywords": source.keywords,
        "universe_input": source,
    }


def _paths(trajectory: PathLike | Sequence[PathLike]) -> list[Path]:
    if isinstance(trajectory, (str, os.PathLike)):
        return [Path(strip_scheme(trajectory))]
    try:
        return [Path(strip_scheme(path)) for path in trajectory]
    except TypeError:
        raise UsageError(
            f"{trajectory!r:.80} is no trajectory; give a file, several, the name of a dataset, or a Universe"
        ) from None
