"""``himach bench``: figures beside a peer or the machine's limit; each benchmark brings its options."""

from __future__ import annotations

import os

import click

from himach.cli.command_group import LateCommandGroup

__all__ = ["bench"]

#: Module of each benchmark below `himach.benchmarks`, and its function.
BENCHMARKS = {
    "peers": "runs.peers:main",
    "scaling": "runs.scaling:main",
    "zazen": "parts.stores:main",
    "shuffle": "parts.shuffle:main",
    "stamps": "parts.stamps:main",
    "balance": "parts.balance:main",
    "spill": "parts.shuffle:spill",
    "kernels": "parts.kernels:main",
    "builtins": "parts.builtins:main",
    "coverage": "parts.coverage:main",
    "intervals": "parts.intervals:main",
    "ensemble": "parts.ensembles:main",
    "convert": "parts.conversion:main",
    "remote": "parts.urls:main",
    "watching": "parts.watching:main",
    "pairs": "runs.pairs:main",
    "start": "runs.start:main",
    "staying": "runs.staying:main",
    "billion": "runs.billion:main",
    "outcomes": "runs.outcomes:main",
    "live": "runs.live:main",
    "slices": "slices.slices:main",
    "machine": "runs.machine:main",
    "plan": "runs.planned:main",
    "cache": "store.cache:main",
    "packed": "store.packed:main",
    "layout": "store.layout:main",
    "mdanalysis": "runs.mdanalysis:main",
    "others": "parts.others:main",
    "mount": "store.mounted:main",
    "names": "store.names:main",
}


@click.group(cls=LateCommandGroup, modules={name: f"himach.benchmarks.{module}" for name, module in BENCHMARKS.items()})
def bench() -> None:
    """Measure himach on this machine, beside a peer or the machine's own limit."""
    # What is timed keeps the modules that Python compiles, as where it is installed for use.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
