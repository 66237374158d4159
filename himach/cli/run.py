"""``himach run`` and ``himach follow``, and ``himach analyses``, which lists what they run.

Words of their command lines: several files after one -t, and completions, which run no script.
"""

from __future__ import annotations

import ast
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from himach.cli import shared
from himach.cli.command_group import Command, write_sections
from himach.cli.defaults import user_defaults
from himach.cli.shared import echo
from himach.errors import printable_lines
from himach.examples import BUILTINS
from himach.io.datasets.request import TransformOptions
from himach.output.figures.drawer import drawing
from himach.ranks.process_exit import promised_rank, under_launcher
from himach.ranks.quiet import say
from himach.runner.options import LiveOptions, RunOptions

if TYPE_CHECKING:
    from himach.runner.commands import RunCommand


TRAJECTORY = ("-t", "--trajectory")


class RunWords(Command):
    """A command in which several files of one kind may follow one -t, as from a shell's ``*.xtc``.

    `elsewhere` maps options that the command lacks to texts on what replaces them.
    """

    def __init__(self, *args: Any, elsewhere: Mapping[str, str] = MappingProxyType({}), **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self._elsewhere = elsewhere

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Turn the words of a command line into parameters."""
        try:
            return super().parse_args(ctx, repeat_option(args))
        except click.NoSuchOption as error:
            if error.option_name not in self._elsewhere:
                raise
            raise click.UsageError(
                f"There is no option {error.option_name}: {self._elsewhere[error.option_name]}", ctx
            ) from None


def repeat_option(words: Sequence[str]) -> list[str]:
    """Return the words with a -t before each file that follows a -t's and has the same suffix.

    Examples
    --------
    >>> repeat_option(["rmsd", "-t", "a.xtc", "b.xtc", "-s", "c.gro"])
    ['rmsd', '-t', 'a.xtc', '-t', 'b.xtc', '-s', 'c.gro']
    """
    spread: list[str] = []
    suffix = ""  # of the last trajectory
    behind = False  # whether the last word takes this one as its value
    for word in words:
        option, equals, value = word.partition("=")
        if behind:
            suffix, behind = _suffix(word), False
        elif word in TRAJECTORY:
            suffix, behind = "", True
        elif equals and option in TRAJECTORY:
            suffix = _suffix(value)
        elif word.startswith("-t") and not equals:
            suffix = _suffix(word[2:])
        elif suffix and not word.startswith("-") and _suffix(word) == suffix:
            spread.append(TRAJECTORY[0])
        else:
            suffix = ""
        spread.append(word)
    return spread


def _suffix(word: str) -> str:
    suffix = PurePath(word).suffix.lower()
    return "" if suffix == ".py" else suffix


def complete_analyses(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return built-ins, scripts, the classes of a script, and folders that may hold one."""
    script, colon, prefix = incomplete.partition(".py:")
    if colon:
        classes = _classes(Path(f"{script}.py"))
        return [CompletionItem(f"{script}.py:{name}") for name in classes if name.startswith(prefix)]
    completions = [CompletionItem(name) for name in BUILTINS if name.startswith(incomplete)]
    for path in sorted(Path(incomplete).parent.glob("*") if "/" in incomplete else Path().glob("*")):
        text = f"{incomplete[: incomplete.rfind('/') + 1]}{path.name}"
        if text.startswith(incomplete) and (path.suffix == ".py" or path.is_dir()):
            completions.append(CompletionItem(f"{text}/" if path.is_dir() else text))
    return completions


def complete_parameters(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the parameters of the analyses named so far, as ``NAME=``; for several, ``ANALYSIS.NAME=``."""
    analyses: Sequence[str] = ctx.params.get("analyses") or ctx.args  # the latter after an option without its value
    names = []
    for spec in analyses:
        owner = f"{spec.rpartition(':')[2]}." if len(analyses) > 1 and not spec.endswith(".py") else ""
        names += [f"{owner}{name}=" for name in _parameters(spec)]
    return [CompletionItem(name) for name in dict.fromkeys(names) if name.startswith(incomplete)]


def _parameters(spec: str) -> Iterator[str]:
    """Yield the annotated attributes of an analysis's class, or of all classes of a script named alone."""
    from himach import examples

    path, _, chosen = spec.partition(":")
    if spec in examples.BUILTINS:
        module, _, chosen = examples.BUILTINS[spec].partition(":")
        path = str(Path(examples.__file__).parent.joinpath(*module.split(".")[2:]).with_suffix(".py"))
    for name, body in _classes(Path(path)).items():
        if chosen in ("", name):
            yield from body


def _classes(script: Path) -> dict[str, list[str]]:
    """Return the classes of a script with their public annotated attributes, except ClassVars."""
    try:
        tree = ast.parse(script.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return {}
    return {
        node.name: [
            line.target.id
            for line in node.body
            if isinstance(line, ast.AnnAssign)
            and isinstance(line.target, ast.Name)
            and not line.target.id.startswith("_")
            and "ClassVar" not in ast.unparse(line.annotation)
        ]
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.bases
    }


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
#: Options of 'himach follow' and older names, with texts on what replaces them.
ELSEWHERE = {
    "--again": "it is called --rerun",
    **dict.fromkeys(
        ("--follow", *(f"--{name.replace('_', '-')}" for name in LIVE)),
        "'himach follow ANALYSIS... -t SOURCE' analyses frames that still come",
    ),
}


def analysis_options(trajectory: str, without: tuple[str, ...] = ()) -> Callable[[Any], Any]:
    """Add the arguments of ``himach run`` and ``follow`` except options `without`; `trajectory` is a help text."""
    options = (
        click.argument("analyses", nargs=-1, metavar="ANALYSIS...", shell_complete=complete_analyses),
        click.option(
            "--trajectory", "-t", "trajectories", multiple=True, type=shared.SOURCE, metavar="PATH", help=trajectory
        ),
        shared.topology_option,
        shared.ensemble_option,
        shared.keywords_option,
        click.option(
            "-p", "parameters", multiple=True, metavar="NAME=VALUE|@FILE", shell_complete=complete_parameters,
            help="Set a parameter; of several analyses ANALYSIS.NAME=VALUE. A TOML file sets several.",
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


@click.command(cls=RunWords, sections=SECTIONS, elsewhere=ELSEWHERE)
@analysis_options("Trajectory file, frame directory or dataset; several files follow one another.")
@shared.server_option
@shared.key_option
@click.option(
    "--rerun", type=shared.PATH, metavar="RUN.JSON",
    help="Repeat the run of this record, in place of ANALYSIS and --trajectory; other options change what they say.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Tell what this run would read and take, and do nothing of it.")
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
        from himach.runner.rerun import read_record, recorded_ranks

        ranks = recorded_ranks(read_record(rerun))
    _show(on_ranks(command, shared.started_ranks(ranks, oversubscribe), keeps=command.keeps)[0])


@click.command(cls=RunWords, sections=SECTIONS)
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


def _add_defaults(options: dict[str, Any], ranks: int | None) -> int | None:
    """Add the user's defaults to options that are not set; return the number of ranks to start."""
    defaults = user_defaults()
    default_ranks = defaults.pop("ranks", None)
    for name, value in defaults.items():
        if options[name] is None and (name != "figure" or options["out"]):
            options[name] = value
    return default_ranks if ranks is None and not under_launcher() else ranks


def _command(ctx: click.Context, options: dict[str, Any], rerun: Path | None = None, dry: bool = False) -> RunCommand:
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
    """List the built-in analyses; with a name (a built-in, script.py, module:Class), describe it and its parameters.

    'himach analyses MDAnalysis' lists MDAnalysis's own.
    """
    from himach import examples
    from himach.runner.methods_text import doc_summary
    from himach.runner.scripts import describe_analysis, find_class, foreign_analyses

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
