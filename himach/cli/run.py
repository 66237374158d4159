"""``himach run`` and ``himach follow``, and ``himach analyses``, which lists what they run."""

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from himach.cli import shared
from himach.cli.command_group import Command, write_sections
from himach.cli.shared import echo
from himach.errors import UsageError, printable_lines
from himach.examples import BUILTINS
from himach.files import config_directory, read_toml
from himach.io.datasets.request import TransformOptions
from himach.output.figures.drawer import drawing
from himach.ranks.process_exit import promised_rank, under_launcher
from himach.ranks.quiet import say
from himach.runner.options import LiveOptions, RunOptions

if TYPE_CHECKING:
    from himach.runner.commands import RunCommand


class FilesOption(click.Option):
    """An option that also takes the files behind its value that have the same suffix, as from a shell's ``*.xtc``."""

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Let the parser take such files."""
        super().add_to_parser(parser, ctx)
        option = parser._long_opt[self.opts[0]]
        take_value = option.process

        def take_files(value: str, state: Any) -> None:
            take_value(value, state)
            suffix = PurePath(value).suffix.lower()
            while state.rargs and suffix not in ("", ".py") and PurePath(state.rargs[0]).suffix.lower() == suffix:
                if state.rargs[0].startswith("-"):
                    break
                take_value(state.rargs.pop(0), state)

        option.process = take_files


def complete_analyses(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return built-ins; where none begins so, let the shell complete a file."""
    names = [CompletionItem(name) for name in BUILTINS if name.startswith(incomplete)]
    return names or [CompletionItem(incomplete, type="file")]


LIVE = tuple(item.name for item in fields(LiveOptions))
SECTIONS = {
    "Input": ("trajectories", "topology", "index", "ensemble", "keywords", "parameters"),
    "Frames that come": LIVE,
    "Frames": ("start", "stop", "step", "frames", *(item.name for item in fields(TransformOptions))),
    "Ranks and memory": ("ranks", "oversubscribe", "memory"),
    "Cache": ("cache", "server", "key"),
    "Keeping and resuming": ("pairs", "reuse", "max_time", "rerun"),
    "Output": ("out", "force", "table", "units", "figure", "features", "quiet", "verbose", "log", "dry_run"),
    "Statistics": ("confidence", "equilibration"),
}


def analysis_options(trajectory: str, without: tuple[str, ...] = ()) -> Callable[[Any], Any]:
    """Add the arguments of ``himach run`` and ``follow`` except options `without`; `trajectory` is a help text."""
    options = (
        click.argument("analyses", nargs=-1, metavar="ANALYSIS...", shell_complete=complete_analyses),
        click.option(
            "--trajectory", "-t", "trajectories", cls=FilesOption, multiple=True, type=shared.SOURCE, metavar="PATH",
            help=trajectory,
        ),
        shared.topology_option,
        shared.ensemble_option,
        shared.keywords_option,
        click.option(
            "-p", "parameters", multiple=True, metavar="NAME=VALUE|@FILE",
            help="Set a parameter; with several analyses ANALYSIS.NAME=VALUE. A TOML file sets several.",
        ),
        shared.ranks_option,
        click.option(
            "--cache", metavar="auto|off|DIR",
            help="Where a node keeps the frames it reads: its own place, nowhere, or DIR ({node}: the node's name).  "
            "[default: auto]",
        ),
        shared.dataclass_options(TransformOptions),
        shared.dataclass_options(RunOptions, without),
        shared.quiet_option,
        shared.verbose_option,
        shared.log_option,
    )  # fmt: skip

    def add(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return add


@click.command(cls=Command, sections=SECTIONS)
@analysis_options("Trajectory file, frame directory or dataset; several files follow one another.")
@shared.server_option
@shared.key_option
@click.option(
    "--rerun", type=shared.PATH, metavar="RUN.JSON",
    help="Repeat the run that this record describes; other options override it.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Show what this run would read and need; run nothing.")
@click.pass_context
def run(
    ctx: click.Context,
    /,
    ranks: int | None,
    oversubscribe: bool,
    server: str | None,
    key: Path | None,
    rerun: Path | None,
    dry_run: bool,
    **options: Any,
) -> None:
    """Run analyses over a trajectory.

    ANALYSIS is a built-in ('himach analyses' lists them), script.py, script.py:ClassName or module:ClassName. Several
    share one pass.

    Under srun or mpiexec each process is a rank; otherwise -n starts the ranks on this machine.
    """
    from himach.runner.commands import on_ranks

    options["cache"] = shared.chosen_cache(options["cache"], server, key)
    ranks = ranks if rerun else _add_defaults(options, ranks)
    command = _command(ctx, options, rerun=rerun, dry=dry_run)
    if rerun is not None and ranks is None and not under_launcher():
        from himach.runner.rerun import recorded_ranks, repeatable_record

        ranks = recorded_ranks(repeatable_record(rerun))
    _show(on_ranks(command, shared.started_ranks(ranks, oversubscribe), keeps=command.keeps)[0])


@click.command(cls=Command, sections=SECTIONS)
@analysis_options(
    "Running engine, imd://HOST:PORT; dataset that is being pushed or staged; or file that grows.",
    without=("frames", "max_time"),
)
@shared.dataclass_options(LiveOptions)
@click.pass_context
def follow(ctx: click.Context, /, ranks: int | None, oversubscribe: bool, **options: Any) -> None:
    """Run analyses over frames that still come.

    There is an outcome every so many frames (--every), and the last one at the end: when an engine ends, no frame came
    for a while (--idle), or by Ctrl-C. ANALYSIS is as of 'himach run'.
    """
    from himach.runner.live.follow import follow_command

    ranks = _add_defaults(options, ranks)
    live = LiveOptions(**{name: options.pop(name) for name in LIVE})
    _show(follow_command(_command(ctx, options), live, shared.started_ranks(ranks, oversubscribe)))


#: By name of an option: the types of its value, and the default where the file has none.
DEFAULTS: Mapping[str, tuple[tuple[type, ...], Any]] = {
    "cache": ((str,), "auto"),
    "ranks": ((int,), 1),
    "confidence": ((float, str), 0.95),
    "figure": ((str, list), "png"),
}


def user_defaults() -> dict[str, Any]:
    """Return the options that the user's file sets; raises UsageError."""
    path = config_directory() / "config.toml"
    values = read_toml(path, str(path)) if path.exists() else {}
    for name, value in values.items():
        if name not in DEFAULTS:
            raise UsageError(f"{path}: {name} cannot be set; there are {', '.join(DEFAULTS)}")
        if isinstance(value, bool) or not isinstance(value, DEFAULTS[name][0]):
            raise UsageError(f"{path}: {name} is {value!r}; it is written as in {name} = {DEFAULTS[name][1]!r}")
    if values.get("ranks", 1) < 1:
        raise UsageError(f"{path}: ranks is {values['ranks']}; it is 1 or more")
    return values


def describe_defaults() -> str:
    """Return a text on the defaults and the file that sets them."""
    values = user_defaults()
    lines = [f"  {name:11} {values.get(name, default)}" for name, (_, default) in DEFAULTS.items()]
    return "\n".join([f"defaults of 'himach run', which {config_directory() / 'config.toml'} can set:", *lines])


def _add_defaults(options: dict[str, Any], ranks: int | None) -> int | None:
    """Add the user's defaults to options that are not set; return the number of ranks to start."""
    defaults = user_defaults()
    default_ranks = defaults.pop("ranks", None)
    for name, value in defaults.items():
        if options[name] is None and (name != "figure" or options["out"]):
            options[name] = value
    return default_ranks if ranks is None and not under_launcher() else ranks


def _command(ctx: click.Context, options: dict[str, Any], rerun: Path | None = None, dry: bool = False) -> "RunCommand":
    """Return the command of each rank; refuse what only a command line can get wrong."""
    analyses, parameters, keywords = (options.pop(name) for name in ("analyses", "parameters", "keywords"))
    options["transform"] = shared.take_transform(options)
    values = {name: value for name, value in options.items() if value not in (None, ()) and value is not False}
    if rerun is None:
        _check_files(analyses, ctx)
        shared.check_required(ctx, analyses=analyses, trajectories=values.get("trajectories") or values.get("ensemble"))
    elif analyses:
        raise click.UsageError(f"--rerun repeats the analyses of {rerun}; leave {' '.join(analyses)} out", ctx)
    _check_places(values, rerun is not None, ctx)
    drawer = None
    if "out" in values and not dry and promised_rank() == 0:
        drawer = ctx.with_resource(drawing())
    from himach.runner.commands import RunCommand

    values["command"] = ("himach", *sys.argv[1:])
    start = ctx.obj or time.time()
    return RunCommand(analyses, parameters, keywords, values, rerun, start, dry=dry, drawer=drawer)


def _check_files(analyses: tuple[str, ...], ctx: click.Context) -> None:
    """Refuse files given as analyses, before missing parameters are reported."""
    files = [word for word in analyses if ":" not in word and Path(word).suffix not in ("", ".py")]
    if files:
        raise click.UsageError(
            f"{', '.join(files)} stands where analyses do: a trajectory is named by -t PATH, a topology by -s PATH", ctx
        )


def _check_places(values: Mapping[str, Any], is_rerun: bool, ctx: click.Context) -> None:
    """Refuse options of output files if none are written: they would change nothing."""
    for place, names in {"out": ("table", "figure", "units", "force"), "pairs": ("reuse",)}.items():
        options = [f"--{name}" for name in names if name in values]
        recorded = place == "pairs" and is_rerun  # the record may name the place
        if options and not recorded and "out" not in values and place not in values:
            raise click.UsageError(f"{options[0]} goes with --{place}, which says where files are written", ctx)


def _show(summary: str | None) -> None:
    if summary is not None:
        say(printable_lines(summary), sys.stderr)


@click.command(cls=Command)
@click.argument("names", nargs=-1, metavar="[ANALYSIS]...")
@click.pass_context
def analyses(ctx: click.Context, /, names: tuple[str, ...]) -> None:
    """List the built-in analyses; with a name (a built-in, script.py, module:Class), describe it and its parameters."""
    from himach import examples
    from himach.runner.methods_text import doc_summary
    from himach.runner.scripts import describe_analysis, find_class

    for i, name in enumerate(names):
        if i:
            echo()
        echo(describe_analysis(find_class(name)))
    if names:
        return
    families: dict[str, list[str]] = {}
    for name, module in examples.BUILTINS.items():
        families.setdefault(module.split(".")[2].capitalize(), []).append(name)
    formatter = ctx.make_formatter()
    write_sections(formatter, families, {name: (name, doc_summary(examples.load(name))) for name in examples.BUILTINS})
    echo(formatter.getvalue())
    echo("'himach analyses NAME' tells the parameters of one.")
