"""What docstrings and pages show runs: examples of every module, Python blocks and commands of pages."""

import doctest
import importlib
import os
import pkgutil
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
import pytest
from support import commands
from support.ranks import clean_environment

import himach
from himach.runner.scripts import find_analyses

ROOT = Path(__file__).parents[2]
#: What a module that is not imported here needs: a rank to be, or the tools of others.
NOT_IMPORTED = re.compile(r"\.(__main__|mpi|benchmarks)(\.|$)")
#: Whose examples do not run: a simulation of OpenMM.
SKIPPED = {"Backend", "OpenMMReporter", "Ranks"}
#: Pages whose blocks run as they are; the tutorial has tests of its own.
PAGES = ["README.md", "docs/analyses.md", "docs/convert.md", "docs/zazen.md"]


def examples() -> list[doctest.DocTest]:
    finder = doctest.DocTestFinder(exclude_empty=True)
    names = ["himach", *(module.name for module in pkgutil.walk_packages(himach.__path__, "himach."))]
    modules = [importlib.import_module(name) for name in names if not NOT_IMPORTED.search(name)]
    result = [test for module in modules for test in finder.find(module) if test.examples]
    return [test for test in result if ".__test__." not in test.name]  # Cython lists its functions once more


def test_examples_in_docstrings_show_what_is_so(server, capsys, tmp_path, monkeypatch):
    import MDAnalysis as mda

    monkeypatch.chdir(tmp_path)
    trajectory, topology = himach.examples.sample("villin")
    known = {"himach": himach, "np": np, "u": mda.Universe(topology, trajectory)}
    known |= {"trajectory": trajectory, "topology": topology}
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    result = examples()
    for example in result:
        public = {name: value for name, value in example.globs.items() if not name.startswith("_")}
        example.globs = public | known | {"__name__": "example"}  # a class in an example is its user's
        runner.run(example)
    assert len(result) > 10, "examples are not found"
    assert runner.failures == 0, capsys.readouterr().out


def test_no_other_example_is_skipped():
    skipped = {
        test.name.rpartition(".")[2] for test in examples() for item in test.examples if doctest.SKIP in item.options
    }
    assert skipped == SKIPPED


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_python_blocks_of_pages_run(page, tmp_path):
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert blocks
    environ = clean_environment(HIMACH_CACHE=str(tmp_path / "store"))
    done = commands.run_python("-c", "\n".join(blocks), cwd=tmp_path, environ=environ)
    assert done.returncode == 0, done.stderr


LESSONS = [ROOT / "docs" / f"{name}.md" for name in ("tutorial", "mdanalysis")]
BLOCK = re.compile(r"^```(python|console|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\w+\.py)\n")
TIMES = re.compile(r"in [\d.]+ s( \(map: [^)]*\))?(, \d+ of them cached)?")
END = "-- end of block --"


class Block(NamedTuple):
    line: int
    language: str
    text: str


def blocks(path: Path) -> list[Block]:
    page = path.read_text(encoding="utf-8")
    return [Block(page.count("\n", 0, m.start(2)) + 1, m[1], m[2]) for m in BLOCK.finditer(page)]


@pytest.fixture(scope="module", params=LESSONS, ids=lambda path: path.stem)
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


@pytest.mark.slow
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
@pytest.mark.slow
def test_commands_print_what_the_page_shows(folder, page):
    subprocess.run(
        [sys.executable, "-c", next(block.text for block in blocks(page) if block.language == "python")], cwd=folder,
        env=environment(), check=True,
    )  # fmt: skip
    for block in blocks(page):
        if block.language != "console":
            continue
        for command, expected in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block.text, re.MULTILINE):
            done = subprocess.run(
                command, shell=True, cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True, check=False,
            )  # fmt: skip
            same(expected, done.stdout, page, block.line)


RECIPES = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\|.*\| `([a-z-]+(?: -p .*)?)` \|$", RECIPES, re.MULTILINE)
#: Samples of analyses that need another than villin, which has no water.
SAMPLES = {
    **dict.fromkeys(("rdf", "water-residence"), "nanopore"),
    **dict.fromkeys(("dielectric", "msd"), "water"),
    **dict.fromkeys(("density", "lipid-order", "membrane"), "membrane"),
    **{"ion-permeation": "kcsa", "velocity-autocorrelation": "argon"},
}


def test_recipes_have_options_and_parameters_that_there_are():
    root = importlib.import_module("himach.cli").himach
    lines = [f"himach run {row}" for row in ROWS] + re.findall(r"`(himach [^`]*?)(?: \.\.\.)?`", RECIPES)
    for line in filter(lambda line: " " in line.removeprefix("himach run"), lines):
        _, command, *words = shlex.split(line)
        params = root.get_command(click.Context(root), command).make_context(command, words).params
        find_analyses(params.get("analyses", ()), params.get("parameters", ()))
    assert len(lines) > 30


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS)
def test_recipes_run(row, tmp_path):
    name = row.split()[0]
    sample = "nanopore" if "SOL" in row and name == "contacts" else SAMPLES.get(name, "villin")
    trajectory, topology = himach.examples.sample(sample)
    ligand = "name K" if sample == "nanopore" else "resname TRP"
    there = {"resname LIG": ligand, "segid B": "segid A", "native.pdb": str(topology), "10ns": "10ps", "50ns": "50ps"}
    for name, value in there.items():
        row = row.replace(name, value)
    frames = [] if "--from" in row else ["--stop", 60]
    words = [*shlex.split(row), "-t", trajectory, "-s", topology, *frames, "--out", "out"]
    commands.himach("run", *words, cwd=tmp_path, code=0)
    assert list((tmp_path / "out").glob("*.csv"))
