"""Words of a command line: what its help says, what is refused, or taken for several files; what a shell completes."""

import importlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from MDAnalysisTests.datafiles import DCD, PSF, XTC
from support.commands import DATA, himach, run_python
from support.ranks import clean_environment

import himach as package
from himach.cli.command_group import Command
from himach.cli.run import run

root = importlib.import_module("himach.cli").himach


def commands(command, path=()):
    """Give every command with the words by which it is called."""
    yield path, command
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            yield from commands(command.get_command(click.Context(command), name), (*path, name))


def test_lists_of_commands_are_whole():
    for path, command in commands(root):
        shown = CliRunner().invoke(root, [*path, "--help"], terminal_width=80)
        assert shown.exit_code == 0
        text = " ".join(shown.output.split())
        for inner in getattr(command, "commands", {}).values():
            assert f" {inner.name} {inner.get_short_help_str(limit=1000)}" in text
        assert max(map(len, shown.output.splitlines())) <= 80


def test_commands_and_options_of_runs_stand_in_sections():
    for words, title in ((["run"], "Options:"), (["follow"], "Options:"), ([], "Commands:")):
        shown = CliRunner().invoke(root, [*words, "--help"]).output
        rest = shown.partition(f"\n\n{title}\n")[2]
        assert rest.strip() == ("-h, --help  Show this message and exit." if words else ""), words
        assert "\nInput:\n" in shown if words else "\nPapers:\n" in shown


def test_every_command_and_option_says_what_it_does():
    for path, command in commands(root):
        assert command.help, path
        unsaid = [option.name for option in command.params if isinstance(option, click.Option) and not option.help]
        assert set(unsaid) <= {"ready", "ranks", "repeats"}, path


@pytest.mark.fresh
def test_the_command_prints_its_help():
    done = run_python("-P", "-m", "himach", "--help", environ=clean_environment(COLUMNS="80"))
    shown = CliRunner().invoke(root, ["--help"], prog_name="himach", terminal_width=78)
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


def refused(*words: object, **options) -> str:
    done = himach(*words, **options, code=2)
    assert done.stderr.count("himach: error:") == 1
    assert not re.search(r"\?;|\.;|\.\.'|\(/.*\.py, line", done.stderr), done.stderr
    return done.stderr


def test_a_parameter_set_twice_is_refused_by_name():
    message = refused("run", "rmsd", *DATA, "-p", "selection=name CA", "-p", "selection=protein")
    assert "-p selection=protein" in message and "'name CA'" in message
    message = refused("run", "rmsd", "rdf", *DATA, "-p", "rdf.bins=3", "-p", "rdf.bins=3")
    assert "-p rdf.bins=3" in message


def test_options_of_files_are_refused_where_none_are_written():
    for word in ("--units", "--force", "--table=nc", "--figure=svg"):
        assert f"{word.partition('=')[0]} goes with --out" in refused("run", "rmsd", *DATA, word)
    assert "--reuse goes with --pairs" in refused("run", "rmsd", *DATA, "--reuse", "never")


def test_options_of_other_tools_lead_to_ours():
    assert "No such option '-b': it is --from TIME" in refused("run", "rmsd", *DATA, "-b", "100")
    assert "'--selection': it is -p selection=VALUE" in refused("run", "rmsd", *DATA, "--selection", "name CA")
    assert "'-f'; 'himach info --help'" in refused("info", "-f", "md.xtc")


@pytest.mark.fresh
def test_an_option_given_twice_is_refused_by_every_command():
    assert all(isinstance(command, Command) for _, command in commands(root) if not isinstance(command, click.Group))
    assert "--topology/-s is given 2 times" in refused("run", "rmsd", *DATA, "-s", "other.psf")
    assert "--cache is given 2 times" in refused("cache", "list", "--cache", "a", "--cache", "b")


@pytest.mark.fresh
def test_more_ranks_than_a_machine_can_do_with_are_refused():
    most = 4 * len(os.sched_getaffinity(0))
    for words in (("run", "rmsd", *DATA), ("stage", DCD), ("follow", "rmsd", "-t", "a.xtc")):
        assert f"start at most {most}" in refused(*words, "-n", most + 1)
    for call in (lambda: package.run(package.examples.load("rmsd"), DCD, PSF, ranks=5000), lambda: package.Ranks(5000)):
        with pytest.raises(package.UsageError, match=r"5000 ranks .* himach.Ranks\(5000, oversubscribe=True\)"):
            call()
    done = himach("run", "rmsd", *DATA, "-n", most + 1, "--oversubscribe", "--stop", 1)
    assert f"1 frame on {most + 1} ranks" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "rmsd", "a.xtc", PSF], "a.xtc, .*psf stands where analyses do: a trajectory is named by -t PATH"),
        (["run", "rmsd", "-t", PSF, "-s", DCD], "psf: its suffix is that of no format that MDAnalysis reads"),
        (["run", "rmsd", "-t", f"{Path(DCD).parent}/adk*.dcd"], r"no trajectory .*, but \d+ that match it: leave"),
        (["run", "rmsd", "-t", "adk.dcd", "-s", PSF], "'himach cache list' tells .*; did you mean '.*/adk_dims.dcd'"),
        (["run", "rmsd", "--strat", 3], r"\(Did you mean .*\?\) 'himach run --help'"),
        (["run", "rmsd", "--trajectroy", "a.xtc"], "Did you mean '--trajectory'\\? 'himach run --help'"),
        (["run", "rmsd", "-f", "a.xtc"], "No such option '-f': it is --trajectory"),
        (["run", "rmsd", "-t", "a.xtc", "-o", "rmsd.xvg"], "out .*rmsd.xvg is a folder: leave out .xvg"),
        (["run", "gyrate", "-t", "a.xtc"], "no analysis 'gyrate'; did you mean 'radius-of-gyration'"),
        (["analyses", "DSSP"], "there is no analysis 'DSSP'; did you mean 'secondary-structure'"),
        (["analyses", "rmds"], "there is no analysis 'rmds'; did you mean 'rmsd'"),
    ],
)
def test_a_mistake_is_told_with_the_way_out(words, message):
    assert re.search(message, refused(*words, cwd=Path(DCD).parent))


@pytest.mark.parametrize(
    ("words", "files", "rest"),
    [
        (["-t", "a.xtc", "b.xtc", "c.XTC", "-t", "d.xtc"], ["a.xtc", "b.xtc", "c.XTC", "d.xtc"], []),
        (["--trajectory=a.xtc", "b.xtc", "-n", "2"], ["a.xtc", "b.xtc"], []),
        (["-ta.xtc", "b.xtc", "-stop.xtc", "c.xtc"], ["a.xtc", "b.xtc"], ["c.xtc"]),
        (["-t", "a.xtc", "rmsd", "b.xtc"], ["a.xtc"], ["rmsd", "b.xtc"]),
        (["-t", "a.xtc", "top.pdb"], ["a.xtc"], ["top.pdb"]),
        (["-t", "sim1", "rmsd"], ["sim1"], ["rmsd"]),
        (["-t", "odd.py", "mine.py"], ["odd.py"], ["mine.py"]),
    ],
)
def test_files_of_one_kind_follow_one_option(words, files, rest):
    parsed = run.make_context("run", words).params
    assert ([str(path) for path in parsed["trajectories"]], list(parsed["analyses"])) == (files, rest)


def complete(*words: str, cwd: Path) -> list[str]:
    environ = {"_HIMACH_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    program = "import sys\nfrom himach.cli import main\ntry: main()\nfinally: assert 'numpy' not in sys.modules"
    command = [sys.executable, "-P", "-c", program]
    environ = clean_environment(**environ)
    done = subprocess.run(command, env=environ, cwd=cwd, capture_output=True, text=True, check=False)
    assert "AssertionError" not in done.stderr  # a shell does not wait for numpy
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


@pytest.mark.fresh
def test_a_shell_completes_analyses(tmp_path):
    assert complete("himach", "run", "rm", cwd=tmp_path) == ["rmsd", "rmsf"]
    assert complete("himach", "run", "./mi", cwd=tmp_path) == ["./mi"]  # of a file, which the shell completes


@pytest.fixture
def locked(tmp_path):
    folder = tmp_path / "locked"
    folder.mkdir()
    (folder / "a.py").write_text("")
    folder.chmod(0)
    yield folder
    folder.chmod(0o700)


@pytest.mark.nightly(but=2)
@pytest.mark.fresh
@pytest.mark.parametrize(
    "words",
    [
        ["run", "rmsd", "-t", "locked/a.xtc"],
        ["run", "rmsd", *DATA[:2], "-s", "locked/a.pdb"],
        ["run", "locked/a.py", *DATA],
        ["run", "rmsd", *DATA, "--out", "locked/out"],
        ["run", "--rerun", "locked/run.json"],
        ["info", "locked/a.xtc"],
        ["stage", "locked/a.xtc"],
        ["split", str(XTC), "locked/frames"],
    ],
)
def test_a_folder_that_may_not_be_read_is_named_and_no_line_of_ours(locked, tmp_path, words):
    command = [sys.executable, "-P", "-m", "himach", *words]
    if os.geteuid() == 0:  # without the right of root to read what nobody may read
        rights = "-dac_override,-dac_read_search"
        command = ["setpriv", f"--bounding-set={rights}", f"--inh-caps={rights}", *command]
    done = subprocess.run(command, cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "locked/" in done.stderr and "ermission denied" in done.stderr
    assert ".py, line" not in done.stderr and "does not exist" not in done.stderr


@pytest.mark.fresh
def test_a_run_says_where_its_files_went(tmp_path):
    done = himach("run", "rmsd", *DATA, "--stop", 3, "-p", "selection=name CA", "--out", "out", cwd=tmp_path)
    assert done.stderr.rstrip().endswith("written to out: rmsd.csv, rmsd.png, run.json")


@pytest.mark.fresh
def test_an_interrupt_while_the_command_is_imported_shows_no_traceback():
    program = (
        "import os, signal, sys\nfrom himach.__main__ import main\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, *arguments):\n"
        "        if name == 'himach.cli': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupting())\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", program, "--help"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


@pytest.mark.fresh
def test_nothing_but_what_python_has_already_is_imported_before_the_command_sees_to_interrupts(tmp_path):
    for name in ("__init__.py", "__main__.py"):
        (tmp_path / "himach").mkdir(exist_ok=True)
        (tmp_path / "himach" / name).write_text(Path(package.__file__).with_name(name).read_text())
    program = (
        f"import os, sys; sys.path.insert(0, {str(tmp_path)!r}); known = set(sys.modules)\n"
        "import himach.__main__; print(*sorted(set(sys.modules) - known))"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["himach", "himach.__main__"]


@pytest.mark.fresh
@pytest.mark.parametrize(("first", "second", "code"), [("SIGINT", "SIGTERM", 143), ("SIGTERM", "SIGINT", 130)])
def test_signals_that_come_close_together_show_no_traceback(first, second, code):
    """The second one comes while the first one is told."""
    program = (
        "import os, signal, sys, himach.cli as cli\n"
        f"cli.himach.main = lambda **options: os.kill(os.getpid(), signal.{first})\n"
        "class Telling:\n"
        "    def write(self, text):\n"
        f"        os.kill(os.getpid(), signal.{second})\n"
        "    def flush(self): pass\n"
        "shown = sys.stderr; sys.stderr = Telling()\n"
        "try: cli.main(signal.default_int_handler)\n"
        "finally: sys.stderr = shown"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (code, "")


def test_control_characters_of_names_are_spelled_out(tmp_path):
    bad = tmp_path / "a\x1b[31m\x07b.xtc"
    bad.write_bytes(b"none")
    (tmp_path / "table.csv").write_text(f"name,trajectory,topology\nm\x1b[1m,{bad},{DATA[3]}\n")
    folder = tmp_path / "out\x1b[2m"
    folder.mkdir()
    (folder / "run.json").write_text('{"himach": "\\u001b[3m"}')
    for words in (
        ["info", bad], ["info", "-s", bad, DATA[1]], ["run", "rmsd", "-t", bad, "-s", DATA[3]], ["run", bad, *DATA],
        ["run", "rmsd", "--ensemble", tmp_path / "table.csv"], ["run", "rmsd", *DATA, "-p", "selection=a\x1bb"],
        ["convert", bad, "-s", DATA[3], "--out", tmp_path / "out.xtc"], ["split", bad, tmp_path / "frames"],
        ["stage", bad, "--cache", tmp_path / "store"], ["plan", folder], ["report", folder], ["cite", folder],
        ["bundle", folder, "--out", tmp_path / "out.zip"], ["bundle", "verify", bad],
        ["cache", "list", "--cache", folder], ["mount", bad],
    ):  # fmt: skip
        done = himach(*words)
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", done.stdout + done.stderr), words


def test_a_user_s_file_sets_defaults(tmp_path):
    config, out = tmp_path / "himach" / "config.toml", tmp_path / "out"
    home = {"XDG_CONFIG_HOME": str(tmp_path)}
    config.parent.mkdir()
    config.write_text(f'cache = "{tmp_path}/store"\nranks = 2\nconfidence = "off"\nfigure = ["svg", "pdf"]\n')
    shown = himach("info", **home).stdout
    assert str(config) in shown and f"cache       {tmp_path}/store" in shown and "ranks       2" in shown
    command = ("run", "rmsd", "-t", DCD, "-s", PSF, "--stop", "4", "-p", "selection=name CA")
    himach(*command, code=0, **home)  # writes no figure
    himach(*command, "--out", out, "--figure", "svg", code=0, **home)
    record = json.loads((out / "run.json").read_text())
    assert (record["cache"], record["ranks"], record["confidence"]) == (f"{tmp_path}/store", 2, "off")
    assert record["figure"] == ["svg"]
    config.write_text("ranks = 1\n")
    himach("run", "--rerun", out / "run.json", "--out", tmp_path / "again", code=0, **home)
    assert json.loads((tmp_path / "again" / "run.json").read_text())["ranks"] == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("memory = 1", "memory cannot be set; there are cache, ranks, confidence, figure"),
        ("ranks = -1", "ranks is -1; it is 1 or more"),
        ("cache = true", "cache is True; it is written as in cache = 'auto'"),
        ("confidence = 2", "confidence is 2; it is written as in confidence = 0.95"),
        ("confidence = 2.5", "confidence 2.5: it is a level"),
        ("cache = ", "config.toml: the file is not TOML"),
    ],
)
def test_a_default_that_cannot_be_is_named(tmp_path, text, message):
    (tmp_path / "himach").mkdir()
    (tmp_path / "himach" / "config.toml").write_text(text)
    assert message in himach("run", "rmsd", "-t", DCD, "-s", PSF, code=2, XDG_CONFIG_HOME=str(tmp_path)).stderr


def test_messages_of_all_ranks_go_to_the_log(tmp_path):
    log = tmp_path / "run.log"
    command = ("run", "rmsd", "-t", DCD, "-s", PSF, "--stop", "4", "--cache", "off", "--log", log)
    done = himach(*command, "-v", "-n", "2", code=0)
    himach(*command, "-p", "selectio=name CA", code=2)
    lines = [line.split(" ", 3)[2:] for line in log.read_text().splitlines() if line[:2] == "20"]
    assert [level for level, _ in lines].count("DEBUG") == 3
    assert ["INFO", next(text for text in done.stderr.splitlines() if text.startswith("4 frames on 2 ranks"))] in lines
    assert lines[-1][0] == "ERROR" and lines[-1][1].startswith("rmsd has no parameter 'selectio'")
    assert "assigned frames: 0 native, 0 alien, 4 residue" in done.stderr
    assert "No such file" in himach(*command[:-1], tmp_path / "none" / "x", code=2).stderr
    full = himach(*command[:-1], "/dev/full", code=0).stderr
    assert full.startswith("himach: HIMACH_LOG: /dev/full: [Errno 28] No space left on device\n")
    assert "Traceback" not in full
    code = (
        "import logging, himach; logging.basicConfig(level=logging.DEBUG, format='%(name)s %(message)s')\n"
        f"himach.run('rmsd', {str(DCD)!r}, {str(PSF)!r}, stop=2, cache='off')"
    )
    assert "himach opened 2 frames" in run_python("-c", code).stderr
