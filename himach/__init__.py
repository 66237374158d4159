"""himach: MapReduce for molecular-dynamics trajectories.

Write an `Analysis` (what to take from a frame, what to conclude from one key's values in time order) and `run()` it
over a trajectory: on one core, on all of them, in a notebook, or on a cluster under srun. Importing himach starts
nothing.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from MDAnalysis import AtomGroup

    from himach import examples, kernels, mdanalysis
    from himach.analysis import Analysis, Pairs
    from himach.errors import AnalysisError, HimachError, RankError, TimeUpError, TrajectoryError, UsageError
    from himach.io.push.openmm import OpenMMReporter
    from himach.io.push.writer import Writer
    from himach.output.table import Column, Table
    from himach.planning.plan import Plan, plan
    from himach.result import Result
    from himach.runner.run import run
    from himach.runner.staying.ranks import Ranks

__all__ = [
    "Analysis",
    "AnalysisError",
    "AtomGroup",
    "Column",
    "HimachError",
    "OpenMMReporter",
    "Pairs",
    "Plan",
    "RankError",
    "Ranks",
    "Result",
    "Table",
    "TimeUpError",
    "TrajectoryError",
    "UsageError",
    "Writer",
    "__version__",
    "examples",
    "kernels",
    "mdanalysis",
    "plan",
    "run",
]

_HOME = {
    "Analysis": "himach.analysis",
    "AnalysisError": "himach.errors",
    "AtomGroup": "himach.atoms",
    "Column": "himach.output.table",
    "HimachError": "himach.errors",
    "OpenMMReporter": "himach.io.push.openmm",
    "Pairs": "himach.analysis",
    "Plan": "himach.planning.plan",
    "RankError": "himach.errors",
    "Ranks": "himach.runner.staying.ranks",
    "Result": "himach.result",
    "Table": "himach.output.table",
    "TimeUpError": "himach.errors",
    "TrajectoryError": "himach.errors",
    "UsageError": "himach.errors",
    "Writer": "himach.io.push.writer",
    "plan": "himach.planning.plan",
    "run": "himach.runner.run",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for, so that ``himach --help`` needs neither numpy nor MDAnalysis."""
    if name in _HOME:
        value = globals()[name] = getattr(importlib.import_module(_HOME[name]), name)
        return value
    if name in ("examples", "kernels", "mdanalysis"):
        return importlib.import_module(f"himach.{name}")
    if name == "__version__":
        from importlib.metadata import version

        return version("himach")
    raise AttributeError(f"module 'himach' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


def _find_compiled() -> None:
    """Let ``import himach`` work in the folder of a checkout, whose own copy has no compiled modules.

    A checkout that is not installed in editable mode shadows the installed package when Python is started in it.
    """
    here = Path(__path__[0])
    if not (here.parent / "meson.build").exists():
        return
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        installed = Path(str(distribution("himach").locate_file("himach")))
    except PackageNotFoundError:
        raise ImportError(
            "this is himach's source tree and himach is not installed: run 'pip install .' in it"
        ) from None
    if installed.exists() and not installed.samefile(here):
        __path__[:] = [str(installed)]


_find_compiled()
