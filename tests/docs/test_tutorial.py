"""Pages whose code runs: every Python block and command of them runs, and prints what the page shows.

A Python block that begins with ``# NAME.py`` is saved under that name; the others run in order in one process, and a
block of text behind one holds what it prints. In a console block, lines that begin with ``$`` run in a shell, and the
others are what the command prints. Wall times and rates may differ, and ``...`` stands for anything.
"""

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from support.ranks import clean_environment

PAGES = [Path(__file__).parents[2] / "docs" / f"{name}.md" for name in ("tutorial", "mdanalysis")]
BLOCK = re.compile(r"^```(python|console|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\w+\.py)\n")
TIMES = re.compile(r"in [\d.]+ s( \(map: [^)]*\))?(, \d+ of them cached)?")
END = "-- end of block --"

pytestmark = pytest.mark.slow


class Block(NamedTuple):
    """A fenced block of the page."""

    line: int
    language: str
    text: str


def blocks(path: Path) -> list[Block]:
    page = path.read_text(encoding="utf-8")
    return [Block(page.count("\n", 0, m.start(2)) + 1, m[1], m[2]) for m in BLOCK.finditer(page)]


@pytest.fixture(scope="module", params=PAGES, ids=lambda path: path.stem)
def page(request) -> Path:
    return request.param


@pytest.fixture(scope="module")
def folder(tmp_path_factory, page) -> Path:
    """Return a folder in which all that the page tells to save is saved."""
    folder = tmp_path_factory.mktemp(page.stem)
    for block in blocks(page):
        if block.language == "python" and (name := FILE.match(block.text)):
            (folder / name[1]).write_text(block.text, encoding="utf-8")
    return folder


def environment() -> dict[str, str]:
    beside = str(Path(sys.executable).parent)
    return clean_environment(PATH=f"{beside}{os.pathsep}{os.environ['PATH']}", COLUMNS="100", PYTHONUTF8="1")


def same(expected: str, printed: str, page: Path, line: int) -> None:
    """Compare but for white space and what ``...`` stands for."""
    checker, options = doctest.OutputChecker(), doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    expected, printed = TIMES.sub("in some time", expected), TIMES.sub("in some time", printed)
    equal = checker.check_output(expected, printed, options)
    assert equal, f"{page.name}, line {line} shows\n{expected}\nbut it prints\n{printed}"


def test_python_blocks_run_and_print_what_the_page_shows(folder, page):
    session = [block for block in blocks(page) if block.language != "console" and not FILE.match(block.text)]
    script = ""
    for block in session:
        if block.language == "python":  # at the line that it has on the page, so that a traceback leads there
            script += "\n" * (block.line - script.count("\n") - 1) + f"{block.text}print({END!r}, flush=True)\n"
    (folder / "session.py").write_text(script, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "session.py"], cwd=folder, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    printed = iter(done.stdout.split(f"{END}\n"))
    last = ""
    for block in session:
        if block.language == "python":
            last = next(printed)
        else:
            same(block.text, last, page, block.line)


@pytest.mark.nightly
def test_commands_print_what_the_page_shows(folder, page):
    subprocess.run(
        [sys.executable, "-c", next(block.text for block in blocks(page) if block.language == "python")],
        cwd=folder,
        env=environment(),
        check=True,
    )
    for block in blocks(page):
        if block.language != "console":
            continue
        for command, expected in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block.text, re.MULTILINE):
            done = subprocess.run(
                command,
                shell=True,
                cwd=folder,
                env=environment(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            same(expected, done.stdout, page, block.line)
