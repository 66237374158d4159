import functools
import warnings

import MDAnalysis
import numpy as np
import pytest
from MDAnalysis.analysis.rdf import InterRDF
from MDAnalysis.lib.mdamath import triclinic_vectors
from MDAnalysisTests.datafiles import DCD, GRO, PSF, XTC
from support import plain

import himach
from himach.examples import sample
from himach.examples.msd import Msd
from himach.examples.rdf import Rdf


@pytest.mark.parametrize(
    ("topology", "trajectory", "a", "b", "keywords"),
    [
        (*reversed(sample("nanopore")), "name K", "name O", {}),
        (*reversed(sample("nanopore")), "name O", "name O", {"exclusion_block": (1, 1)}),
        (GRO, XTC, "resname NA+", "name OW", {}),
    ],
    ids=["ions and water", "water and water", "triclinic box"],
)
def test_against_mdanalysis(topology, trajectory, a, b, keywords):
    universe = MDAnalysis.Universe(topology, trajectory)
    a_atoms, b_atoms = universe.select_atoms(a), universe.select_atoms(b)
    expected = InterRDF(a_atoms, b_atoms, nbins=70, range=(0, 7), **keywords).run(stop=20).results
    table = plain.run(Rdf(a=a, b=b, r_max=7, bins=70), trajectory, topology, stop=20)["rdf"]
    np.testing.assert_allclose(table["r"], expected.bins, rtol=1e-12)
    np.testing.assert_allclose(table["g"], expected.rdf, rtol=1e-12)
    assert table["g"].max() > 2


def test_atoms_of_both_selections_are_not_paired_with_themselves():
    both = plain.run(Rdf(a="name K CL", b="name K O", r_max=7), *sample("nanopore"), stop=3)["rdf"]
    assert both["g"][0] == 0


@pytest.mark.parametrize(("r_max", "bins"), [(10.0, 100), (9.9, 99), (7.7, 77), (3.3, 11)])
def test_middles_of_bins_have_no_digits_of_rounding(r_max, bins):
    r = plain.run(Rdf(a="name K", b="name CL", r_max=r_max, bins=bins), *sample("nanopore"), stop=1)["rdf"]["r"]
    assert max(len(repr(one)) for one in r.tolist()) <= 5
    np.testing.assert_allclose(r, (np.arange(bins) + 0.5) * r_max / bins, rtol=1e-14)


def test_combined_in_any_grouping():
    class Uncombined(Rdf):
        combine = himach.Analysis.combine

    one = plain.run(Rdf(a="name K"), *sample("nanopore"), stop=10)["rdf"]
    other = plain.run(Uncombined(a="name K"), *sample("nanopore"), stop=10)["rdf"]
    np.testing.assert_array_equal(one["g"], other["g"])


def test_without_box():
    with pytest.raises(himach.UsageError, match="no box"):
        plain.run(Rdf(a="name CA", b="name CA"), DCD, PSF)


def test_an_atom_and_itself_are_refused():
    with pytest.raises(himach.UsageError, match=r"a and b are one atom, the same .'index 0', 'index 0'."):
        plain.run(Rdf(a="index 0", b="index 0"), *sample("nanopore"))
    plain.run(Rdf(a="index 0", b="index 0 1"), *sample("nanopore"), stop=2)


@pytest.mark.parametrize("analysis", [Rdf(), Msd(tau_max=1)], ids=["rdf", "msd"])
def test_a_frame_without_a_box_is_named(analysis, tmp_path):
    trajectory, topology = sample("nanopore")
    universe = MDAnalysis.Universe(topology, trajectory)
    with MDAnalysis.Writer(str(tmp_path / "some.trr"), len(universe.atoms)) as writer:
        for ts in universe.trajectory[:4]:
            ts.dimensions = None if ts.frame == 2 else ts.dimensions
            writer.write(universe.atoms)
    with pytest.raises(himach.AnalysisError, match=r"map\(\) failed at frame 2 .*the frame has no box"):
        himach.run(analysis, tmp_path / "some.trr", topology, cache="off", progress=False)


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
    run = functools.partial(himach.run, trajectory=trajectory, topology=topology, cache="off", progress=False, stop=3)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="rdf")
        run(Rdf(r_max=0.9999 * half, bins=5, **ions))
    with pytest.warns(UserWarning, match=rf"rdf: r_max=.* half the least width of the box, {half:.4g} Å; beyond"):
        run(Rdf(r_max=1.0001 * half, bins=5, **ions))


@pytest.mark.parametrize("parameter", ["a", "b"])
def test_empty_selections(parameter):
    with pytest.raises(himach.UsageError, match=f"parameter {parameter}: 'name XYZ' selects none"):
        plain.run(Rdf(**{parameter: "name XYZ"}), *sample("nanopore"))
