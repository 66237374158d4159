import os

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from MDAnalysis.lib.formats.libmdaxdr import XTCFile

from himach.io.frame_source import ReadOptions
from himach.io.trajectory import xtc
from himach.io.trajectory.origin import open_origin


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    n_atoms=st.integers(1, 400),
    spread=st.sampled_from([0.001, 0.02, 0.3, 5, 80, 2000, 30000]),
    clustered=st.booleans(),
    precision=st.sampled_from([10, 100, 1000, 50000]),
    outlier=st.sampled_from([0, 1e5, 9e6, 4e8]),  # in steps: sizes that are, and are not, one number of 64 or 72 bits
    seed=st.integers(0, 10**6),
)
def test_decodes_as_libmdaxdr(tmp_path, n_atoms, spread, clustered, precision, outlier, seed):
    random = np.random.default_rng(seed)
    positions = random.normal(scale=spread, size=(n_atoms, 3))
    if clustered:  # as in water: hydrogens near their oxygens
        positions[:] = positions[np.arange(n_atoms) // 3 * 3] + random.normal(scale=0.05, size=(n_atoms, 3))
    positions = np.clip(positions, -4e6 / precision, 4e6 / precision)
    positions[random.integers(n_atoms)] += outlier / precision
    # Where no two neighbours are near each other, writers step beyond the table of small sizes and write what is there.
    apart = np.abs(np.diff(np.round(positions * precision), axis=0)).sum(axis=1)
    assume(n_atoms < 10 or apart.min() < 2**21)
    path = tmp_path / "a.xtc"
    with XTCFile(str(path), "w") as file:
        for number in range(2):
            file.write((positions + number).astype(np.float32), np.eye(3), number, number, precision)
    with XTCFile(str(path)) as file:
        expected = [frame.x * np.float32(10) for frame in file]
    for frame, positions in zip(open_origin([path]).read([0, 1]), expected, strict=True):
        np.testing.assert_array_equal(frame.positions, positions)


def test_file_that_shrinks(tmp_path):
    path = tmp_path / "a.xtc"
    with XTCFile(str(path), "w") as file:
        for number in range(3):
            file.write(np.ones((30, 3), np.float32), np.eye(3), number, number, 1000)
    origin = open_origin([path])
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(Exception, match=r"frame 2 .* become shorter"):
        list(origin.read([2]))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    n_atoms=st.sampled_from([1, 9, 10, 200, 2000]),
    part=st.floats(0, 1.1),
    water=st.lists(st.booleans(), min_size=3, max_size=6),
    seed=st.integers(0, 10**6),
)
def test_the_first_atoms_are_those_of_the_whole_frame(tmp_path, n_atoms, part, water, seed):
    """Frames take more or fewer bytes than those before; what was left in the file is there when it is asked for."""
    random = np.random.default_rng(seed)
    needed, path = int(part * n_atoms), tmp_path / "a.xtc"
    with XTCFile(str(path), "w") as file:
        for number, near in enumerate(water):
            positions = random.normal(scale=3, size=(n_atoms, 3))
            if near:
                positions[:] = positions[np.arange(n_atoms) // 3 * 3] + random.normal(scale=0.05, size=(n_atoms, 3))
            file.write(positions.astype(np.float32), np.eye(3), number, number, 1000)
    numbers = range(len(water))
    whole = [frame.positions.copy() for frame in open_origin([path]).read(numbers)]
    some = open_origin([path]).read(numbers, ReadOptions(np.array([[0, needed]])))
    for frame, expected in zip(some, whole, strict=True):
        assert frame.positions.shape == (n_atoms, 3)
        np.testing.assert_array_equal(frame.positions[:needed], expected[:needed])
        if frame.coded is not None and random.integers(2):
            if frame.coded.complete is not None:
                frame.coded.complete()
            again = np.empty_like(expected)
            xtc.decode(frame.coded, again)
            np.testing.assert_array_equal(again, expected)


def test_bytes_behind_the_atoms_that_are_needed_are_left_in_the_file(tmp_path, monkeypatch):
    path = tmp_path / "a.xtc"
    with XTCFile(str(path), "w") as file:
        for number in range(20):
            positions = np.random.default_rng(number).normal(scale=3, size=(3000, 3))
            file.write(positions.astype(np.float32), np.eye(3), number, number, 1000)
    read = []
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda *of: read.append(preadv(*of)) or read[-1])
    frames = open_origin([path]).read(range(20), ReadOptions(np.array([[0, 300]])))
    left = [frame.coded.left for frame in frames]
    size = path.stat().st_size // 20
    assert left[0] == 0
    assert sum(read) < size * (2 + 19 * 0.13)
    assert sum(read) + sum(left) == pytest.approx(21 * size, rel=2e-2)
