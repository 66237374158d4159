"""Runs: on ranks, from the cache, by the command; what they leave, and how they fail."""

from __future__ import annotations

import importlib
import json
import pkgutil
import shutil
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import himach
from himach.tests.conftest import Command, Files

WRONG = """
import himach

class Wrong(himach.Analysis):
    def map(self, frame):
        yield 0, 1 / frame.number

    def reduce(self, key, series):
        return sum(series.values)
"""


class Height(himach.Analysis):
    """Mean height of each residue's atoms, and in how many frames."""

    def setup(self, universe: Any) -> None:
        self.residues = universe.select_atoms("protein").residues

    def map(self, frame: Any) -> Any:
        for residue in self.residues[:10]:
            yield int(residue.resid), residue.atoms.positions[:, 2].mean()

    def reduce(self, key: Any, series: Any) -> Any:
        return {"height": float(np.mean(series.values)), "frames": len(series)}


def has_mpi() -> bool:
    """Tell whether ranks can be started here."""
    return any(distributions(name="mpich")) or shutil.which("mpiexec") is not None


def test_every_module_can_be_imported() -> None:
    names = [module.name for module in pkgutil.walk_packages(himach.__path__, "himach.")]
    optional = (".__main__", ".mpi", ".url_store")  # which needs zarr and fsspec
    for name in names:
        if not name.startswith(("himach.benchmarks.", "himach.tests.")) and not name.endswith(optional):
            importlib.import_module(name)
    assert "himach.io.store.bodhi" in names


@pytest.mark.skipif(not has_mpi(), reason="there is no MPI to start ranks with: pip install 'himach[local]'")
def test_the_outcome_is_the_same_on_ranks(villin: Files) -> None:
    alone = himach.run(Height(), *villin, stop=40, progress=False, cache="off")
    ranks = himach.run(Height(), *villin, stop=40, progress=False, cache="off", ranks=2)
    assert ranks.record["ranks"] == 2
    assert list(alone.outcome["frames"]) == [40] * 10
    assert {name: list(column) for name, column in alone.outcome.items()} == {
        name: list(column) for name, column in ranks.outcome.items()
    }


def test_a_second_run_reads_the_cache_alone(villin: Files, tmp_path: Path) -> None:
    trajectory = shutil.copy(villin[0], tmp_path / "md.xtc")
    first = himach.run(Height(), trajectory, villin[1], stop=30, progress=False)
    assert first.record["bytes"]["origin"] > 0
    Path(trajectory).unlink()
    second = himach.run(Height(), trajectory, villin[1], stop=30, progress=False)
    assert second.record["bytes"]["origin"] == 0
    assert list(second.outcome["height"]) == list(first.outcome["height"])


def test_the_command_leaves_tables_a_plot_and_a_record(villin: Files, tmp_path: Path, himach_command: Command) -> None:
    completed = himach_command("run", "rmsd", "-t", villin[0], "--topology", villin[1], "--stop", 20, "--out", "out")
    assert "time_ps" in completed.stdout
    assert len((tmp_path / "out" / "rmsd.csv").read_text().splitlines()) == 21
    assert (tmp_path / "out" / "rmsd.png").stat().st_size > 5000
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["frames"] == 20
    assert record["himach"] == himach.__version__
    assert himach.__version__ in himach_command("--version").stdout


def test_an_error_says_where_and_what_to_do(villin: Files, tmp_path: Path, himach_command: Command) -> None:
    (tmp_path / "wrong.py").write_text(WRONG)
    message = himach_command("run", "wrong.py", "-t", villin[0], "--topology", villin[1], code=1).stderr
    assert "frame 0" in message
    assert "line 6" in message
    assert "Traceback" not in message
    assert "did you mean 'rmsd'" in himach_command("run", "rmds", "-t", villin[0], code=2).stderr


def test_frames_are_pushed_to_a_server_and_analysed(villin: Files, himach_command: Command) -> None:
    import MDAnalysis as mda

    universe = mda.Universe(villin[1], villin[0])
    himach_command("cache", "start")
    try:
        with himach.Writer("run7", universe.atoms.n_atoms) as writer:
            for _ in universe.trajectory[:20]:
                writer.write(universe.atoms)
        result = himach.run(Height(), "run7", villin[1], progress=False)
    finally:
        himach_command("cache", "stop")
    assert result.record["assignment"] == {"native": 20, "alien": 0, "residue": 0}
    assert list(result.outcome["height"]) == list(
        himach.run(Height(), *villin, stop=20, progress=False).outcome["height"]
    )
