"""DCD files that himach reads by itself: to the last bit what MDAnalysis's reader gives, whatever the variant."""

import struct

import numpy as np
import pytest
from MDAnalysis.coordinates.DCD import DCDReader
from MDAnalysisTests import datafiles as data

from himach.errors import TrajectoryError
from himach.io.trajectories import dcd_file
from himach.io.trajectories.dcd_file import DcdFile, swapped_dt
from himach.io.trajectories.origin import open_origin

from .foreign import read_by_mdanalysis, read_frames, seen
from .trajectory_formats import Sample, TrajectoryFileTests


@pytest.fixture(params=[1 << 20, 200], autouse=True)
def block(request, monkeypatch):
    monkeypatch.setattr(dcd_file, "BLOCK_BYTES", request.param)


def write(path, n_frames=50, n_atoms=3, order="<", cell="cosines", fixed=0):
    """Write a DCD file with a box that changes."""
    draw = np.random.default_rng(0)
    control = [n_frames, 10, 5, 5 * n_frames, 0, 0, 0, 0, fixed]
    words = struct.pack(f"{order}9if10i", *control, 0.5, int(cell != "none"), *[0] * 8, 24)

    def record(content: bytes) -> bytes:
        size = struct.pack(f"{order}i", len(content))
        return size + content + size

    parts = [record(b"CORD" + words), record(struct.pack(f"{order}i", 1) + b"x" * 80)]
    parts.append(record(struct.pack(f"{order}i", n_atoms)))
    angles = {"cosines": (0.1, 0.0, -0.2), "degrees": (80.0, 90.0, 100.0), "none": ()}
    for number in range(n_frames):
        if cell == "vectors":
            parts.append(record(struct.pack(f"{order}6d", 30 + number, -1.0, 31, -2.0, 3.0, 32)))
        elif cell != "none":
            c, b, a = angles[cell]
            parts.append(record(struct.pack(f"{order}6d", 30 + number // 7, c, 31.5, b, a, 32.25)))
        parts += [record(draw.normal(size=n_atoms).astype(f"{order}f4").tobytes()) for _ in range(3)]
    path.write_bytes(b"".join(parts))
    return path


def check(path, **keywords):
    origin = open_origin([path], keywords=keywords)
    file = origin.files()[0][0]
    assert isinstance(file, DcdFile)
    assert file._header is not None
    expected = read_by_mdanalysis(DCDReader, path, **keywords)
    n = file.n_frames
    for order in (range(n), range(0, n, 3), range(n)[::-1], range(0, n, 40), [5 % n, 5 % n, 0, n - 1, 1 % n, 2 % n]):
        wanted = [expected[number] for number in order]
        assert [seen(frame) for frame in origin.read(order)] == wanted
        assert read_frames(origin, order) == wanted
        origin.close()
    return file


class TestDcd(TrajectoryFileTests):
    @pytest.fixture
    def sample(self, tmp_path):
        return Sample(write(tmp_path / "a.dcd", n_frames=12, cell="cosines"))

    def damages(self, sample, number):
        """Records of other sizes are left to MDAnalysis's reader."""
        yield from super().damages(sample, number)
        content = bytearray(sample.path.read_bytes())
        content[len(content) - (12 - number) * (56 + 60) + 56] ^= 1
        sample.path.write_bytes(content)
        yield {number}


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("cell", ["none", "cosines", "degrees", "vectors"])
def test_variants(tmp_path, order, cell):
    path = write(tmp_path / "a.dcd", order=order, cell=cell)
    assert open_origin([path]).timestep == pytest.approx(0.5 * 5 * 4.888821e-2)  # also where MDAnalysis misreads it
    file = check(path, **swapped_dt(str(path)))
    size = 56 * (cell != "none") + 3 * 20
    assert file.nbytes(np.arange(10)) == 10 * size


def test_a_shape_of_charmm_that_would_be_taken_for_cosines_is_refused(tmp_path):
    content = bytearray(write(tmp_path / "a.dcd", cell="cosines").read_bytes())
    content[84:88] = struct.pack("<i", 41)  # the version of CHARMM
    (tmp_path / "a.dcd").write_bytes(content)
    with pytest.raises(TrajectoryError, match="taken for cosines of angles"):
        open_origin([tmp_path / "a.dcd"])


@pytest.mark.parametrize("n_atoms", [1, 1000])
def test_sizes_and_keywords(tmp_path, n_atoms):
    check(write(tmp_path / "a.dcd", n_atoms=n_atoms), dt=2.0)
    check(write(tmp_path / "b.dcd", n_atoms=n_atoms), time_offset=7.0)


@pytest.mark.parametrize("name", ["DCD", "DCD_NAMD_TRICLINIC", "DCD2"])
def test_files_of_programs(name):
    check(getattr(data, name))
