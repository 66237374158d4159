"""``himach bench``: figures beside a peer or the machine's limit; each benchmark brings its options."""

from __future__ import annotations

import inspect
import os
from functools import cache
from importlib import import_module

import click

from himach.cli.command_group import Command, CommandGroup

__all__ = ["bench"]

#: Module of each benchmark, and its function where that is not main().
BENCHMARKS = {
    "peers": "runs.peers",
    "scaling": "runs.scaling",
    "zazen": "parts.stores",
    "shuffle": "parts.shuffle",
    "stamps": "parts.stamps",
    "balance": "parts.balance",
    "spill": "parts.shuffle:spill",
    "kernels": "parts.kernels",
    "builtins": "parts.builtins",
    "coverage": "parts.coverage",
    "intervals": "parts.intervals",
    "ensemble": "parts.ensembles",
    "convert": "parts.conversion",
    "remote": "parts.urls",
    "watching": "parts.watching",
    "pairs": "runs.pairs",
    "start": "runs.start",
    "staying": "runs.staying",
    "billion": "runs.billion",
    "outcomes": "runs.outcomes",
    "live": "runs.live",
    "slices": "slices.slices",
    "machine": "runs.machine",
    "plan": "runs.planned",
    "cache": "store.cache",
    "packed": "store.packed",
    "layout": "store.layout",
    "mdanalysis": "runs.mdanalysis",
    "others": "parts.others",
    "mount": "store.mounted",
    "names": "store.names",
}


class Benchmarks(CommandGroup):
    """The benchmarks, each imported when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return their names."""
        return list(BENCHMARKS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command that a module's function is, by its options and its docstring."""
        return _command(cmd_name) if cmd_name in BENCHMARKS else None


@cache  # click takes a function's options off it
def _command(name: str) -> click.Command:
    module, _, function = BENCHMARKS[name].partition(":")
    main = getattr(import_module(f"himach.benchmarks.{module}"), function or "main")
    text = inspect.cleandoc(main.__doc__ or "").partition("\n\nParameters\n")[0]
    return click.command(name, cls=Command, help=text)(main)


@click.group(cls=Benchmarks)
def bench() -> None:
    """Measure himach on this machine, beside a peer or the machine's own limit."""
    # What is timed keeps the modules that Python compiles, as where it is installed for use.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
