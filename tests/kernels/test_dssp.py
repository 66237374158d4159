"""dssp() beside mkdssp and MDTraj."""

from pathlib import Path

import MDAnalysis
import MDAnalysisTests
import mdtraj
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from MDAnalysisTests.datafiles import DCD, PSF

from himach.kernels import dssp

DATA = Path(MDAnalysisTests.__file__).parent / "data" / "dssp"
#: Column 17 of `mkdssp --output-format dssp` (4.2.2) of these files, with a HEADER line before them; blanks are "-".
MKDSSP = {
    "2cviA": "-EEEEEEEEE-TT-HHHHHHHHHTSTTEEEEEE--SS-SEEEEEEESSHHHHHHIIIIIGGG-TTEEEEEEEE-SS-TTTT--",
    "1lpbA": "----SBPBTSB-SSGGGBSSS-EE-SSSSS--EE-PPBPTTSEEE---SSSEESSPPB-TTEEEES---HHHHHHT--EEEEEE-",
    "3hklA": "-EEEE----SSSTTTSPTT--EEEETTSSSHHHHHHHHHHHHHHHHTTS-TTTHHHHHHHHHHHHTPBBPSSSS--BPPBPHHHHHIIIIIITTTTHHHHHHHH"
    "HHHHHHHT---PPPPPGGGSPPTTT-TTSSBPPTTT-",
    "3nngA": "---TTEEEPP-TT-EEEES--GGG-HHHH-GGGGGSS-TTS-EEEE-HHHHS--EEEEEEEEEEEEEEEEE---SSS-GGGB--EEEEEEEETT-SS-EE-SS-"
    "EE-----TT--EEEEEEEEEEEEEEEEEEEEESSSEEEES-EEEEEE--",
    "4dkcA": "-HHHHHHHHHHHHT-HHHHHIIIIITS-TT--EEE-GGG---HHHHHHHHTTT--HHHHHHHHHHHHHHHHHHHHTT--TTSTTHHHHHHHHHHHHHHHHTTTTP"
    "PPPHHHHHHHHHHH-SS---EEE-HHHHHHHHHHHHHHHHHHHHTTSS-TTTTT--",
}


def backbone(universe):
    """Return the indices of N, CA, C and O of the residues of a protein, (n, 4), and which are prolines."""
    protein = universe.select_atoms("protein")
    names = np.where(np.isin(protein.names, ["OT1", "O1"]), "O", protein.names)
    indices = [protein.indices[names == name] for name in ("N", "CA", "C", "O")]
    return np.column_stack(indices), protein.residues.resnames == "PRO"


def read(name):
    """Return the positions of N, CA, C and O of the residues of a file, (n, 4, 3), and which are prolines."""
    universe = MDAnalysis.Universe(str(DATA / f"{name}.pdb.gz"), to_guess=())
    indices, prolines = backbone(universe)
    return universe.atoms.positions[indices], prolines


@pytest.fixture(scope="module")
def adk():
    universe = MDAnalysis.Universe(PSF, DCD)
    indices, prolines = backbone(universe)
    return np.array([universe.atoms.positions[indices] for _ in universe.trajectory]), prolines


def text(states):
    return bytes(states).decode()


@pytest.mark.parametrize("name", MKDSSP)
def test_against_mkdssp(name):
    positions, prolines = read(name)
    assert text(dssp(positions, None, prolines)) == MKDSSP[name]


@pytest.mark.parametrize("noise", [0, 0.1, 0.3])
def test_against_mdtraj(noise):
    """MDTraj has the rules of DSSP 2: no P, and H before I; of bonds at the limit of energy some differ by rounding."""
    universe = MDAnalysis.Universe(PSF, DCD)
    indices, prolines = backbone(universe)
    frames = mdtraj.load_dcd(DCD, top=mdtraj.load_psf(PSF))
    frames.xyz = frames.xyz + np.random.default_rng(1).normal(0, noise / 10, frames.xyz.shape).astype(np.float32)
    expected = mdtraj.compute_dssp(frames, simplified=False)
    result = np.array([list(text(dssp(10 * xyz[indices], None, prolines))) for xyz in frames.xyz])
    differ = (result != np.where(expected == " ", "-", expected)) & ~np.isin(result, ["P", "I"]) & (expected != "I")
    assert differ.mean() < 1e-3


@pytest.mark.parametrize("name", MKDSSP)
def test_a_chain_that_is_cut_in_a_coil_bonds_as_before(name):
    """But for the residues around the cut; strands of the two pair."""
    positions, prolines = read(name)
    whole, numbers = np.array(list(MKDSSP[name])), np.arange(len(positions))
    cuts = [cut for cut in numbers[8:-8] if set(whole[cut - 2 : cut + 2]) <= {"-", "S"}]
    assert cuts
    for cut in cuts:
        far = (numbers < cut - 4) | (numbers > cut + 3)
        result = np.array(list(text(dssp(positions, (numbers >= cut).astype(int), prolines))))
        np.testing.assert_array_equal(result[far], whole[far])


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_it_does_not_matter_where_the_protein_is(adk, seed):
    frames, prolines = adk
    random = np.random.default_rng(seed)
    turn, _ = np.linalg.qr(random.normal(size=(3, 3)))
    turn *= np.sign(np.linalg.det(turn))
    grid = 2.0**-10  # so that moving it does not round
    frame = np.round(random.choice(frames) / grid) * grid
    moved = frame + np.round(random.uniform(-1000, 1000, 3) / grid) * grid
    expected = dssp(frame, None, prolines)
    np.testing.assert_array_equal(dssp(moved, None, prolines), expected)
    assert np.count_nonzero(dssp(frame @ turn.T, None, prolines) != expected) <= 6  # where rounding makes a bond


def test_groups_without_a_direction():
    subset = np.zeros((30, 4, 3), np.float32)
    assert text(dssp(subset)) == "-" * 30  # no C=O has a direction


@pytest.mark.parametrize("size", [1e10, 1e20, 1e30, 3e38])
@pytest.mark.parametrize("n", [9, 33, 150])
def test_coordinates_of_any_size(size, n):
    subset = np.random.default_rng(n).uniform(-1, 1, (n, 4, 3)) * size
    states = dssp(subset.astype(np.float32), None, None, [50, 50, 50, 90, 90, 90])
    assert set(text(states)) <= set("HBEGITSP-")


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), tilted=st.booleans())
def test_chains_that_the_box_cuts_are_made_whole(adk, seed, tilted):
    frames, prolines = adk
    random = np.random.default_rng(seed)
    grid, side = 2.0**-10, 32.0
    vectors = np.array([[side, 0, 0], [-side / 2 if tilted else 0, side, 0], [0, 0, side]])
    angle = np.degrees(np.arctan2(*vectors[1, 1::-1])) if tilted else 90
    box = np.array([side, np.linalg.norm(vectors[1]), side, 90, 90, angle], np.float32)
    frame = np.round(random.choice(frames) / grid) * grid
    cut = frame + random.integers(-2, 3, frame.shape) @ vectors
    result, expected = (dssp(subset, None, prolines, box) for subset in (cut, frame))
    if tilted:  # the kernel's vectors are rounded
        assert np.count_nonzero(result != expected) <= 4
    else:
        np.testing.assert_array_equal(result, expected)
    assert (dssp(cut, None, prolines) != expected).any()


def test_other_types_and_layouts(adk):
    frames, prolines = adk
    frame, chains = frames[0], np.repeat([3, 8], 107)
    expected = dssp(frame, chains, prolines)
    for subset in (frame.astype(float), np.asfortranarray(frame), frame.tolist()):
        np.testing.assert_array_equal(dssp(subset, chains.tolist(), prolines.tolist()), expected)
    np.testing.assert_array_equal(dssp(frame, chains.astype(np.int32), prolines[::-1][::-1]), expected)
    np.testing.assert_array_equal(dssp(frame, chains, prolines, [80, 80, 80, 90, 90, 90]), expected)
    assert dssp(frame[:0]).shape == (0,)
    assert [text(dssp(frame[:n])) for n in (1, 2)] == ["-", "--"]
