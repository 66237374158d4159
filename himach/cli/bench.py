"""``himach bench``: measurements beside a peer or the machine's limit; each benchmark has its own options."""

from __future__ import annotations

import os
from importlib import import_module

import click

from himach.cli.command_group import CommandGroup

#: Module, below `himach.benchmarks`, and function of each benchmark.
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
    "mdanalysis": "runs.mdanalysis:main",
    "others": "parts.others:main",
    "mount": "store.mounted:main",
    "names": "store.names:main",
}


class BenchmarkGroup(CommandGroup):
    """The benchmarks, each imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the benchmarks."""
        return list(BENCHMARKS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of a benchmark."""
        if cmd_name in BENCHMARKS and cmd_name not in self.commands:
            module, _, function = BENCHMARKS[cmd_name].partition(":")
            self.command(cmd_name)(getattr(import_module(f"himach.benchmarks.{module}"), function))
        return super().get_command(ctx, cmd_name)


@click.group(cls=BenchmarkGroup)
def bench() -> None:
    """Measure himach on this machine, beside a peer or the machine's own limit."""
    # Let timed programs keep the modules that Python compiles, as in an installation for use.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
