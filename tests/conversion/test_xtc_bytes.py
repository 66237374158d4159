"""XTC frames as they are encoded: the bytes of MDAnalysis's writer for any positions, and what is decoded of them."""

import MDAnalysis as mda
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from MDAnalysis.lib.formats.libmdaxdr import XTCFile
from MDAnalysis.lib.mdamath import triclinic_vectors
from MDAnalysisTests.datafiles import GRO, XTC

import himach
from himach.examples import load
from himach.frame import Coded
from himach.io.trajectories.xdr_header import parse_xtc
from himach.io.trajectories.xtc import PAD, decode, encode

pytestmark = pytest.mark.filterwarnings("ignore")


def of_peer(folder, positions, vectors, step, time, precision):
    """Return the frame as GROMACS's library, which MDAnalysis has, writes it; positions and vectors in nm."""
    path = folder / "peer.xtc"
    with XTCFile(str(path), "w") as file:
        file.write(positions, vectors, step, time, precision)
    return path.read_bytes()


def water(random, n, extent):
    """Place molecules of three atoms at random, with what is left over as single atoms."""
    centers = np.repeat(random.uniform(0, extent, (n // 3 + 1, 3)), 3, axis=0)
    sites = np.tile([[0, 0, 0], [0.957, 0, 0], [-0.24, 0.927, 0]], (n // 3 + 1, 1))
    return (centers + sites)[:n]


def chain(random, n, extent):
    """Walk in steps of a bond's length."""
    return np.cumsum(random.normal(0, 1.5, (n, 3)), axis=0) + extent / 2


def cloud(random, n, extent):
    return random.uniform(-extent, extent, (n, 3))


def lattice(random, n, extent):
    """Many atoms at the same few places."""
    return random.integers(0, 3, (n, 3)) * extent / 4


KINDS = (water, chain, cloud, lattice)


@st.composite
def frames(draw):
    """Positions in Å and a box of any kind; from 1 atom to 400, from 0.001 Å to 30,000 Å."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n = draw(st.one_of(st.integers(1, 12), st.integers(10, 400)))
    extent = 10.0 ** draw(st.floats(-3, 4.47))
    positions = draw(st.sampled_from(KINDS))(random, n, extent).astype(np.float32)
    angles = draw(st.sampled_from([(90, 90, 90), (60, 60, 90), (70.53, 109.47, 70.53), (80, 95, 110)]))
    box = np.array([*(extent * random.uniform(0.5, 2, 3)), *angles], np.float32)
    return positions, box, draw(st.integers(-(2**31), 2**31 - 1)), draw(st.floats(0, 1e7, width=32))


@settings(max_examples=300, deadline=None)
@given(frames(), st.sampled_from([1000.0, 1000.0, 100.0, 10.0, 2500.0]))
def test_bytes_are_those_of_mdanalysis_and_decode_to_the_same(tmp_path_factory, frame, precision):
    positions, box, step, time = frame
    in_nm = box.copy()
    in_nm[:3] *= np.float32(0.1)
    vectors = triclinic_vectors(in_nm)
    scaled = positions * np.float32(0.1)
    ours = encode(positions, vectors, step, time, precision)
    peer = of_peer(tmp_path_factory.getbasetemp(), scaled, vectors, step, time, precision)
    assert ours.tobytes() == peer
    header = parse_xtc(peer[:96])
    assert (header.step, header.n_atoms, header.time) == (step, len(positions), np.float32(time))
    if header.ends is None:
        assert np.array_equal(np.frombuffer(peer[56:], ">f4").reshape(-1, 3), scaled)
        return
    memory = np.concatenate([ours, np.zeros(PAD, np.uint8)])
    coded = Coded(memory, header.at, header.n_bytes, header.ends, header.sizes)
    coded.precision, coded.scale, coded.n_atoms = header.precision, 10.0, len(positions)
    decoded = np.empty_like(positions)
    decode(coded, decoded)
    rounding = 5.001 / precision + np.abs(positions) * 2e-7 * 3
    assert (np.abs(decoded - positions) <= rounding).all()
    # What is decoded is encoded to itself: nothing moves, however often a file is converted.
    again = encode(decoded, vectors, step, time, precision)
    assert np.abs(positions).max() > 8000 or again.tobytes() == peer


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 2.2e7, -2.2e7, 3e38])
def test_what_does_not_fit_is_refused(value):
    positions = np.zeros((20, 3), np.float32)
    positions[13, 1] = value
    with pytest.raises(ValueError, match="no number, or too large"):
        encode(positions, np.zeros((3, 3), np.float32), 0, 0.0)


@pytest.mark.parametrize("step", [2**31, -(2**31) - 1])
def test_steps_have_32_bits(step):
    with pytest.raises(OverflowError):
        encode(np.zeros((20, 3), np.float32), np.zeros((3, 3), np.float32), step, 0.0)


def test_precision_steps_and_times_are_kept_of_each_frame(tmp_path):
    universe = mda.Universe(GRO, XTC)
    atoms = universe.select_atoms("protein")
    joined, store, part = tmp_path / "joined.xtc", tmp_path / "store", tmp_path / "part.xtc"
    for ts in universe.trajectory[:4]:
        in_nm = ts.dimensions * np.array([0.1] * 3 + [1] * 3, np.float32)
        with XTCFile(str(part), "w") as file:
            vectors, precision = triclinic_vectors(in_nm), 10.0 ** (2 + ts.frame % 3)
            file.write(atoms.positions * np.float32(0.1), vectors, 500 * ts.frame, ts.time, precision)
        with joined.open("ab") as file:
            file.write(part.read_bytes())
    top = tmp_path / "top.pdb"
    atoms.write(str(top))
    himach.run(load("rmsd")(selection="all"), joined, top, cache=store)
    for cache, ranks in (("off", None), (store, 2)):
        done = himach.convert(joined, top, out=tmp_path / "out.xtc", cache=cache, ranks=ranks, force=True)
        assert done.path.read_bytes() == joined.read_bytes()
    steps = [ts.data["step"] for ts in mda.Universe(str(done.topology), str(done.path)).trajectory]
    assert steps == [0, 500, 1000, 1500]
