"""himach: MapReduce for molecular-dynamics trajectories.

Write an `Analysis` (what to take from a frame, what to conclude from one key's values in time order) and `run()` it
over a trajectory: on one core, on all of them, in a notebook, or on a cluster under srun. Importing himach starts
nothing.
"""

# Import lazily: an interrupt of the command during this import shows a traceback.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from MDAnalysis import AtomGroup

    from himach import examples, kernels, mdanalysis, transformations, uncertainty
    from himach.analysis import Analysis, Pairs, Row
    from himach.conversion.convert import convert
    from himach.errors import (
        AnalysisError,
        HimachError,
        RankError,
        ServerUnreachableError,
        StoreConflictError,
        StoreFullError,
        TimeUpError,
        TrajectoryError,
        UsageError,
    )
    from himach.io.datasets.member import Member
    from himach.io.push.openmm import OpenMMReporter
    from himach.io.push.writer import Writer
    from himach.output.outcome_files import TextFile
    from himach.output.table import Column, Table
    from himach.planning.plan import Plan, plan
    from himach.ranks.ranks import Ranks
    from himach.report.report_files import write_report
    from himach.result import Result
    from himach.runner.live.follow import follow
    from himach.runner.options import Output
    from himach.runner.run import run

__all__ = [
    "Analysis",
    "AnalysisError",
    "AtomGroup",
    "Column",
    "HimachError",
    "Member",
    "OpenMMReporter",
    "Output",
    "Pairs",
    "Plan",
    "RankError",
    "Ranks",
    "Result",
    "Row",
    "ServerUnreachableError",
    "StoreConflictError",
    "StoreFullError",
    "Table",
    "TextFile",
    "TimeUpError",
    "TrajectoryError",
    "UsageError",
    "Writer",
    "__version__",
    "convert",
    "examples",
    "follow",
    "kernels",
    "mdanalysis",
    "plan",
    "run",
    "transformations",
    "uncertainty",
    "write_report",
]

#: Public names by the module that has them.
_HOMES = {
    "himach.analysis": "Analysis Pairs Row",
    "himach.errors": "AnalysisError HimachError RankError ServerUnreachableError "
    "StoreConflictError StoreFullError TimeUpError TrajectoryError UsageError",
    "himach.atoms": "AtomGroup",
    "himach.output.table": "Column Table",
    "himach.io.datasets.member": "Member",
    "himach.io.push.openmm": "OpenMMReporter",
    "himach.runner.options": "Output",
    "himach.planning.plan": "Plan plan",
    "himach.ranks.ranks": "Ranks",
    "himach.result": "Result",
    "himach.output.outcome_files": "TextFile",
    "himach.io.push.writer": "Writer",
    "himach.conversion.convert": "convert",
    "himach.runner.live.follow": "follow",
    "himach.runner.run": "run",
    "himach.report.report_files": "write_report",
}
_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> "Any":
    """Import a public name on first use, so that ``himach --help`` needs neither numpy nor MDAnalysis."""
    from importlib import import_module

    if name in _HOME:
        value = globals()[name] = getattr(import_module(_HOME[name]), name)
        return value
    if name in ("examples", "kernels", "mdanalysis", "transformations", "uncertainty"):
        return import_module(f"himach.{name}")
    if name == "__version__":
        from importlib.metadata import version

        return version("himach")
    raise AttributeError(f"module 'himach' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


def _find_compiled() -> None:
    """Make ``import himach`` work in a checkout, whose own copy has no compiled modules.

    If it is not installed in editable mode, it shadows the installed package for a Python started there.
    """
    import os

    package = __path__[0]
    if not os.path.exists(os.path.join(os.path.dirname(package), "meson.build")):
        return
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        installed = str(distribution("himach").locate_file("himach"))
    except PackageNotFoundError:
        raise ImportError(
            "this is himach's source tree and himach is not installed: run 'pip install .' in it"
        ) from None
    if os.path.exists(installed) and not os.path.samefile(installed, package):
        __path__[:], globals()["__file__"] = [installed], os.path.join(installed, "__init__.py")


_STYLE = "himach.output.figures.picture"


class _StyleFinder:
    """Adds the style ``himach`` when Matplotlib's styles are imported."""

    def find_spec(self, name: str, path: "Any", target: "Any" = None) -> "Any":
        """Find only `matplotlib.style`."""
        if name != "matplotlib.style":
            return None
        import sys
        from importlib import import_module

        sys.meta_path.remove(self)
        return import_module(_STYLE).find_style_module(name, path)


def _offer_style() -> None:
    import sys

    if "matplotlib.style" in sys.modules:
        from importlib import import_module

        import_module(_STYLE).add_style(sys.modules["matplotlib.style"])
    else:
        sys.meta_path.insert(0, _StyleFinder())


_find_compiled()
_offer_style()
