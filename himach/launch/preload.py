"""What every run imports sooner or later, imported at once by a process that is forked afterwards: `preload()`."""

from __future__ import annotations

from importlib import import_module

from himach.launch.lazy_mdanalysis import import_mdanalysis, uncollected

__all__ = ["preload"]

AHEAD = (
    "cloudpickle",
    "ctypes",
    "himach.examples",
    "himach.io.dataset.attachment",
    "himach.io.dataset.lookup",
    "himach.io.dataset.origin_choice",
    "himach.io.dataset.origin_watch",
    "himach.io.dataset.source",
    "himach.io.store.quota",
    "himach.io.timemajor.holding",
    "himach.io.universe.topology",
    "himach.io.universe.view",
    "himach.kernels",
    "himach.launch.code_pickle",
    "himach.launch.work_pickle",
    "himach.result",
    "himach.runner.commands",
    "himach.runner.job_pickle",
    "himach.opening.dataset",
    "himach.opening.frame_steps",
    "himach.runner.perform",
    "himach.runner.outcome.run_record",
    "himach.runner.rank",
    "himach.runner.run",
    "himach.runner.scripts",
    "himach.runner.outcome.system",
    "himach.staging.assembly.api",
    "himach.zazen",
    "scipy.special._ufuncs",  # of intervals
)


def preload() -> None:
    """Import it."""
    with uncollected():
        import_mdanalysis()
        for name in AHEAD:
            import_module(name)
