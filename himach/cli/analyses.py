"""``himach analyses``: the built-in analyses and their parameters."""

from __future__ import annotations

import click

from himach.cli.command_group import Command


@click.command(cls=Command)
@click.argument("names", nargs=-1, metavar="[ANALYSIS]...")
def analyses(names: tuple[str, ...]) -> None:
    """Describe the built-in analyses, or those of a script."""
    from himach import examples
    from himach.runner.scripts import describe_analysis, find_class

    for i, name in enumerate(names or examples.BUILTINS):
        if i:
            click.echo()
        click.echo(describe_analysis(find_class(name)))
