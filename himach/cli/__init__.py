"""The command line: click commands, one file a group; `main()` turns errors into one message and an exit code."""

import faulthandler
import os
import signal
import sys
import time
from typing import Any, ClassVar, NoReturn

import click

from himach.cli import cache, datasets, plan, run, trajectory
from himach.cli.command_group import CommandGroup, Sections
from himach.errors import HimachError, UsageError, as_himach
from himach.ranks.launch.stop_requests import Terminated, terminate
from himach.ranks.process_exit import promised_rank, under_launcher
from himach.report import commands

__all__ = ["main"]


class Himach(CommandGroup):
    """The command ``himach``."""

    sections: ClassVar[Sections] = {
        "Analyse": ("run", "follow", "analyses", "plan", "bench"),
        "Trajectories": ("info", "convert", "split", "mount"),
        "Cache and cluster": ("stage", "cache", "datasets"),
        "Papers": ("report", "cite", "bundle", "bundle verify"),
    }


@click.group(cls=Himach, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="himach")
def himach() -> None:
    """Analyse molecular-dynamics trajectories in parallel."""


for command in (
    run.analyses, run.follow, run.run, plan.bench, plan.plan, cache.cache, datasets.datasets,
    datasets.mount, trajectory.convert, trajectory.info, trajectory.split, trajectory.stage,
):  # fmt: skip
    himach.add_command(command)
for name, function in (
    ("bundle", commands.bundle),
    ("bundle verify", commands.verify),
    ("cite", commands.cite),
    ("report", commands.report),
):
    himach.command(name)(function)


def main(interrupt: Any = None) -> NoReturn:
    """Run the command line and exit; `interrupt` handles SIGINT, None keeps the present handler."""
    if os.environ.get("_HIMACH_COMPLETE"):
        himach.main(prog_name="himach")  # click answers the shell and exits
    if sys.__stderr__ is not None:
        faulthandler.enable(sys.__stderr__, all_threads=False)  # the starting process reports those of our ranks
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # a run handles it while it maps: it keeps its pairs
    if under_launcher():
        # Python's handlers wait for the end of an MPI call, which may never come: let signals end a rank at once.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    else:
        signal.signal(signal.SIGTERM, terminate)
    try:
        code = _exit_code(interrupt)
        _end_by_signals()
    except (KeyboardInterrupt, Terminated) as error:  # while an error was reported, or after that
        _end_by_signals()
        code = 143 if isinstance(error, Terminated) else 130
    sys.exit(code)


def _end_by_signals() -> None:
    """Let signals that our handlers would raise end the process without a message: it ends already."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)


def _exit_code(interrupt: Any) -> int:
    output = sys.stdout
    try:
        if interrupt is not None and not under_launcher():
            signal.signal(signal.SIGINT, interrupt)
        # click's Exit in a command is returned as its exit code.
        result = himach.main(prog_name="himach", standalone_mode=False, obj=time.time())
        sys.stdout.flush()
    except (click.Abort, KeyboardInterrupt):
        print("himach: interrupted", file=sys.stderr)
        return 130
    except Terminated:
        print("himach: terminated", file=sys.stderr)
        return 143
    except BrokenPipeError:
        # The reader of our output has gone; Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except SystemExit as error:
        # Newer versions of click handle a broken pipe themselves: they replace the output and exit.
        return 1 if sys.stdout is not output else _fail(error)
    except click.exceptions.NoArgsIsHelpError as error:
        if promised_rank() == 0:
            error.show()
        else:
            time.sleep(1)  # as in _fail()
        return 2
    except click.ClickException as error:
        return _fail(UsageError(_with_context(error)))
    except BaseException as error:
        return _fail(_output_error(error))
    return result if isinstance(result, int) else 0


def _output_error(error: BaseException) -> BaseException:
    """Return the error to report, which may be the output's; then keep Python from writing output at exit."""
    try:
        sys.stdout.flush()
    except OSError as unwritten:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, OSError):
            return HimachError(f"standard output cannot be written ({unwritten.strerror})")
    return error


def _fail(error: BaseException) -> int:
    """Report an error once, however many ranks have it, and return the exit code."""
    from himach.ranks.collective import is_everywhere
    from himach.runner.commands import report

    himach_error = as_himach(error)
    if promised_rank() == 0:
        report(error)
    if under_launcher() and is_everywhere(error):
        from himach.ranks.mpi import end_together

        end_together(himach_error.exit_code)
    if promised_rank() != 0:
        time.sleep(1)  # a launcher may end all ranks when this one ends: let rank 0 report first
    return himach_error.exit_code


#: Our words for options of other tools, and of 'himach follow', by those who give them to 'himach run'.
OURS = {
    **dict.fromkeys(("-b", "--begin"), "--from TIME, such as --from 10ns"),
    "-f": "--trajectory (-t)",
    **dict.fromkeys(("--selection", "--select"), "-p selection=VALUE"),
    "--follow": "of 'himach follow ANALYSIS... -t SOURCE', which analyses frames that still come",
}


def _with_context(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    text = error.format_message().rstrip(".")
    is_run = context is not None and context.info_name == "run"
    if is_run and isinstance(error, click.NoSuchOption) and error.option_name in OURS:
        text = f"No such option '{error.option_name}': it is {OURS[error.option_name]}"
    if context is None:
        return text
    joint = " " if text.endswith(("?", "?)")) else "; "
    return f"{text}{joint}'{context.command_path} --help' shows what there is"
