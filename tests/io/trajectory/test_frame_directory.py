"""Frame directories: opened, read, and refused where they are damaged."""

from __future__ import annotations

import copy
import json
import pickle

import MDAnalysis as mda
import numpy as np
import pytest
from support.io_samples import FORMATS, make

from himach.errors import TrajectoryError
from himach.io.dataset.split import split
from himach.io.trajectory.manifest import Manifest
from himach.io.trajectory.origin import open_origin

from .trajectory_formats import Sample, TrajectoryFormatTests


class TestFrameDirectory(TrajectoryFormatTests):
    message = r"{path}/frames-000001\.xtc"

    @pytest.fixture
    def sample(self, tmp_path):
        trajectory = make(tmp_path / "a.xtc", [0.5 * number for number in range(8)])
        split([trajectory], tmp_path / "frames", frames_per_file=3)
        return Sample(tmp_path / "frames", twin=trajectory)

    def damages(self, sample, number):
        file = sample.path / "frames-000001.xtc"
        content = file.read_bytes()
        other_atoms = make(file.with_name("b.xtc"), [3, 4, 5], n_atoms=41).read_bytes()
        for wrong in (content[:-8], content + content, b"", other_atoms):
            file.write_bytes(wrong)
            yield range(3, 6)


def test_a_last_file_that_is_missing_is_told_at_once(tmp_path):
    split([make(tmp_path / "a.xtc", list(range(9)))], tmp_path / "frames", frames_per_file=3)
    (tmp_path / "frames" / "frames-000002.xtc").unlink()
    with pytest.raises(TrajectoryError, match=r"frames-000002\.xtc is missing"):
        open_origin([tmp_path / "frames"])


def test_opening_reads_no_frame_file_but_the_ends(tmp_path, monkeypatch):
    split([make(tmp_path / "a.xtc", list(range(50)))], tmp_path / "frames", frames_per_file=1)
    for number in range(1, 49):
        (tmp_path / "frames" / f"frames-{number:06}.xtc").unlink()
    origin = open_origin([tmp_path / "frames"])
    assert origin.n_frames == 50
    with pytest.raises(TrajectoryError, match=r"frames-000007\.xtc is missing"):
        next(origin.read([7]))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("version", 2),
        ("format", "other"),
        ("frames", 0),
        ("frames", True),
        ("atoms", "40"),
        ("frames_per_file", -1),
        ("kind", "EXE"),
        ("pattern", "../%06d.xtc"),
        ("pattern", "/tmp/%06d.xtc"),
        ("pattern", "%06d%s.xtc"),
        ("pattern", "frames.xtc"),
        ("topology", "../secret.pdb"),
        ("topology", ".."),
        ("keywords", []),
        ("source", None),
    ],
)
def test_manifests_that_are_refused(field, value, tmp_path):
    split([make(tmp_path / "a.xtc", [0, 1])], tmp_path / "frames")
    path = tmp_path / "frames" / "himach.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    with pytest.raises(TrajectoryError, match=r"himach\.json"):
        open_origin([tmp_path / "frames"])


def test_damaged_manifest_and_times(tmp_path):
    split([make(tmp_path / "a.xtc", [0, 1])], tmp_path / "frames")
    for name, content in (("times.npy", b"\x93NUMPY"), ("himach.json", b"{")):
        (tmp_path / "frames" / name).write_bytes(content)
        with pytest.raises(TrajectoryError, match=name):
            open_origin([tmp_path / "frames"])


def test_manifest_round_trip(tmp_path):
    manifest = Manifest(10, 4, 3, "TRR", "f%03d.trr", "topology.gro", {"atom_style": "id x y z"}, "x")
    manifest.write(str(tmp_path / "himach.json"))
    assert Manifest.read(str(tmp_path / "himach.json")) == manifest
    assert manifest.n_files == 4
    assert [manifest.frames_in(number) for number in range(4)] == [3, 3, 3, 1]


@pytest.mark.parametrize("frames_per_file", [1, 4])
def test_a_directory_of_netcdf_files_that_another_program_made(tmp_path, frames_per_file):
    topology, trajectory = FORMATS["DCD"]
    original = list(map(copy.deepcopy, open_origin([trajectory], topology).read(range(10))))
    universe = mda.Universe(topology, trajectory)
    manifest = Manifest(10, len(universe.atoms), frames_per_file, "NCDF", "f%01d.nc", None, {}, "made up")
    for number in range(manifest.n_files):
        begin = number * frames_per_file
        with mda.Writer(str(tmp_path / manifest.file_name(number)), len(universe.atoms)) as writer:
            for _ in universe.trajectory[begin : begin + manifest.frames_in(number)]:
                writer.write(universe.atoms)
    np.save(tmp_path / "times.npy", np.array([frame.time for frame in original]))
    manifest.write(str(tmp_path / "himach.json"))
    again = pickle.loads(pickle.dumps(open_origin([tmp_path])))
    for one, other in zip(original, again.read(range(10)), strict=True):
        assert one.time == other.time
        assert one.positions.tobytes() == other.positions.tobytes()
