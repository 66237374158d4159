"""How commands read their words and are listed: `Command`, `CommandGroup`, and `LateCommandGroup`, imported later."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

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


class LateCommandGroup(CommandGroup):
    """A group each of whose commands is imported when it is asked for.

    Parameters
    ----------
    modules
        The module of each command, in the order of their list; ``module:function`` where it does not have its name. A
        function becomes a command by its options and its docstring.
    attributes
        See click.Group.
    """

    def __init__(self, *, modules: Mapping[str, str], **attributes: Any) -> None:
        super().__init__(**attributes)
        self._modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return their names."""
        return list(self._modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command."""
        if cmd_name not in self._modules:
            return None
        module, _, name = self._modules[cmd_name].partition(":")
        found = getattr(import_module(module), name or cmd_name)
        return found if isinstance(found, click.Command) else _command(cmd_name, found)


def _command(name: str, function: Callable[..., Any]) -> click.Command:
    """Return the command that a function is; the function keeps its options, which click would take off it."""

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        return function(*arguments, **options)

    text = inspect.cleandoc(function.__doc__ or "").partition("\n\nParameters\n")[0]
    return click.command(name, cls=Command, help=text, params=[])(call)
