"""Areas beside MDTraj's and gmx sasa's, radii of every set, and what is told of parts, residues and atoms."""

import MDAnalysis
import mdtraj
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from MDAnalysisTests.datafiles import DCD, GRO, PSF, XTC
from support import plain

import himach
from himach.examples import sample
from himach.examples.structure.radii import get_elements, get_radii
from himach.examples.structure.sasa import Sasa

PART = "protein and resid 30:59"


@pytest.fixture(scope="module")
def peer():
    return mdtraj.load_dcd(DCD, top=mdtraj.load_psf(PSF), stride=49)


@pytest.mark.parametrize("by", ["atom", "residue"])
def test_against_mdtraj(peer, by):
    """Radii of H, C, N, O and S are the same there; points differ by their rounding."""
    expected = 100 * mdtraj.shrake_rupley(peer, mode=by)
    outcome = plain.run(Sasa(by=by), DCD, PSF, step=49)
    np.testing.assert_allclose(outcome["sasa"]["sasa"], expected.sum(axis=1), rtol=5e-5)
    np.testing.assert_allclose(outcome["by"]["sasa"], expected.mean(axis=0), atol=0.3)
    assert outcome["by"][by][:2] == {"atom": ["MET1:N", "MET1:HT1"], "residue": ["MET1", "ARG2"]}[by]


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [({}, [12053.6, 12502.2]), ({"periodic": False}, [13454.1]), ({"part": PART}, [1993.9, 2139.9])],
    ids=["in the box", "without the box", "a part"],
)
def test_against_gmx_in_water(parameters, expected):
    """gmx sasa -f XTC -s GRO -ndots 5000 -surface Protein, with -nopbc or -output 'resid 30 to 59'; the protein is cut
    by the box. Its dots lie elsewhere, and are 0.1 % off."""
    result = plain.run(Sasa(points=5000, **parameters), XTC, GRO, stop=len(expected))["sasa"]["sasa"]
    np.testing.assert_allclose(result, expected, rtol=1e-3)


@settings(max_examples=10, deadline=None)
@given(
    st.sampled_from(["residue", "atom"]),
    st.sampled_from(["bondi", "protor"]),
    st.sampled_from([None, "resid 5:9", "name CA CB OG"]),
    st.integers(1, 300),
)
def test_rows_add_up_to_the_mean_of_the_total(by, radii, part, points):
    outcome = plain.run(Sasa(by=by, radii=radii, part=part, points=points), *sample("villin"), stop=9, step=4)
    assert outcome["by"]["sasa"].sum() == pytest.approx(outcome["sasa"]["sasa"].mean(), rel=1e-9)
    assert outcome["radii"]["atoms"].sum() == {"bondi": 582, "protor": 289}[radii]
    assert len(set(outcome["by"][by])) == len(outcome["by"]["sasa"])


def test_limits_of_residues():
    outcome = himach.run(Sasa(by="residue", points=200), *sample("villin"), cache="off")
    table = outcome["by"]
    assert list(table) == ["residue", "sasa", "sasa_low", "sasa_high", "chain", "resid", "resname"]
    assert ((table["sasa_low"] <= table["sasa"]) & (table["sasa"] <= table["sasa_high"])).all()
    assert himach.run(Sasa(by="atom", points=50), *sample("villin"), cache="off")["by"]["sasa_low"].min() == 0
    assert outcome["sasa"].means["sasa"].converged
    assert table.units == {"sasa": "Å²", "sasa_low": "Å²", "sasa_high": "Å²"}


@pytest.mark.parametrize(
    ("residue", "name", "radius"),
    [
        ("ALA", "CA", 1.88), ("ALA", "C", 1.61), ("ALA", "N", 1.64), ("ALA", "O", 1.42), ("ALA", "OXT", 1.46),
        ("NALA", "CB", 1.88), ("ALA", "OT1", 1.42), ("ARG", "CZ", 1.61), ("ASN", "OD1", 1.42), ("ASP", "OD2", 1.46),
        ("GLU", "CD", 1.61), ("GLU", "OE2", 1.46), ("GLN", "CD", 1.61), ("HSD", "CG", 1.61), ("HIE", "CE1", 1.76),
        ("MET", "SD", 1.77), ("CYX", "SG", 1.77), ("PHE", "CG", 1.61), ("PHE", "CZ", 1.76), ("SER", "OG", 1.46),
        ("TRP", "CD1", 1.76), ("TRP", "CD2", 1.61), ("TRP", "CH2", 1.76), ("TYR", "CZ", 1.61), ("TYR", "OH", 1.46),
        ("NME", "C", 1.88), ("ALA", "HA", 0),
    ],
)  # fmt: skip
def test_protor(residue, name, radius):
    """The radii of Tsai et al. (1999) by the types that FreeSASA's protor.config has for these atoms."""
    assert get_radii(one_atom(residue, name), Sasa(radii="protor"))[0].tolist() == [radius]


def one_atom(residue, name, element=None):
    universe = MDAnalysis.Universe.empty(1, trajectory=True)
    universe.add_TopologyAttr("resnames", [residue])
    universe.add_TopologyAttr("names", [name])
    if element is not None:
        universe.add_TopologyAttr("elements", [element])
    return universe.atoms


@pytest.mark.parametrize(
    ("atom", "element"),
    [
        (("ALA", "CA"), "C"), (("CAL", "CAL"), "Ca"), (("SOD", "SOD"), "Na"), (("ALA", "1HB"), "H"),
        (("ZN2", "XX", "ZN"), "Zn"), (("ALA", "CA", ""), "C"),
    ],
)  # fmt: skip
def test_elements(atom, element):
    assert get_elements(one_atom(*atom)) == [element]


def test_file_of_radii(tmp_path):
    file = tmp_path / "radii.txt"
    file.write_text("# mine\nH 0\nC 1.8  # all of them\n\nN 1.6\nO 1.5\nS 1.9\n* CA 2.0\nPHE C[DEZ]* 1.7\n")
    outcome = plain.run(Sasa(radii=str(file), points=100), *sample("villin"), stop=2)
    table = outcome["radii"]
    assert dict(zip(table["kind"], table["radius"], strict=True)) == {
        **{"* CA": 2.0, "C": 1.8, "N": 1.6, "O": 1.5, "PHE C[DEZ]*": 1.7, "S": 1.9}
    }
    assert table["atoms"].tolist() == [35, 134, 49, 50, 20, 1]


@pytest.mark.parametrize("line", ["C", "C -1", "C x", "ALA CA CB 1.5", "C inf", "C nan"])
def test_bad_lines_of_radii(tmp_path, line):
    file = tmp_path / "radii.txt"
    file.write_text(f"H 1\n{line}\n")
    with pytest.raises(himach.UsageError, match="line 2"):
        plain.run(Sasa(radii=str(file)), *sample("villin"), stop=1)


@pytest.mark.parametrize("radii", ["bondi", "protor"])
def test_an_atom_without_a_radius(radii):
    with pytest.raises(himach.UsageError, match=r"sasa: radii '\w+' have none for the atom FE of residue HEM"):
        get_radii(one_atom("HEM", "FE", "Fe"), Sasa(radii=radii))
