"""How commands read their words and are listed: `Command`, and `CommandGroup`, a group of them."""

from __future__ import annotations

import click


class Command(click.Command):
    """A command that refuses an option given twice where click would take the last value without a word."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Turn the words of a command line into parameters."""
        if args and not ctx.resilient_parsing:
            _, _, order = self.make_parser(ctx).parse_args(list(args))
            for param in dict.fromkeys(order):
                single = isinstance(param, click.Option) and not param.multiple and not param.is_flag
                if single and order.count(param) > 1:
                    times = order.count(param)
                    raise click.UsageError(f"{'/'.join(param.opts)} is given {times} times; give it once", ctx)
        return super().parse_args(ctx, args)


class CommandGroup(click.Group):
    """A group of such commands, whose list tells the whole first sentence of each, on as many lines as it takes."""

    command_class = Command

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
