"""Help texts: every command says what it does, and lists of commands cut no sentence short."""

import importlib
import shlex
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner
from support.commands import DATA, run_python
from support.ranks import clean_environment

himach = importlib.import_module("himach.cli").himach


def commands(command, path=()):
    """Give every command with the words by which it is called."""
    yield path, command
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            yield from commands(command.get_command(click.Context(command), name), (*path, name))


def test_lists_of_commands_are_whole():
    for path, command in commands(himach):
        shown = CliRunner().invoke(himach, [*path, "--help"], terminal_width=80)
        assert shown.exit_code == 0
        text = " ".join(shown.output.split())
        for inner in getattr(command, "commands", {}).values():
            assert f" {inner.name} {inner.get_short_help_str(limit=1000)}" in text
        assert max(map(len, shown.output.splitlines())) <= 80


def test_commands_and_options_of_runs_stand_in_sections():
    for words, title in ((["run"], "Options:"), (["follow"], "Options:"), ([], "Commands:")):
        shown = CliRunner().invoke(himach, [*words, "--help"]).output
        rest = shown.partition(f"\n\n{title}\n")[2]
        assert rest.strip() == ("-h, --help  Show this message and exit." if words else ""), words
        assert "\nInput:\n" in shown if words else "\nPapers:\n" in shown


def test_every_command_and_option_says_what_it_does():
    for path, command in commands(himach):
        assert command.help, path
        unsaid = [option.name for option in command.params if isinstance(option, click.Option) and not option.help]
        assert set(unsaid) <= {"ready", "ranks", "repeats"}, path


@pytest.mark.fresh
def test_the_command_prints_its_help():
    done = run_python("-P", "-m", "himach", "--help", environ=clean_environment(COLUMNS="80"))
    shown = CliRunner().invoke(himach, ["--help"], prog_name="himach", terminal_width=78)
    assert (done.returncode, done.stdout, done.stderr) == (0, shown.output, "")


@pytest.mark.fresh
def test_a_reader_that_has_gone_ends_a_command_without_a_word():
    words = [sys.executable, "-m", "himach", "analyses"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as command:
        command.stdout.close()
        assert command.stderr.read() == b""
        assert command.wait() == 1


@pytest.mark.fresh
@pytest.mark.parametrize("words", [["analyses"], ["run", "rmsd", *DATA, "--stop", 3, "-n", 2]])
def test_output_that_cannot_be_written_is_an_error_of_one_line(words):
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "himach", *map(str, words)]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "himach: error: standard output cannot be written (No space left on device)"
    )
    assert "Exception ignored" not in done.stderr


@pytest.mark.fresh
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("closed", ["2>&-", ">&-", "<&-"])
def test_closed_streams_end_no_run(tmp_path, closed, ranks):
    words = [sys.executable, "-m", "himach", "run", "rmsd", *DATA, "--stop", 3, "-n", ranks, "--out", tmp_path / "out"]
    command = f"{shlex.join(map(str, words))} {closed}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert ("[3 rows]" in done.stdout) == (closed != ">&-")
    assert "Traceback" not in done.stderr
    assert (tmp_path / "out" / "rmsd.csv").read_text().count("\n") == 4
