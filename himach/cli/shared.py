"""Arguments and options that several commands share; facts as lines of text: `columns()`, `format_facts()`."""

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import click

from himach.errors import printable_lines
from himach.io.datasets.request import TransformOptions
from himach.io.store.sizes import show_size
from himach.io.trajectories.urls.url_names import strip_scheme
from himach.ranks.process_exit import under_launcher

PATH = click.Path(path_type=Path)


class _Source(click.Path):
    """A path, a ``file://`` URL or ``himach://NAME``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(strip_scheme(value), param, ctx)


SOURCE = _Source(path_type=Path)

Command = TypeVar("Command", bound=Callable[..., Any])

trajectories_argument = click.argument("trajectories", nargs=-1, required=True, type=SOURCE, metavar="TRAJ...")

topology_option = click.option("--topology", "-s", type=SOURCE, metavar="PATH", help="Topology file.")

ensemble_option = click.option(
    "--ensemble", metavar="CSV|PATTERN",
    help="Many simulations in place of one: a table (name, trajectory, topology, group, ...), or 'sims/*/traj.xtc'.",
)  # fmt: skip

keywords_option = click.option(
    "--universe", "keywords", multiple=True, metavar="NAME=VALUE", help="Keyword for MDAnalysis (dt, ...)."
)


def dataclass_options(cls: type, without: Collection[str] = ()) -> Callable[[Command], Command]:
    """Add the options that the fields of a dataclass describe (see `himach.io.datasets.request.option`)."""

    def add(command: Command) -> Command:
        for item in reversed([item for item in fields(cls) if item.metadata and item.name not in without]):
            own = ("recorded", "short", "names", "choices")
            settings = {name: value for name, value in item.metadata.items() if name not in own}
            if "choices" in item.metadata:
                settings["type"] = click.Choice(item.metadata["choices"])
            elif settings.get("type") is Path:
                settings["type"] = PATH
            names = ["--" + item.name.replace("_", "-"), *filter(None, [item.metadata.get("short")])]
            names += [*item.metadata.get("names", ()), item.name]
            command = click.option(*names, **settings)(command)
        return command

    return add


def take_transform(options: dict[str, Any]) -> tuple[Any, ...]:
    """Remove the options of `TransformOptions` from `options`; return the transformations of frames."""
    return TransformOptions(**{item.name: options.pop(item.name) for item in fields(TransformOptions)}).steps()


def check_required(ctx: click.Context, **values: object) -> None:
    """Raise click.MissingParameter for the first parameter without a value, as click does for required ones."""
    for param in ctx.command.params:
        if param.name in values and not values[param.name]:
            raise click.MissingParameter(ctx=ctx, param=param)


def ranks_option(command: Command) -> Command:
    """Add the options for ranks that the command starts."""
    command = click.option(
        "--oversubscribe", is_flag=True, help="Allow more than four ranks a processor, or more than fit in memory."
    )(command)
    return click.option(
        "-n", "ranks", type=click.IntRange(min=1), metavar="RANKS", help="Start this many ranks on this machine."
    )(command)


def started_ranks(ranks: int | None, oversubscribe: bool) -> int:
    """Return the number of ranks to start for -n; 0 if this process works alone or is one of several."""
    from himach.runner.commands import check_ranks

    if under_launcher() or not oversubscribe:
        check_ranks(ranks)
    return 0 if ranks is None or ranks == 1 or under_launcher() else ranks


cache_option = click.option(
    "--cache", metavar="DIR", help="The store's directory ({node}: the node's name); default: $HIMACH_CACHE or scratch."
)

server_option = click.option(
    "--server", metavar="HOST:PORT", help="Read what this server and its peers have, in place of this node's store."
)

key_option = click.option("--key", type=PATH, metavar="FILE", help="Key for --server.  [default: ~/.config/himach/key]")


def chosen_cache(cache: str | None, server: str | None, key: Path | None) -> str | None:
    """Return the place of frames: --server instead of --cache; refuse both, and a key without a server."""
    if server is None:
        if key is not None:
            raise click.UsageError("--key is for --server; give both")
        return cache
    if cache is not None:
        raise click.UsageError("either --cache or --server: frames of a server are not kept here ('himach stage' does)")
    from himach.io.server.survey import format_choice

    return format_choice(server, key)


quota_option = click.option(
    "--quota", metavar="SIZE", help="Most bytes of a store; default: $HIMACH_QUOTA or half of the free space."
)

quiet_option = click.option("--quiet", "-q", is_flag=True, help="Show no progress and no summary line.")


def _set_environ(ctx: click.Context, param: click.Parameter, value: bool | Path | None) -> None:
    """Let all ranks know of an option on messages."""
    if isinstance(value, Path):
        try:
            value.open("a").close()
        except OSError as error:
            raise click.BadParameter(f"{value}: {error.strerror}", ctx, param) from None
    if value and param.name:
        os.environ[f"HIMACH_{param.name.upper()}"] = os.path.abspath(value) if isinstance(value, Path) else "1"


verbose_option = click.option(
    "--verbose", "-v", is_flag=True, callback=_set_environ, expose_value=False, help="Report each step with its time."
)

log_option = click.option(
    "--log", type=PATH, metavar="FILE", callback=_set_environ, expose_value=False, help="Append messages to this file."
)


SIZES = frozenset(["size", "free", "reserve", "quota", "used", "copies"])


def echo(text: object = "", err: bool = False, nl: bool = True) -> None:
    """Print himach's own text, in which names of files and members may hold any characters."""
    click.echo(printable_lines(str(text)), err=err, nl=nl)


def columns(rows: Sequence[Sequence[str]], left: frozenset[int]) -> str:
    """Return rows of cells as aligned lines; columns in `left` are aligned left, the others right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(
            cell.ljust(width) if index in left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def format_facts(facts: Mapping[str, Any]) -> str:
    """Return facts of a store, one a line, with readable sizes; None is shown as unknown."""
    sizes = {name: show_size(value) for name, value in facts.items() if name in SIZES and value is not None}
    texts = {name: "unknown" if value is None else value for name, value in {**facts, **sizes}.items()}
    return columns([(name.replace("_", " "), str(value)) for name, value in texts.items()], left=frozenset([0, 1]))


def format_minute(seconds: float) -> str:
    """Return a time in seconds since 1970 as a readable date and minute; 0 is unknown."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds)) if seconds else "unknown"


def server_line(facts: Mapping[str, Any]) -> str:
    """Return a line on the `facts` of `himach.io.server.control.status`."""
    if not facts["running"]:
        return "none"
    if not facts["answers"]:
        return f"pid {facts.get('pid')} runs and does not answer; 'himach cache stop' ends it"
    remote = f" and {facts['listen']}" if facts["listen"] else ""
    return (
        f"pid {facts['pid']} at {facts['socket']}{remote}: {facts['connections']} of {facts['max_connections']} "
        f"connections, {facts['frames']:,} frames pushed, {facts['places']:,} frames read"
    )
