"""What every run imports sooner or later, imported at once by a process that is forked afterwards: `import_ahead()`."""

from __future__ import annotations

from importlib import import_module

from himach.runner.starting.lean import import_mdanalysis

__all__ = ["import_ahead"]

AHEAD = (
    "cloudpickle",
    "himach.examples",
    "himach.io.dataset.attachment",
    "himach.io.dataset.lookup",
    "himach.io.dataset.origin_watch",
    "himach.io.dataset.source",
    "himach.io.store.quota",
    "himach.io.topology.loading",
    "himach.io.universe.view",
    "himach.kernels",
    "himach.result",
    "himach.runner.commands",
    "himach.runner.job_pickle",
    "himach.runner.opening",
    "himach.runner.provenance",
    "himach.runner.rank",
    "himach.runner.run",
    "himach.runner.scripts",
    "himach.zazen",
)


def import_ahead() -> None:
    """Import it."""
    import_mdanalysis()
    for name in AHEAD:
        import_module(name)
