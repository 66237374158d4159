import struct

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from MDAnalysis.coordinates.TRR import TRRReader
from support.io_samples import copied, make, offsets_of

from himach.errors import TrajectoryError
from himach.frame import Coded
from himach.io.trajectory import xtc
from himach.io.trajectory.origin import open_origin

XDR = ["xtc", "trr"]


@pytest.mark.parametrize("kind", XDR)
def test_cut_at_any_byte_of_the_last_frame(kind, tmp_path):
    path = make(tmp_path / f"a.{kind}", [0, 1, 2])
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
def test_zeros_at_the_end(kind, tmp_path):
    path = make(tmp_path / f"a.{kind}", [0, 1])
    path.write_bytes(path.read_bytes() + bytes(5000))
    with pytest.warns(UserWarning, match="within frame 2"):
        assert open_origin([path]).n_frames == 2


@pytest.mark.parametrize("kind", XDR)
def test_damaged_header_in_the_middle(kind, tmp_path):
    path = make(tmp_path / f"a.{kind}", [0, 1, 2, 3])
    offsets = offsets_of(path, kind.upper())
    content = bytearray(path.read_bytes())
    content[offsets[2]] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(TrajectoryError, match=rf"a\.{kind}: frame 2 is damaged \(at byte {offsets[2]}\)"):
        open_origin([path])


def test_damaged_length_in_the_middle(tmp_path):
    path = make(tmp_path / "a.xtc", [0, 1, 2, 3])
    offsets = offsets_of(path, "XTC")
    content = bytearray(path.read_bytes())
    for length in (-5, 2**30, 100):
        struct.pack_into(">i", content, offsets[1] + 88, length)
        path.write_bytes(content)
        with pytest.raises(TrajectoryError, match=r"frame [12] is damaged"):
            open_origin([path])


def test_damaged_coordinates_are_told_when_read(tmp_path):
    path = make(tmp_path / "a.xtc", [0, 1, 2, 3])
    offsets = offsets_of(path, "XTC")
    content = bytearray(path.read_bytes())
    struct.pack_into(">3i", content, offsets[2] + 60, *[2**31 - 1] * 3)  # the least coordinates above the greatest
    struct.pack_into(">i", content, offsets[2] + 84, 10**6)
    path.write_bytes(content)
    origin = open_origin([path])
    frames = origin.read(range(4))
    assert [next(frames).time, next(frames).time] == [0, 1]
    with pytest.raises(TrajectoryError, match=r"frame 2 of the dataset .*a\.xtc.*start 3 or stop 2"):
        next(frames)
    assert next(origin.read([3])).time == 3


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


def test_random_bytes_are_decoded_within_bounds():
    random = np.random.default_rng(7)
    for _ in range(3000):
        n_atoms = int(random.integers(1, 50))
        n_bytes = int(random.integers(0, 16 * n_atoms))
        memory = random.integers(0, 256, n_bytes + xtc.PAD, dtype=np.uint8)
        least = random.integers(-(2**31), 2**31, 3)
        ends = [*least, *np.minimum(least + random.integers(0, 2 ** random.integers(1, 33), 3), 2**31 - 1)]
        sizes = int(random.integers(0, 80))
        coded = Coded(memory, 0, n_bytes, tuple(int(end) for end in ends), sizes, 1e3, 10, n_atoms)
        out = np.full((n_atoms + 20, 3), 7, np.float32)
        try:
            xtc.decode(coded, out[:n_atoms])
        except ValueError as error:
            assert "damaged" in str(error)
        assert (out[n_atoms:] == 7).all()


def test_changed_number_of_atoms(tmp_path):
    path = make(tmp_path / "a.xtc", [0, 1])
    path.write_bytes(path.read_bytes() + make(tmp_path / "b.xtc", [2, 3], n_atoms=50).read_bytes())
    with pytest.warns(UserWarning, match="within frame 2"):  # nothing of the first kind follows
        assert open_origin([path]).n_frames == 2


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


@pytest.mark.parametrize("name", ["DCD", "XYZ", "TRJ", "PDB"])
def test_other_formats_cut(name, tmp_path):
    topology, trajectory = copied(name, tmp_path)
    whole = open_origin([trajectory], topology).n_frames
    content = trajectory.read_bytes()
    trajectory.write_bytes(content[: len(content) - len(content) // whole // 2])
    with pytest.warns(UserWarning, match=f"cut off within frame {whole - 1}"):
        origin = open_origin([trajectory], topology)
    assert origin.n_frames == whole - 1
    assert len(list(origin.read(range(whole - 1)))) == whole - 1


def test_netcdf_cut(tmp_path):
    _, trajectory = copied("NCDF", tmp_path)
    content = trajectory.read_bytes()
    trajectory.write_bytes(content[:-1000])
    with pytest.raises(TrajectoryError, match=trajectory.name):
        open_origin([trajectory])


def test_text_damaged_in_the_middle(tmp_path):
    _, trajectory = copied("XYZ", tmp_path)
    lines = trajectory.read_text().splitlines(keepends=True)
    per_frame = len(lines) // 10
    lines[3 * per_frame + 10] = "C one two three\n"
    trajectory.write_text("".join(lines))
    origin = open_origin([trajectory])
    assert len(list(origin.read(range(3)))) == 3
    with pytest.raises(TrajectoryError, match="frame 3 of the dataset"):
        list(origin.read(range(10)))
