"""Runs on ranks, from the cache, by the command and of pushed frames; what they leave, and how they fail."""

import importlib
import json
import pkgutil
import shutil
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import MDAnalysis as mda
import numpy as np
import pytest

import himach
from himach.tests.conftest import Files, himach_command

WRONG = """
import himach

class Wrong(himach.Analysis):
    def map(self, frame):
        yield 0, 1 / frame.number

    def reduce(self, key, series):
        return sum(series.values)
"""
HAS_MPI = any(distributions(name="mpich"))


class Height(himach.Analysis):
    """Mean height of each of ten atoms."""

    def map(self, frame: Any) -> Iterator[tuple[int, float]]:
        yield from enumerate(frame.positions[:10, 2].tolist())

    def reduce(self, key: Any, series: Any) -> float:
        return float(np.mean(series.values))


def run_height(*data: str, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the outcome of `Height` and the record of its run."""
    result = himach.run(Height(), *data, progress=False, **options)
    return {name: list(column) for name, column in result.outcome.items()}, result.record


def test_every_module_can_be_imported() -> None:
    names = [module.name for module in pkgutil.walk_packages(himach.__path__, "himach.")]
    optional = (".__main__", ".mpi")
    for name in names:
        if not name.startswith(("himach.benchmarks.", "himach.tests.")) and not name.endswith(optional):
            importlib.import_module(name)
    assert "himach.io.store.bodhi" in names


@pytest.mark.skipif(not HAS_MPI, reason="there is no MPI to start ranks with: pip install 'himach[local]'")
def test_the_outcome_is_the_same_on_ranks(villin: Files) -> None:
    alone, _ = run_height(*villin, stop=40, cache="off")
    outcome, record = run_height(*villin, stop=40, cache="off", ranks=2)
    assert (outcome, record["ranks"], record["frames"]) == (alone, 2, 40)


def test_a_second_run_reads_the_cache_alone(villin: Files) -> None:
    trajectory = shutil.copy(villin[0], "md.xtc")
    first, record = run_height(trajectory, villin[1], stop=30)
    assert record["bytes"]["origin"] > 0
    Path(trajectory).unlink()
    second, record = run_height(trajectory, villin[1], stop=30)
    assert (second, record["bytes"]["origin"]) == (first, 0)


def test_the_command_leaves_tables_a_plot_and_a_record(villin: Files) -> None:
    completed = himach_command("run", "rmsd", "-t", villin[0], "--topology", villin[1], "--stop", 20, "--out", "out")
    assert "time_ps" in completed.stdout
    assert len(Path("out/rmsd.csv").read_text().splitlines()) == 21
    assert Path("out/rmsd.png").stat().st_size > 5000
    record = json.loads(Path("out/run.json").read_text())
    assert (record["frames"], record["himach"]) == (20, himach.__version__)


def test_an_error_says_where_and_what_to_do(villin: Files) -> None:
    Path("wrong.py").write_text(WRONG)
    message = himach_command("run", "wrong.py", "-t", villin[0], "--topology", villin[1], code=1).stderr
    assert "frame 0" in message
    assert "line 6" in message
    assert "Traceback" not in message
    assert "did you mean 'rmsd'" in himach_command("run", "rmds", "-t", villin[0], code=2).stderr


def test_frames_are_pushed_to_a_server_and_analysed(villin: Files, universe: mda.Universe) -> None:
    himach_command("cache", "start")
    try:
        with himach.Writer("run7", universe.atoms.n_atoms) as writer:
            for _ in universe.trajectory[:20]:
                writer.write(universe.atoms)
        pushed, record = run_height("run7", villin[1])
    finally:
        himach_command("cache", "stop")
    expected, _ = run_height(*villin, stop=20)
    assert record["assignment"] == {"native": 20, "alien": 0, "residue": 0}
    assert pushed == expected
