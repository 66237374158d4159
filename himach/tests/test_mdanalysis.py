"""At home in MDAnalysis: its analyses on cached frames and from the command line, datasets as trajectories."""

from __future__ import annotations

from pathlib import Path

import MDAnalysis as mda
import numpy as np
from MDAnalysis.analysis.dihedrals import Ramachandran
from MDAnalysis.analysis.rms import RMSD

import himach.mdanalysis
from himach.tests.conftest import Command, Files


def test_its_analyses_on_cached_frames(villin: Files) -> None:
    universe = mda.Universe(villin[1], villin[0])
    protein = universe.select_atoms("protein")
    expected = RMSD(protein).run(stop=30), Ramachandran(protein).run(stop=30)
    for _ in range(2):  # from the file, and from the cache
        analyses = RMSD(protein), Ramachandran(protein)
        himach.mdanalysis.run(list(analyses), stop=30)
        assert np.array_equal(analyses[0].results.rmsd, expected[0].results.rmsd)
        assert np.array_equal(analyses[1].results.angles, expected[1].results.angles)


def test_a_dataset_is_a_trajectory(villin: Files) -> None:
    expected = mda.Universe(villin[1], villin[0])
    universe = mda.Universe(villin[1], f"himach://{villin[0]}")
    assert len(universe.trajectory) == len(expected.trajectory)
    for number in (0, 7, -1):
        assert np.array_equal(universe.trajectory[number].positions, expected.trajectory[number].positions)
    with mda.Writer("himach://protein", expected.select_atoms("protein").n_atoms) as writer:
        for _ in expected.trajectory[:5]:
            writer.write(expected.select_atoms("protein"))
    read = mda.Universe.empty(writer.n_atoms).load_new("himach://protein")
    assert len(read.trajectory) == 5
    expected.trajectory[4]
    assert np.array_equal(read.trajectory[4].positions, expected.select_atoms("protein").positions)


def test_its_analyses_by_name(villin: Files, tmp_path: Path, himach_command: Command) -> None:
    words = ("-t", villin[0], "--topology", villin[1], "--stop", 10, "-p", "atomgroup=protein", "--out", "angles")
    himach_command("run", "MDAnalysis.analysis.dihedrals:Ramachandran", *words)
    protein = mda.Universe(villin[1], villin[0]).select_atoms("protein")
    expected = Ramachandran(protein).run(stop=10).results.angles
    assert np.array_equal(np.load(tmp_path / "angles" / "angles.npy"), expected)
