import MDAnalysis
import numpy as np
import pytest
from MDAnalysis.analysis.rdf import InterRDF
from MDAnalysisTests.datafiles import DCD, GRO, PSF, XTC
from support import plain

import himach
from himach.examples import sample
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


def test_combined_in_any_grouping():
    class Uncombined(Rdf):
        combine = himach.Analysis.combine

    one = plain.run(Rdf(a="name K"), *sample("nanopore"), stop=10)["rdf"]
    other = plain.run(Uncombined(a="name K"), *sample("nanopore"), stop=10)["rdf"]
    np.testing.assert_array_equal(one["g"], other["g"])


def test_without_box():
    with pytest.raises(himach.UsageError, match="no box"):
        plain.run(Rdf(a="name CA", b="name CA"), DCD, PSF)


@pytest.mark.parametrize("parameter", ["a", "b"])
def test_empty_selections(parameter):
    with pytest.raises(himach.UsageError, match=f"'name XYZ' .parameter {parameter}."):
        plain.run(Rdf(**{parameter: "name XYZ"}), *sample("nanopore"))
