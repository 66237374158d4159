"""``himach plan``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from himach.cli.command_group import Command
from himach.cli.shared import PATH
from himach.cli.text import echo


class Numbers(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """Whole numbers above 0 with commas between them, such as 1,64,2e6."""

    name = "list"

    def convert(
        self, value: str | tuple[int, ...], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """Turn the words into numbers."""
        if not isinstance(value, str):
            return value
        try:
            numbers = [float(word) for word in value.split(",")]
        except ValueError:
            numbers = []
        if not numbers or not all(number >= 1 and number.is_integer() for number in numbers):
            self.fail(f"{value!r}: give numbers such as 1,2,4,8", param, ctx)
        return tuple(map(int, numbers))


@click.command(cls=Command)
@click.argument("records", nargs=-1, required=True, type=PATH, metavar="RUN.JSON...")
@click.option("--nodes", type=Numbers(), metavar="LIST", help="Numbers of nodes.  [default: 1,2,4,8,16,32,64]")
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
def plan(records: tuple[Path, ...], nodes: tuple[int, ...] | None, out: Path | None, **options: Any) -> None:
    """Tell what a run would take on other nodes, from the records of real ones.

    RUN.JSON is what a run with --out leaves, or its folder; several are of the same analyses, on other nodes, from the
    origin and from the cache.
    """
    from himach.planning.plan import NODES
    from himach.planning.plan import plan as make_plan

    result = make_plan(list(records), nodes=nodes or NODES, **options)
    echo(str(result))
    if out is not None:
        echo(f"written to {out}: {', '.join(result.save(out))}", err=True)
