"""``himach analyses``: the built-in analyses and their parameters."""

from __future__ import annotations

import click

from himach.cli.command_group import Command, write_sections
from himach.cli.text import echo


@click.command(cls=Command)
@click.argument("names", nargs=-1, metavar="[ANALYSIS]...")
@click.pass_context
def analyses(ctx: click.Context, /, names: tuple[str, ...]) -> None:
    """List the built-in analyses; with a name (a built-in, script.py, module:Class), describe it and its parameters.

    'himach analyses MDAnalysis' lists MDAnalysis's own.
    """
    from himach import examples
    from himach.runner.scripts import describe_analysis, doc_summary, find_class, foreign_analyses

    for i, name in enumerate(names):
        if i:
            echo()
        if name not in examples.BUILTINS and ":" not in name and not name.endswith(".py"):
            for spec, summary in foreign_analyses(name).items():
                echo(f"{spec}\n  {summary}")
        else:
            echo(describe_analysis(find_class(name)))
    if names:
        return
    families: dict[str, list[str]] = {}
    for name, module in examples.BUILTINS.items():
        families.setdefault(module.split(".")[2].capitalize(), []).append(name)
    formatter = ctx.make_formatter()
    write_sections(formatter, families, {name: (name, doc_summary(examples.load(name))) for name in examples.BUILTINS})
    echo(formatter.getvalue())
    echo("'himach analyses NAME' tells the parameters of one; 'himach analyses MDAnalysis' lists MDAnalysis's own.")
