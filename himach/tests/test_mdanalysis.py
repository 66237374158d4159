"""MDAnalysis's analyses on cached frames and from the command line, datasets as its trajectories."""

import MDAnalysis as mda
import numpy as np
from MDAnalysis.analysis.dihedrals import Ramachandran
from MDAnalysis.analysis.rms import RMSD

import himach.mdanalysis
from himach.tests.conftest import Files, himach_command


def test_its_analyses_on_cached_frames(universe: mda.Universe) -> None:
    protein = universe.select_atoms("protein")
    expected = RMSD(protein).run(stop=30), Ramachandran(protein).run(stop=30)
    for _ in range(2):  # from the file, and from the cache
        analyses = RMSD(protein), Ramachandran(protein)
        himach.mdanalysis.run(list(analyses), stop=30)
        assert np.array_equal(analyses[0].results.rmsd, expected[0].results.rmsd)
        assert np.array_equal(analyses[1].results.angles, expected[1].results.angles)


def test_its_analyses_by_name(villin: Files, universe: mda.Universe) -> None:
    words = ("-t", villin[0], "--topology", villin[1], "--stop", 10, "-p", "atomgroup=protein", "--out", "angles")
    himach_command("run", "MDAnalysis.analysis.dihedrals:Ramachandran", *words)
    expected = Ramachandran(universe.select_atoms("protein")).run(stop=10).results.angles
    assert np.array_equal(np.load("angles/angles.npy"), expected)


def test_a_cached_file_is_a_trajectory(villin: Files, universe: mda.Universe) -> None:
    cached = mda.Universe(villin[1], f"himach://{villin[0]}")
    assert len(cached.trajectory) == len(universe.trajectory)
    for number in (0, 7, -1):
        assert np.array_equal(cached.trajectory[number].positions, universe.trajectory[number].positions)


def test_a_written_dataset_is_a_trajectory(universe: mda.Universe) -> None:
    protein = universe.select_atoms("protein")
    protein.write("himach://protein", frames=universe.trajectory[:5])
    dataset = mda.Universe.empty(protein.n_atoms).load_new("himach://protein")
    assert len(dataset.trajectory) == 5
    universe.trajectory[4]
    assert np.array_equal(dataset.trajectory[4].positions, protein.positions)
