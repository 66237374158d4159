import functools
import warnings
from types import SimpleNamespace

import MDAnalysis
import numpy as np
import pytest
from MDAnalysis.lib.distances import capped_distance
from MDAnalysis.lib.mdamath import box_volume, triclinic_vectors
from MDAnalysisTests.datafiles import GRO, TPR, XTC
from support import plain

import himach
from himach import uncertainty
from himach.examples import sample
from himach.examples.liquids.msd import Msd
from himach.examples.liquids.rdf import Rdf
from himach.examples.molecules import make_points, numbers_by


@pytest.mark.parametrize(("r_max", "bins"), [(10.0, 100), (9.9, 99), (7.7, 77), (3.3, 11)])
def test_middles_of_bins_have_no_digits_of_rounding(r_max, bins):
    r = plain.run(Rdf(a="name K", b="name CL", r_max=r_max, bins=bins), *sample("nanopore"), stop=1)["rdf"]["r"]
    assert max(len(repr(item)) for item in r.tolist()) <= 5
    np.testing.assert_allclose(r, (np.arange(bins) + 0.5) * r_max / bins, rtol=1e-14)


@pytest.mark.parametrize("analysis", [Rdf(), Msd(tau_max=1)], ids=["rdf", "msd"])
def test_a_frame_without_a_box_is_named(analysis, tmp_path):
    trajectory, topology = sample("nanopore")
    universe = MDAnalysis.Universe(topology, trajectory)
    with MDAnalysis.Writer(str(tmp_path / "some.trr"), len(universe.atoms)) as writer:
        for ts in universe.trajectory[:4]:
            ts.dimensions = None if ts.frame == 2 else ts.dimensions
            writer.write(universe.atoms)
    with pytest.raises(himach.AnalysisError, match=r"map\(\) failed at frame 2 .*the frame has no box"):
        himach.run(analysis, tmp_path / "some.trr", topology, cache="off")


@pytest.mark.parametrize(("trajectory", "topology"), [sample("nanopore"), (XTC, GRO)], ids=["orthogonal", "triclinic"])
def test_beyond_half_the_box_is_warned_of(trajectory, topology):
    universe = MDAnalysis.Universe(topology, trajectory)
    half = np.inf
    for _ in universe.trajectory[:3]:
        a, b, c = triclinic_vectors(universe.dimensions).astype(float)
        volume = np.linalg.det([a, b, c])
        across = [volume / np.linalg.norm(np.cross(*sides)) for sides in ((a, b), (a, c), (b, c))]
        half = min(half, 0.5 * min(across))
    ions = {"a": "name K NA+ NA", "b": "name K NA+ NA"}
    run = functools.partial(himach.run, trajectory=trajectory, topology=topology, cache="off", stop=3)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="rdf")
        run(Rdf(r_max=0.9999 * half, bins=5, **ions))
    with pytest.warns(UserWarning, match=rf"rdf: r_max=.* half the least width of the box, {half:.4g} Å; beyond"):
        run(Rdf(r_max=1.0001 * half, bins=5, **ions))


#: What `gmx rdf -bin 0.01 -rmax 0.8 -cn` (2022.5) finds of the water of the nanopore: `-ref "name O"` with the same as
#: `-sel`, with "name H1 H2", and with `-excl` too; and of `-selrpos whole_mol_com -seltype whole_mol_com`. How many are
#: within 1, 2.7, 2.8, 3.5 and 7.9 Å; g at 2.7, 2.8, 3.5 and 7.9 Å; all pairs over those that count.
GMX = {
    "oxygens": (
        {"a": "resname HOH and name O", "b": "resname HOH and name O"},
        ([0, 0.493, 1.203, 4.580, 55.117], [2.750, 3.264, 1.135, 1.114], 966 / 965),
    ),
    "hydrogens": (
        {"a": "resname HOH and name O", "b": "name H1 H2"},
        ([2, 4.019, 4.322, 10.598, 111.991], [0.577, 0.811, 1.566, 1.122], 1),
    ),
    "hydrogens of others": (
        {"a": "resname HOH and name O", "b": "name H1 H2", "exclude": "same-molecule"},
        ([0, 2.019, 2.322, 8.598, 109.991], [0.577, 0.811, 1.566, 1.122], 966 / 965),
    ),
    "molecules": (
        {"a": "resname HOH", "b": "resname HOH", "by": "molecule"},
        ([0, 0.462, 1.180, 4.595, 55.117], [2.729, 3.321, 1.132, 1.113], 966 / 965),
    ),
}


@pytest.mark.parametrize(("parameters", "expected"), GMX.values(), ids=GMX)
def test_against_gromacs(parameters, expected):
    within, g, pairs = expected
    result = himach.run(Rdf(r_max=8, bins=160, **parameters), *sample("nanopore"), cache="off").outcome
    numbers = result["coordination"]
    at = np.searchsorted(numbers["r"], np.array([1, 2.7, 2.8, 3.5, 7.9]) - 0.01)
    np.testing.assert_allclose(numbers["r"][at], [1, 2.7, 2.8, 3.5, 7.9], rtol=1e-14)
    np.testing.assert_allclose(numbers["n"][at], within, atol=0.00051)
    shells = np.diff(np.linspace(0, 8, 161) ** 3)  # its bins reach to both sides of r
    counts = result["rdf"]["g"] * shells
    both = (counts[1:-1:2] + counts[2::2]) / (shells[1:-1:2] + shells[2::2])
    np.testing.assert_allclose(both[(at[1:] - 1) // 2], np.array(g) * pairs, atol=0.00055)


SELECTIONS = {
    "water": "resname SOL and resid 300-500", "oxygens": "name OW and resid 400-900",
    "hydrogens": "name HW1 HW2 and resid 400-700", "protein": "protein and resid 1-60",
    "side": "protein and not name N CA C O and resid 50-100", "some": "resname SOL NA+ or (protein and resid 55-70)",
}  # fmt: skip


@pytest.fixture(scope="module")
def solvated():
    """A part of a protein in some water, two frames in a skewed box, with bonds."""
    universe = MDAnalysis.Universe(TPR, XTC)
    subset = universe.select_atoms("protein and resid 1-110 or (resname SOL and resid 300-900) or resname NA+")
    small = MDAnalysis.Merge(subset)
    frames = [(subset.positions.copy(), ts.dimensions.copy()) for ts in universe.trajectory[3:5]]
    positions, boxes = map(np.array, zip(*frames, strict=True))
    return small.load_new(positions, dimensions=boxes)


@pytest.mark.parametrize("by", ["atom", "residue", "molecule"])
@pytest.mark.parametrize("exclude", ["none", "same-residue", "same-molecule"])
@pytest.mark.parametrize(
    ("a", "b"),
    [("water", "water"), ("oxygens", "hydrogens"), ("water", "hydrogens"), ("protein", "some"), ("protein", "side")],
)
def test_every_way_to_count_beside_pairs_one_by_one(solvated, a, b, by, exclude):
    rdf = Rdf(a=SELECTIONS[a], b=SELECTIONS[b], by=by, exclude=exclude, r_max=9, bins=30)
    rdf.frames = range(2)
    if (a, b) == ("protein", "side") and "molecule" in (by, exclude.removeprefix("same-")):
        with pytest.raises(himach.UsageError, match="a and b are one molecule, the same"):
            rdf.setup(solvated)
        return
    rdf.setup(solvated)
    rows = []
    for ts in solvated.trajectory:
        rows += [pairs.values[0] for pairs in rdf.map(plain.make_frame(solvated, ts, ts.frame)) if pairs.keys[0] == 0]
    result = rdf.finish({0: uncertainty.add_blocks(rows), 1: 99})
    molecules = numbers_by(solvated, rdf, "molecule")
    numbers = {"atom": solvated.atoms.ix, "residue": solvated.atoms.resindices, "molecule": molecules}
    same = {by, by if exclude == "none" else exclude.removeprefix("same-")}
    sides = [make_points(solvated.select_atoms(selection), rdf, by) for selection in (rdf.a, rdf.b)]
    firsts = [[np.flatnonzero(numbers[by] == k)[0] for k in side.numbers] for side in sides]
    pairs_wanted = np.all([numbers[item][firsts[0]][:, None] != numbers[item][firsts[1]] for item in same], axis=0)
    counts = np.zeros(30, int)
    for ts in solvated.trajectory:
        at = [side.locate(SimpleNamespace(positions=ts.positions, box=ts.dimensions)).astype("f") for side in sides]
        pairs, distances = capped_distance(*at, 9, box=ts.dimensions)
        counts += np.histogram(distances[pairs_wanted[tuple(pairs.T)]], 30, (0, 9))[0]
    assert counts.sum() > 2
    np.testing.assert_allclose(result["coordination"]["n"], np.cumsum(counts) / 2 / len(firsts[0]), rtol=1e-12)
    shells = 4 / 3 * np.pi * np.diff(np.linspace(0, 9, 31) ** 3)
    volume = np.mean([box_volume(ts.dimensions) for ts in solvated.trajectory])
    expected = counts / (2 * pairs_wanted.sum() / volume * shells)
    np.testing.assert_allclose(result["rdf"]["g"], expected, rtol=1e-6)
