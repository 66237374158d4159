"""XTC and TRR files: what holds of every format, their decoder, and damage of any kind."""

import os
import struct

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from MDAnalysis.coordinates.TRR import TRRReader
from MDAnalysis.lib.formats.libmdaxdr import TRRFile, XTCFile
from support.io_samples import make, offsets_of, positions

from himach.errors import TrajectoryError
from himach.io.frame_source import ReadOptions
from himach.io.trajectories import xtc
from himach.io.trajectories.origin import open_origin

from .trajectory_formats import Sample, TrajectoryFileTests

XDR = ["xtc", "trr"]


class TestXtc(TrajectoryFileTests):
    @pytest.fixture
    def sample(self, tmp_path):
        return Sample(make(tmp_path / "a.xtc", [0.1 * number for number in range(9)]))

    def damages(self, sample, number):
        yield from super().damages(sample, number)
        content, begin = bytearray(sample.path.read_bytes()), offsets_of(sample.path, "XTC")[number]
        struct.pack_into(">3i", content, begin + 60, *[2**31 - 1] * 3)  # the least coordinates above the greatest
        struct.pack_into(">i", content, begin + 84, 10**6)
        sample.path.write_bytes(content)
        yield {number}


class TestTrr(TrajectoryFileTests):
    @pytest.fixture(params=["positions", "velocities", "forces", "both"])
    def sample(self, request, tmp_path):
        with TRRFile(str(tmp_path / "a.trr"), "w") as file:
            for number in range(9):
                vectors = [positions(number + 10 * field) for field in range(3)]
                velocities = vectors[1] if request.param in ("velocities", "both") else None
                forces = vectors[2] if request.param in ("forces", "both") else None
                box = np.diag([5, 6, 7]).astype(np.float32)
                file.write(vectors[0], velocities, forces, box, number, 0.1 * number, 0.5, 40)
        return Sample(tmp_path / "a.trr")


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


@pytest.mark.parametrize("kind", XDR)
def test_cut_at_any_byte_of_the_last_frame(kind, tmp_path):
    path = make(tmp_path / f"a.{kind}", [0, 1, 2], n_atoms=10)
    content = path.read_bytes()
    offsets = offsets_of(path, kind.upper())
    for end in range(offsets[2] + 1, offsets[3]):
        path.write_bytes(content[:end])
        with pytest.warns(UserWarning, match=rf"a\.{kind} is cut off within frame 2; .*last whole frame, 1"):
            origin = open_origin([path])
        assert origin.n_frames == 2
        assert "cut off" in origin.warnings[0]
    assert [frame.time for frame in origin.read(range(2))] == [0, 1]
    path.write_bytes(content[: offsets[2]])
    assert open_origin([path]).n_frames == 2
    path.write_bytes(content[: offsets[1] - 3])
    with pytest.raises(TrajectoryError, match="no whole"):
        open_origin([path])


@pytest.mark.parametrize("kind", XDR)
def test_what_follows_and_is_no_frame_of_the_same_atoms_is_left_out(kind, tmp_path):
    whole = make(tmp_path / f"a.{kind}", [0, 1]).read_bytes()
    for rest in (bytes(5000), make(tmp_path / "b.xtc", [2, 3], n_atoms=50).read_bytes()):
        (tmp_path / f"a.{kind}").write_bytes(whole + rest)
        with pytest.warns(UserWarning, match="within frame 2"):  # nothing of the first kind follows
            assert open_origin([tmp_path / f"a.{kind}"]).n_frames == 2


@pytest.mark.parametrize("kind", XDR)
def test_damaged_header_in_the_middle(kind, tmp_path):
    path = make(tmp_path / f"a.{kind}", [0, 1, 2, 3])
    offsets, whole = offsets_of(path, kind.upper()), path.read_bytes()
    path.write_bytes(whole[: offsets[2]] + bytes([whole[offsets[2]] ^ 0xFF]) + whole[offsets[2] + 1 :])
    with pytest.raises(TrajectoryError, match=rf"a\.{kind}: frame 2 is damaged \(at byte {offsets[2]}\)"):
        open_origin([path])
    for length in (-5, 2**30, 100) if kind == "xtc" else ():
        content = bytearray(whole)
        struct.pack_into(">i", content, offsets[1] + 88, length)
        path.write_bytes(content)
        with pytest.raises(TrajectoryError, match=r"frame [12] is damaged"):
            open_origin([path])


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_damage_is_an_error_or_a_frame(tmp_path, data):
    """Damaged bytes never crash the decoder, write beyond the frame, or keep the frames around them from being read."""
    path = make(tmp_path / "a.xtc", [0, 1, 2], n_atoms=60)
    offsets = offsets_of(path, "XTC")
    content = bytearray(path.read_bytes())
    for at in data.draw(st.lists(st.integers(int(offsets[1]) + 56, int(offsets[2]) - 1), min_size=1, max_size=30)):
        content[at] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        origin = open_origin([path])
        assert [frame.time for frame in origin.read([0, 2])] == [0, 2]
        (frame,) = origin.read([1])
        assert frame.positions.shape == (60, 3)
    except TrajectoryError as error:
        assert "damaged" in str(error)


def test_small_systems_and_double_precision(tmp_path):
    path = make(tmp_path / "small.xtc", [0, 1, 2], n_atoms=3)
    assert [frame.time for frame in open_origin([path]).read(range(3))] == [0, 1, 2]
    frame = struct.pack(
        ">iii12s13i2d", 1993, 13, 12, b"GMX_trn_file", 0, 0, 72, 0, 0, 0, 0, 240, 0, 0, 10, 7, 0, 2.1, 0.3
    )
    frame += np.eye(3).astype(">f8").tobytes() + np.arange(30.0).astype(">f8").tobytes()
    (tmp_path / "double.trr").write_bytes(2 * frame)
    origin = open_origin([tmp_path / "double.trr"])
    assert origin.n_frames == 2
    (first,) = origin.read([0])
    assert first.time == 2.1 != TRRReader(tmp_path / "double.trr").ts.time  # which rounds
    assert first.data == {"step": 7, "lambda": 0.3}
    np.testing.assert_allclose(first.positions.ravel(), 10 * np.arange(30))
