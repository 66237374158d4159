"""``himach analyses``: the built-in analyses and their parameters."""

from __future__ import annotations

import click

from himach.cli.command_group import Command
from himach.cli.text import echo


@click.command(cls=Command)
@click.argument("names", nargs=-1, metavar="[ANALYSIS]...")
def analyses(names: tuple[str, ...]) -> None:
    """Describe the built-in analyses, those of a script, or MDAnalysis's by module:Class ('MDAnalysis' lists them)."""
    from himach import examples
    from himach.runner.scripts import describe_analysis, find_class, foreign_analyses

    for i, name in enumerate(names or examples.BUILTINS):
        if i:
            echo()
        if name not in examples.BUILTINS and ":" not in name and not name.endswith(".py"):
            for spec, summary in foreign_analyses(name).items():
                echo(f"{spec}\n  {summary}")
        else:
            echo(describe_analysis(find_class(name)))
    if not names:
        echo("\nMDAnalysis's own: 'himach analyses MDAnalysis' lists them.")
