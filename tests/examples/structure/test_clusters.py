"""Clusters beside those of plain loops, and beside those of `gmx cluster`."""

import io

import MDAnalysis
import numpy as np
import pytest
from MDAnalysis.analysis import align, rms
from MDAnalysisTests.datafiles import DCD, PSF
from support import plain

import himach
from himach.examples.structure.blocks import check_memory
from himach.examples.structure.clusters import Clusters
from himach.examples.structure.pairwise_rmsd import PairwiseRmsd


class Small(Clusters):
    sizes = (8, 5)


def deviations(universe, selection):
    frames = np.array([universe.select_atoms(selection).positions for _ in universe.trajectory], np.float64)
    return np.array([[rms.rmsd(a, b, center=True, superposition=True) for b in frames] for a in frames])


def slow(near):
    pool, cluster, centers = set(range(len(near))), np.zeros(len(near), int), []
    while pool:
        center = max(sorted(pool), key=lambda i: sum(near[i][j] for j in pool))
        members = [j for j in pool if near[center][j]]
        centers.append(center)
        cluster[members] = len(centers)
        pool -= set(members)
    return cluster, centers


@pytest.mark.parametrize(
    ("start", "stop", "step", "cutoff"), [(None, None, None, 2.0), (5, 60, 3, 1.0), (80, 20, -1, 1.0), (3, 4, 1, 1.0)]
)
def test_against_loops(start, stop, step, cutoff):
    universe = MDAnalysis.Universe(PSF, DCD)
    numbers = sorted(range(98)[start:stop:step])
    near = deviations(universe, "name CA")[np.ix_(numbers, numbers)] <= cutoff
    cluster, centers = slow(near)
    # The plain runner gives series as the selection has them, the engine in the order of frames.
    run = plain.run if step != -1 else himach.run
    computed = run(Small(selection="name CA", cutoff=cutoff), DCD, PSF, start=start, stop=stop, step=step)
    computed = getattr(computed, "outcome", computed)
    assert computed["membership"]["cluster"].tolist() == cluster.tolist()
    assert computed["clusters"]["center_frame"].tolist() == [numbers[center] for center in centers]
    assert computed["clusters"]["size"].tolist() == np.bincount(cluster)[1:].tolist()
    assert computed["clusters"]["cluster"].tolist() == list(range(1, len(centers) + 1))


def test_fit_lays_frames_over_the_first():
    core = "name CA and resid 1:29 60:121 160:214"
    lid = "name CA and resid 122:159"
    universe = MDAnalysis.Universe(PSF, DCD)
    reference = MDAnalysis.Universe(PSF, DCD)
    align.AlignTraj(universe, reference, select=core, in_memory=True).run()
    lids = np.array([universe.select_atoms(lid).positions for _ in universe.trajectory], np.float64)
    apart = np.sqrt(((lids[:, np.newaxis] - lids) ** 2).sum(axis=3).mean(axis=2))
    assert np.abs(apart - 3).min() > 1e-4
    expected, _ = slow(apart <= 3)
    computed = plain.run(Small(selection=lid, fit=core, cutoff=3.0), DCD, PSF)["membership"]["cluster"]
    assert computed.tolist() == expected.tolist()
    as_it_is = plain.run(Small(selection=lid, fit="none", cutoff=3.0), DCD, PSF)["membership"]["cluster"]
    assert as_it_is.tolist() != expected.tolist()


def test_centers_are_written_and_lie_over_the_first(tmp_path):
    result = himach.run(Clusters(selection="name CA", cutoff=1.5, centers=3), DCD, PSF, cache="off", out=tmp_path)
    assert len(result["clusters"]["size"]) == 4
    assert sorted(path.name for path in tmp_path.glob("*.pdb")) == ["center_1.pdb", "center_2.pdb", "center_3.pdb"]
    universe = MDAnalysis.Universe(PSF, DCD)
    selected = universe.select_atoms("name CA")
    first = MDAnalysis.Universe(tmp_path / "center_1.pdb").atoms
    for number in (1, 2, 3):
        center = MDAnalysis.Universe(tmp_path / f"center_{number}.pdb").atoms
        assert center.names.tolist() == selected.names.tolist()
        assert center.resids.tolist() == selected.resids.tolist()
        assert center.resnames.tolist() == selected.resnames.tolist()
        universe.trajectory[result["clusters"]["center_frame"][number - 1]]
        assert rms.rmsd(center.positions, selected.positions, superposition=True) < 2e-3
        least = rms.rmsd(center.positions, first.positions, superposition=True)
        assert rms.rmsd(center.positions, first.positions) == pytest.approx(least, abs=2e-3)
    again = MDAnalysis.Universe(io.StringIO(result["center_2"].text), format="PDB")
    assert (again.atoms.positions == MDAnalysis.Universe(tmp_path / "center_2.pdb").atoms.positions).all()


@pytest.mark.parametrize("step", [1, 7, -2])
def test_each_two_frames_beside_mdanalysis(step):
    class SmallMatrix(PairwiseRmsd):
        sizes = (8, 5)

    universe = MDAnalysis.Universe(PSF, DCD)
    numbers = sorted(range(98)[::step])
    expected = deviations(universe, "name CA")[np.ix_(numbers, numbers)]
    result = himach.run(SmallMatrix(selection="name CA"), DCD, PSF, step=step, cache="off")
    np.testing.assert_allclose(result["matrix"], expected, atol=1e-5)
    np.testing.assert_allclose(result["pairwise"]["mean"], expected.sum(axis=1) / (len(numbers) - 1), atol=1e-5)
    np.testing.assert_allclose(result["pairwise"]["time_ps"], [universe.trajectory[number].time for number in numbers])


def test_too_many_frames():
    analysis = Clusters()
    analysis.frames = range(10_000)
    check_memory(analysis, 3 / 16)
    analysis.frames = range(10_000_000)
    with pytest.raises(himach.UsageError, match=r"clusters: 10,000,000 frames need 1\.88e\+04 GB on one rank"):
        check_memory(analysis, 3 / 16)


def test_centres_that_pdb_files_cannot_hold_are_gro_files(tmp_path):
    universe = MDAnalysis.Universe(PSF, DCD)
    atoms = universe.select_atoms("name CA")
    with MDAnalysis.Writer(str(tmp_path / "far.xtc"), len(atoms)) as writer:
        for _ in universe.trajectory[:10]:
            atoms.positions -= 3000
            writer.write(atoms)
    universe.trajectory[0]
    atoms.write(tmp_path / "top.pdb")
    given = Clusters(selection="all", cutoff=2.5)
    himach.run(given, tmp_path / "far.xtc", tmp_path / "top.pdb", cache="off", out=tmp_path / "out")
    center = MDAnalysis.Universe(tmp_path / "out/center_1.gro").atoms
    assert len(center) == len(atoms) and center.positions.max() < -2900
