"""``himach plan``, and ``himach bench``, whose benchmarks have their own options."""

import os
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from himach.cli.command_group import Command, CommandGroup
from himach.cli.shared import PATH, echo


@click.command(cls=Command)
@click.argument("records", nargs=-1, required=True, type=PATH, metavar="RUN.JSON...")
@click.option("--nodes", metavar="LIST", help="Numbers of nodes.  [default: 1,2,4,8,16,32,64]")
@click.option(
    "--ranks-per-node", type=click.IntRange(min=1), metavar="N", help="Ranks of a node.  [default: as recorded]"
)
@click.option("--frames", type=click.FloatRange(min=1), metavar="N", help="Frames of the run.  [default: as recorded]")
@click.option(
    "--until",
    metavar="TABLE.COLUMN<X",
    help="Tell how long a simulation must be for intervals within X, such as 'rdf.g<0.02'.",
)
@click.option("--machine", type=PATH, metavar="FILE", help="The machine, as 'himach bench machine' writes it.")
@click.option("--out", "-o", type=PATH, metavar="DIR", help="Write a CSV of each table and a picture here.")
def plan(records: tuple[Path, ...], nodes: str | None, out: Path | None, **options: Any) -> None:
    """Tell what a run would take on other nodes, from the records of real ones.

    RUN.JSON is what a run with --out leaves, or its folder; several are of the same analyses, on other nodes, from the
    origin and from the cache.
    """
    from himach.planning.plan import NODES
    from himach.planning.plan import plan as make_plan

    result = make_plan(list(records), nodes=nodes.split(",") if nodes else NODES, **options)
    echo(str(result))
    if out is not None:
        echo(f"written to {out}: {', '.join(result.save(out))}", err=True)


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
