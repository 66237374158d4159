"""Parts of frames taken over a connection to another machine, and frames that are checked as they lie."""

from __future__ import annotations

import numpy as np
import pytest

from himach.io.frame_source import ReadOptions
from himach.io.server.address import Server
from himach.io.server.admission import read_key
from himach.io.server.remote_store import RemoteStore
from himach.io.store.bodhi import POSITIONS
from himach.io.store.store import Store

N_ATOMS, N_FRAMES = 20000, 60
BOX = np.array([99, 99, 99, 90, 90, 90], np.float32)


def frame_of(number):
    """Positions on a grid: the first half takes less and less room packed, in steps, so that the second one moves."""
    rng = np.random.default_rng(number)
    most = np.full((N_ATOMS, 1), 9000)
    most[: N_ATOMS // 2] = 9000 >> 2 * (number // 10)
    return (rng.integers(-most, most + 1, size=(N_ATOMS, 3)) / np.float32(100)).astype(np.float32)


@pytest.fixture
def served(tmp_path, run_server, key):
    dataset = Store(tmp_path / "n0").dataset("/moving")
    for number in range(N_FRAMES):
        dataset.write(number, float(number), BOX, frame_of(number), native=True)
    dataset.close()
    remote = RemoteStore(Server(run_server().address, read_key(key))).dataset("/moving")
    yield remote, Store(tmp_path / "n0").dataset("/moving"), tmp_path / "n0"
    remote.close()


@pytest.mark.nightly(but=2)
@pytest.mark.parametrize("request_bytes", [0, 100_000])
@pytest.mark.parametrize("first", [0, 9900, 15000])
def test_blocks_that_lie_elsewhere_in_later_frames_are_found(served, first, request_bytes):
    atoms = np.arange(first, first + 4000)
    for _ in range(2):  # the second reader has the memory of the first
        for frame, number in zip(
            served[0].read(range(N_FRAMES), ReadOptions(atoms, POSITIONS, request_bytes=request_bytes)),
            range(N_FRAMES),
            strict=True,
        ):
            assert np.array_equal(frame.positions[atoms], frame_of(number)[atoms])


@pytest.mark.parametrize("atoms", [None, np.arange(15000, 16000)])
def test_frames_are_checked_as_they_lie(served, atoms):
    remote, here, place = served
    for dataset in (remote, here):
        whole, checked = (dataset.read(range(N_FRAMES), ReadOptions(atoms, unpack=unpack)) for unpack in (True, False))
        for frame, other in zip(whole, checked, strict=True):
            assert (frame.number, frame.time) == (other.number, other.time)
            assert other.positions is None and other.velocities is None
        assert checked.nbytes == whole.nbytes
    (segment,) = place.glob("*/n-*.seg")
    with open(segment, "r+b") as file:
        file.seek(segment.stat().st_size // 2)
        file.write(b"\xff" * 5000)
    if atoms is None:
        for dataset in (remote, here):
            checked = dataset.read(range(N_FRAMES), ReadOptions(unpack=False))
            assert sum(frame is None for frame in checked) in (1, 2)
            assert set(checked.misses) == {"damaged"}
