"""`CommandGroup`: commands whose list tells the whole first sentence of each, on as many lines as it takes."""

from __future__ import annotations

import click


class CommandGroup(click.Group):
    """A group whose list of commands wraps where click would cut it short."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands and what they do."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [
            (name, command.get_short_help_str(limit=1000))
            for name, command in commands
            if command is not None and not command.hidden
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
