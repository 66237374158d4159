"""What docstrings and pages show runs: the examples (``>>>``) of every module, and the Python blocks of pages.

Examples find `himach`, `np` and `u`, a small Universe, and a server runs on this node. Those that need what is no part
of the tests are marked as skipped and named here.
"""

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import numpy as np
import pytest
from support import commands
from support.ranks import clean_environment

import himach

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
    found = [test for module in modules for test in finder.find(module) if test.examples]
    return [test for test in found if ".__test__." not in test.name]  # Cython lists its functions once more


@pytest.fixture
def server(tmp_path, monkeypatch):
    """This node's server, for what pushes frames."""
    monkeypatch.setenv("HIMACH_CACHE", str(tmp_path / "store"))
    commands.himach("cache", "start", code=0)
    yield
    commands.himach("cache", "stop", code=0)


def test_examples_in_docstrings_show_what_is_so(server, capsys):
    import MDAnalysis as mda

    trajectory, topology = himach.examples.sample("villin")
    known = {"himach": himach, "np": np, "u": mda.Universe(topology, trajectory)}
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    found = examples()
    for example in found:
        example.globs.update(known)
        runner.run(example)
    assert len(found) > 10, "examples are not found"
    assert runner.failures == 0, capsys.readouterr().out


def test_no_other_example_is_skipped():
    skipped = {
        test.name.rpartition(".")[2] for test in examples() for one in test.examples if doctest.SKIP in one.options
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
