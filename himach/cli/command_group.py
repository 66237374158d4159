"""Parsing and listing of commands: `Command` and `CommandGroup`."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

import click

Sections = Mapping[str, Sequence[str]]


class Command(click.Command):
    """A command that refuses a repeated option where click would silently take the last value.

    `sections` maps sections of the help to names of options.
    """

    def __init__(self, *args: Any, sections: Sections = MappingProxyType({}), **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self._sections = sections

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options by sections, those without a section last."""
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        rows = {option.name: row for option in options if (row := option.get_help_record(ctx)) is not None}
        write_sections(formatter, self._sections, rows, "Options")

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


def write_sections(
    formatter: click.HelpFormatter, sections: Sections, rows: dict[Any, tuple[str, str]], rest_title: str = ""
) -> None:
    """Write rows of names and texts by sections; those without a section under the title `rest_title`."""
    for title, names in [*sections.items(), (rest_title, [*rows])]:
        present = [rows.pop(name) for name in names if name in rows]
        if present:
            with formatter.section(title):
                formatter.write_dl(present)


class CommandGroup(click.Group):
    """A group of such commands whose list shows the whole first sentence of each, on several lines if needed.

    `sections` maps sections of the list to names of commands.
    """

    command_class = Command
    sections: ClassVar[Sections] = MappingProxyType({})

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[Any, Any, list[str]]:
        """Return the command that the first words name, and the remaining words."""
        n = 2 if " ".join(args[:2]) in self.commands else 1
        return *super().resolve_command(ctx, [" ".join(args[:n])])[:2], args[n:]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands and their first sentences by sections."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = {
            name: (name, command.get_short_help_str(limit=1000))
            for name, command in commands
            if command is not None and not command.hidden
        }
        write_sections(formatter, self.sections, rows, "Commands")
