"""DCD files that himach reads by itself: to the last bit what MDAnalysis's reader gives, whatever the variant."""

import struct

import numpy as np
import pytest
from MDAnalysis.coordinates.DCD import DCDReader

from himach.errors import TrajectoryError
from himach.io.trajectories import dcd_file
from himach.io.trajectories.dcd_file import DcdFile, DcdHeader
from himach.io.trajectories.origin import open_origin

from .trajectory_formats import Sample, TrajectoryFileTests, read_by_mdanalysis, read_frames


@pytest.fixture(params=[1 << 20, 200], autouse=True)
def block(request, monkeypatch):
    monkeypatch.setattr(dcd_file, "BLOCK_BYTES", request.param)


def write(path, n_frames=50, n_atoms=3, order="<", cell="cosines", fixed=0):
    """Write a DCD file with a box that changes."""
    draw = np.random.default_rng(0)
    control = [n_frames, 10, 5, 5 * n_frames, 0, 0, 0, 0, fixed]
    words = struct.pack(f"{order}9if10i", *control, 0.5, int(cell != "none"), *[0] * 8, 24)
    if cell == "x-plor":
        cell, words = "none", struct.pack(f"{order}9id9i", *control, 0.5, *[0] * 9)

    def record(content: bytes) -> bytes:
        size = struct.pack(f"{order}i", len(content))
        return size + content + size

    parts = [record(b"CORD" + words), record(struct.pack(f"{order}i", 1) + b"x" * 80)]
    parts.append(record(struct.pack(f"{order}i", n_atoms)))
    if fixed:
        parts.append(record(np.arange(fixed + 1, n_atoms + 1).astype(f"{order}i4").tobytes()))
    angles = {"cosines": (0.1, 0.0, -0.2), "degrees": (80.0, 90.0, 100.0), "none": ()}
    for number in range(n_frames):
        if cell == "vectors":
            parts.append(record(struct.pack(f"{order}6d", 30 + number, -1.0, 31, -2.0, 3.0, 32)))
        elif cell != "none":
            c, b, a = angles[cell]
            parts.append(record(struct.pack(f"{order}6d", 30 + number // 7, c, 31.5, b, a, 32.25)))
        n_free = n_atoms - fixed * (number > 0)
        parts += [record(draw.normal(size=n_free).astype(f"{order}f4").tobytes()) for _ in range(3)]
    path.write_bytes(b"".join(parts))
    return path


class TestDcd(TrajectoryFileTests):
    @pytest.fixture
    def sample(self, tmp_path):
        return Sample(write(tmp_path / "a.dcd", n_frames=12, cell="cosines"))

    def damages(self, sample, number):
        """The file is shorter, or a record has another size."""
        yield from super().damages(sample, number)
        content = bytearray(sample.path.read_bytes())
        content[len(content) - (12 - number) * (56 + 60) + 56] ^= 1
        sample.path.write_bytes(content)
        yield {number}


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("cell", ["none", "cosines", "degrees", "vectors", "x-plor"])
def test_variants(tmp_path, order, cell):
    path = write(tmp_path / "a.dcd", order=order, cell=cell)
    assert open_origin([path]).timestep == pytest.approx(0.5 * 5 * 4.888821e-2)  # also where MDAnalysis misreads it
    header = DcdHeader.read(str(path))
    keywords = {"dt": header.dt} if header.is_swapped else {}
    origin = open_origin([path], keywords=keywords)
    assert read_frames(origin) == read_by_mdanalysis(DCDReader, path, **keywords)
    size = 56 * (cell not in ("none", "x-plor")) + 3 * 20
    assert isinstance(origin.files[0], DcdFile) and origin.nbytes(range(10)) == 10 * size


@pytest.mark.parametrize("order", "<>")
def test_files_with_fixed_atoms_are_left_to_mdanalysis(tmp_path, order):
    path = write(tmp_path / "a.dcd", n_frames=9, n_atoms=5, order=order, cell="none", fixed=2)
    origin, header = open_origin([path]), DcdHeader.read(str(path))
    assert not isinstance(origin.files[0], DcdFile)
    assert origin.timestep == pytest.approx(0.5 * 5 * 4.888821e-2)
    expected = read_by_mdanalysis(DCDReader, path, **({"dt": header.dt} if header.is_swapped else {}))
    assert read_frames(origin) == expected


def test_a_shape_of_charmm_that_would_be_taken_for_cosines_is_refused(tmp_path):
    content = bytearray(write(tmp_path / "a.dcd", cell="cosines").read_bytes())
    content[84:88] = struct.pack("<i", 41)  # the version of CHARMM
    (tmp_path / "a.dcd").write_bytes(content)
    with pytest.raises(TrajectoryError, match="taken for cosines of angles"):
        open_origin([tmp_path / "a.dcd"])
