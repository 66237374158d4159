"""What travels between a process and the ranks that it starts: pickled work, such as a job, and what came of it.

Both lie in a private folder (mode 0700) of the user's, so that unpickling them is as safe as running the user's code.
Analyses from ``__main__`` or a notebook's cells travel with their code (cloudpickle); others by their module's name.
"""

from __future__ import annotations

import contextlib
import linecache
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from himach.errors import AnalysisError, cell_name

if TYPE_CHECKING:
    from himach.analysis import Analysis
    from himach.output.record import Record
    from himach.parallel.communicator import World
    from himach.result import Result
    from himach.runner.options import Job

__all__ = ["PickledJob", "pack_value", "pack_work", "sent_by_value", "unpack_result", "unpack_value", "unpack_work"]


def pack_work(work: Callable[[World], Any]) -> bytes:
    """Return work to be done with the world on every rank, and what Python needs in order to find its code."""
    return pickle.dumps({"path": list(sys.path), "sources": _cell_sources(), "work": pickle.dumps(work)})


def unpack_work(data: bytes) -> Callable[[World], Any]:
    """Return the work; the import path becomes that of the process that packed it."""
    packed = pickle.loads(data)
    sys.path[:] = packed["path"]
    linecache.cache.update(packed["sources"])
    work: Callable[[World], Any] = pickle.loads(packed["work"])
    return work


def pack_value(value: Any) -> bytes:
    """Return what work returned on rank 0."""
    return pickle.dumps(value)


def unpack_value(data: bytes) -> Any:
    """Return what `pack_value` packed."""
    return pickle.loads(data)


@dataclass(frozen=True)
class PickledJob:
    """A job as work for ranks, which returns what `unpack_result` turns into a result.

    Attributes
    ----------
    data
        The job and when its run was started.
    """

    data: bytes

    @classmethod
    def of(cls, job: Job, started: float) -> PickledJob:
        """Return `job` with what its analyses need in order to run in another process."""
        import cloudpickle

        try:
            with sent_by_value(job.analyses):
                return cls(cloudpickle.dumps((job, started)))
        except Exception as error:
            raise AnalysisError(f"an analysis cannot be sent to other ranks: {_said(error)}") from error

    def __call__(self, world: World) -> tuple[bytes, Record, list[dict[str, bytes]]] | None:
        """Run the job; return on rank 0 what it knows at the end."""
        import cloudpickle

        from himach.parallel.quiet import quiet_ranks
        from himach.runner.rank import perform

        with quiet_ranks(world.comm.rank):
            try:
                job, started = pickle.loads(self.data)
            except Exception as error:
                raise AnalysisError(f"an analysis cannot be rebuilt on other ranks: {_said(error)}") from error
            done = perform(world, job, started)
            if world.comm.rank != 0:
                return None
            try:
                outcomes = cloudpickle.dumps(done.outcomes)
            except Exception as error:
                raise AnalysisError(
                    f"the outcome of finish() cannot be sent back from the ranks: {_said(error)}"
                ) from error
            return outcomes, done.record, [_state(stage) for stage in done.last_stages]


def unpack_result(packed: tuple[bytes, Record, list[dict[str, bytes]]], job: Job) -> Result:
    """Return the result, with analyses as rank 0 left them, so that plot() finds what setup() kept."""
    from himach.result import Result
    from himach.runner.rank import stages

    outcomes, record, states = packed
    last_stages = [stages(analysis)[-1] for analysis in job.analyses]
    for stage, state in zip(last_stages, states, strict=True):
        stage.__dict__.update({name: pickle.loads(value) for name, value in state.items()})
    return Result(last_stages, pickle.loads(outcomes), record, job.several, job.labels, job.out)


@contextlib.contextmanager
def sent_by_value(analyses: Iterable[object]) -> Iterator[None]:
    """Let cloudpickle send the code of these objects where another process could not import it by its name."""
    import cloudpickle

    unknown = _modules_unknown_elsewhere(analyses)
    try:
        for module in unknown:
            cloudpickle.register_pickle_by_value(module)
        yield
    finally:
        for module in unknown:
            cloudpickle.unregister_pickle_by_value(module)


def _modules_unknown_elsewhere(analyses: Iterable[object]) -> list[ModuleType]:
    """Return the modules of analyses that another process cannot import by name, as a test runner's or a plug-in's."""
    names = {cls.__module__ for analysis in analyses for cls in type(analysis).__mro__}
    found = []
    for name in sorted(names - {"__main__", "builtins"}):
        top = name.partition(".")[0]
        if name in sys.modules and not any(finder.find_spec(top, None) for finder in sys.meta_path):
            found.append(sys.modules[name])
    return found


def _state(stage: Analysis) -> dict[str, bytes]:
    """Return what setup() and finish() kept on the analysis, but for what belongs to its Universe."""
    import cloudpickle

    from himach.analysis import GIVEN

    state = {}
    for name, value in vars(stage).items():
        if name in vars(stage).get(GIVEN, ()) or type(value).__module__.startswith("MDAnalysis"):
            continue  # an AtomGroup would drag the trajectory along
        try:
            state[name] = cloudpickle.dumps(value)
        except Exception:
            continue
    return state


def _cell_sources() -> dict[str, Any]:
    """Return the source lines that exist only in this process (cells, the REPL), for error messages on the ranks."""
    # Without a time of change, the ranks do not ask the file system whether it still holds. The full name is what they
    # show: of a cell, its number in the notebook.
    return {
        name: (entry[0], None, entry[2], cell_name(name) or entry[3])
        for name, entry in linecache.cache.items()
        if len(entry) == 4 and not Path(name).exists()
    }


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
