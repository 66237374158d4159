import warnings

import MDAnalysis
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from MDAnalysisTests.datafiles import DCD, GRO, PSF, XTC
from support import plain

import himach
from himach import kernels
from himach.examples.structure.secondary_structure import COLUMNS, LETTERS, SecondaryStructure


def as_text(states):
    return [bytes(frame).decode() for frame in states]


# `mkdssp --output-format dssp` (4.2.2) of the first frame that MDAnalysis writes as PDB, column 17, blanks as "-".
ADK = (
    "-EEEE-S-SSSSHHHHHHHHHHHH---EEEHHHHHHHHHHHT-TTTTT-HHHHHHT-PPPHHHHHHHHHHHHTSHHHHS-EEEES-S-SHHHHHHHHHTT---SEEE"
    "EEE--HHHHHHHHHTEEEETTT--EEETTTB--SSTTB-SSS--BEEPPTT-SHHHHHHHHHHHHHHTTHHHHHHHHHHHTTSSEEEEEE-SS-HHHHHHHHHHHH-"
)


@pytest.mark.parametrize(("topology", "trajectory"), [(PSF, DCD), (GRO, XTC)], ids=["bonds", "water"])
def test_all_residues_of_either_naming(topology, trajectory):
    outcome = plain.run(SecondaryStructure(), trajectory, topology, stop=2)
    assert outcome["states"].shape == (2, 214)
    assert outcome["residues"]["residue"][::213] == ["MET1", "GLY214"]
    if topology == PSF:
        assert as_text(outcome["states"])[0] == ADK
    shares = [outcome["content"][column] for column in COLUMNS]
    np.testing.assert_allclose(np.sum(shares, axis=0), 1)


def write(path, atoms):
    with warnings.catch_warnings(action="ignore"), MDAnalysis.Writer(str(path)) as writer:
        writer.write(atoms)
    return path


@pytest.fixture(scope="module")
def protein():
    universe = MDAnalysis.Universe(PSF, DCD, to_guess=())
    return MDAnalysis.Merge(universe.select_atoms("name N CA C O OT1 and resid 1:100"))


def indices_of(atoms):
    return np.array([[atom.index for atom in residue.atoms] for residue in atoms.residues])


def test_chains_end_at_gaps_and_with_segments(protein, tmp_path):
    there = protein.select_atoms("not resid 30:33")
    path = write(tmp_path / "gap.pdb", there)
    (result,) = as_text(plain.run(SecondaryStructure(), path)["states"])
    gapped = MDAnalysis.Universe(str(path), to_guess=())
    positions = gapped.atoms.positions[indices_of(gapped)]
    prolines = gapped.residues.resnames == "PRO"
    chains = (gapped.residues.resids > 33).astype(int)
    assert result == bytes(kernels.dssp(positions, chains, prolines)).decode()
    assert result != bytes(kernels.dssp(positions, None, prolines)).decode()
    residues = protein.residues[49:]
    other = protein.copy()
    other.residues[49:].segments = other.add_Segment(segid="OTHER")
    (result,) = as_text(plain.run(SecondaryStructure(), write(tmp_path / "segments.pdb", other.atoms))["states"])
    chains = (protein.residues.resids >= residues.resids[0]).astype(int)
    prolines = protein.residues.resnames == "PRO"
    rounded = MDAnalysis.Universe(str(tmp_path / "segments.pdb"), to_guess=()).atoms.positions
    assert result == bytes(kernels.dssp(rounded[indices_of(protein)], chains, prolines)).decode()


def test_residues_without_a_backbone_are_left_out(protein, tmp_path):
    path = write(
        tmp_path / "holes.pdb", protein.select_atoms("not (resid 20 and name O) and not (resid 40 and name N)")
    )
    labels = plain.run(SecondaryStructure(), path)["residues"]["residue"]
    assert len(labels) == 98
    assert not any(label.endswith(("20", "40")) for label in labels)
    part = plain.run(SecondaryStructure(selection="resid 5:12 and name CA"), path)
    assert part["states"].shape == (1, 8)
    with pytest.raises(himach.UsageError, match="no residue of 'resid 20 40' has atoms N, CA, C and O"):
        plain.run(SecondaryStructure(selection="resid 20 40"), path)


def test_of_alternative_places_the_first(protein, tmp_path):
    path = write(tmp_path / "whole.pdb", protein.atoms)
    lines = path.read_text().splitlines()
    twice = [
        other for line in lines for other in ([line, line[:30] + "   0.000" + line[38:]] if " CA " in line else [line])
    ]
    (tmp_path / "twice.pdb").write_text("\n".join(twice) + "\n")
    expected, result = (plain.run(SecondaryStructure(), tmp_path / f"{name}.pdb") for name in ("whole", "twice"))
    np.testing.assert_array_equal(result["states"], expected["states"])


def test_chains_that_the_box_cuts_are_made_whole(protein, tmp_path):
    whole = plain.run(SecondaryStructure(), write(tmp_path / "whole.pdb", protein.atoms))
    cut = MDAnalysis.Universe(str(tmp_path / "whole.pdb"), to_guess=())
    cut.dimensions = [40, 40, 40, 90, 90, 90]
    cut.atoms.wrap()
    result = plain.run(SecondaryStructure(), write(tmp_path / "cut.pdb", cut.atoms))
    np.testing.assert_array_equal(result["states"], whole["states"])
    there = cut.select_atoms("not resid 50:52")
    with pytest.warns(UserWarning, match="the box cuts chains"):
        plain.run(SecondaryStructure(), write(tmp_path / "two.pdb", there))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), n_frames=st.integers(1, 200), n=st.integers(1, 5))
def test_tables_tell_of_states(seed, n_frames, n):
    states = np.random.default_rng(seed).choice(np.frombuffer(LETTERS, np.uint8), (n_frames, n))
    analysis = SecondaryStructure()
    analysis.labels, analysis.names = [f"ALA{i}" for i in range(n)], {}
    outcome = analysis.finish({0: {"time_ps": np.arange(n_frames, dtype=float), "states": states}})
    for column, letter in zip(COLUMNS, LETTERS, strict=True):
        of_residue = outcome["residues"][column]
        np.testing.assert_allclose(outcome["content"][column], np.mean(states == letter, axis=1))
        np.testing.assert_allclose(of_residue, np.mean(states == letter, axis=0))
        band = outcome["residues"].estimates[column](0.95)
        sure = ~np.isnan(band.low)
        assert ((of_residue > 0) & (of_residue < 1))[sure].all()
        assert ((band.low >= 0) & (band.low <= of_residue) & (of_residue <= band.high) & (band.high <= 1))[sure].all()
        assert n_frames < 100 or sure.any() or not ((of_residue > 0) & (of_residue < 1)).any()
