import copy
import json
import os
import pickle

import MDAnalysis as mda
import numpy as np
import pytest
from MDAnalysisTests import datafiles as data
from support.io_samples import FORMATS, copied, make

from himach.errors import TrajectoryError, UsageError
from himach.frame import RawFrame
from himach.io.dataset.describe import describe
from himach.io.topology.loading import load_topology
from himach.io.trajectory.manifest import Manifest
from himach.io.trajectory.origin import open_origin
from himach.io.trajectory.split import split


def same(one: RawFrame, other: RawFrame) -> None:
    assert one.time == other.time
    for name in ("positions", "box", "velocities"):
        mine, theirs = getattr(one, name), getattr(other, name)
        assert (mine is None) == (theirs is None), name
        if mine is not None:
            assert mine.tobytes() == theirs.tobytes(), name


@pytest.mark.parametrize("frames_per_file", [1, 4, 100])
@pytest.mark.parametrize("name", ["XTC", "TRR"])
def test_frames_are_those_of_the_original(name, frames_per_file, tmp_path):
    topology, trajectory = copied(name, tmp_path)
    n_frames = split([trajectory], tmp_path / "frames", topology, frames_per_file=frames_per_file)
    original = open_origin([trajectory], topology)
    again = pickle.loads(pickle.dumps(open_origin([tmp_path / "frames"])))
    assert again.n_frames == original.n_frames == n_frames
    assert again.has_velocities == original.has_velocities
    for one, other in zip(original.read(range(original.n_frames)), again.read(range(original.n_frames)), strict=True):
        same(one, other)
    np.testing.assert_array_equal(again.times(range(again.n_frames)), original.times(range(again.n_frames)))
    assert load_topology(None, again).n_atoms == original.n_atoms
    assert not [entry for entry in os.listdir(tmp_path / "frames") if "new" in entry or "partial" in entry]


def test_bytes_are_copied(tmp_path):
    paths = [make(tmp_path / "a.xtc", [0, 1, 2]), make(tmp_path / "b.xtc", [3, 4])]
    split(paths, tmp_path / "frames", frames_per_file=1)
    names = sorted(path for path in os.listdir(tmp_path / "frames") if path.startswith("frames-"))
    copies = b"".join((tmp_path / "frames" / name).read_bytes() for name in names)
    assert len(names) == 5
    assert copies == b"".join(path.read_bytes() for path in paths)
    origin = open_origin([tmp_path / "frames"])
    assert origin.nbytes(range(5)) == len(copies)


def test_selection_and_progress(tmp_path):
    path = make(tmp_path / "a.trr", list(range(10)), velocities=True)
    seen = []
    split(
        [path],
        tmp_path / "frames",
        frames_per_file=2,
        start=1,
        step=3,
        progress=lambda n, total: seen.append((n, total)),
    )
    assert seen == [(2, 3), (3, 3)]
    assert [frame.time for frame in open_origin([tmp_path / "frames"]).read([2, 0, 1])] == [7, 1, 4]
    with pytest.raises(UsageError, match="leave no frames"):
        split([path], tmp_path / "none", start=10)


def test_without_a_topology(tmp_path):
    split([make(tmp_path / "a.xtc", [0, 1])], tmp_path / "frames")
    with pytest.raises(UsageError, match="holds no topology"):
        load_topology(None, open_origin([tmp_path / "frames"]))


def test_compressed_topology_keeps_its_suffixes(tmp_path):
    n_atoms = mda.Universe(data.XYZ_bz2).atoms.n_atoms
    split([make(tmp_path / "a.xtc", [0, 1], n_atoms)], tmp_path / "frames", data.XYZ_bz2)
    assert (tmp_path / "frames" / "topology.xyz.bz2").exists()


def test_opening_reads_no_frame_file_but_the_ends(tmp_path, monkeypatch):
    split([make(tmp_path / "a.xtc", list(range(50)))], tmp_path / "frames", frames_per_file=1)
    for number in range(1, 49):
        (tmp_path / "frames" / f"frames-{number:06}.xtc").unlink()
    origin = open_origin([tmp_path / "frames"])
    assert origin.n_frames == 50
    with pytest.raises(TrajectoryError, match=r"frames-000007\.xtc is missing"):
        next(origin.read([7]))


def test_short_and_foreign_files(tmp_path):
    split([make(tmp_path / "a.xtc", list(range(9)))], tmp_path / "frames", frames_per_file=3)
    middle = tmp_path / "frames" / "frames-000001.xtc"
    content = middle.read_bytes()
    for wrong in (content[:-8], content + content, b"", make(tmp_path / "b.xtc", [3, 4, 5], n_atoms=41).read_bytes()):
        middle.write_bytes(wrong)
        with pytest.raises(TrajectoryError, match=r"frames-000001\.xtc"):
            list(open_origin([tmp_path / "frames"]).read([4]))
    (tmp_path / "frames" / "frames-000002.xtc").unlink()
    with pytest.raises(TrajectoryError, match=r"frames-000002\.xtc is missing"):
        open_origin([tmp_path / "frames"])


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


def test_directories_that_are_refused(tmp_path):
    path = make(tmp_path / "a.xtc", [0, 1])
    with pytest.raises(UsageError, match="not empty"):
        split([path], tmp_path)
    split([path], tmp_path / "frames")
    with pytest.raises(UsageError, match="not empty"):
        split([path], tmp_path / "frames")
    with pytest.raises(UsageError, match="is a file"):
        split([path], path)


def test_unfinished_split_is_finished(tmp_path):
    path = make(tmp_path / "a.xtc", list(range(6)))

    def stop(done, total):
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        split([path], tmp_path / "frames", frames_per_file=2, progress=stop)
    with pytest.raises(UsageError, match="was not finished"):
        open_origin([tmp_path / "frames"])
    with pytest.raises(UsageError, match="not empty"):
        split([path], tmp_path / "frames", frames_per_file=3)
    split([path], tmp_path / "frames", frames_per_file=2)
    assert [frame.time for frame in open_origin([tmp_path / "frames"]).read(range(6))] == list(range(6))


def test_manifest_round_trip(tmp_path):
    manifest = Manifest(10, 4, 3, "TRR", "f%03d.trr", "topology.gro", {"atom_style": "id x y z"}, "x")
    manifest.write(str(tmp_path / "himach.json"))
    assert Manifest.read(str(tmp_path / "himach.json")) == manifest
    assert manifest.n_files == 4
    assert [manifest.frames_in(number) for number in range(4)] == [3, 3, 3, 1]


@pytest.mark.parametrize("name", sorted(FORMATS.keys() - {"XTC", "TRR"}))
def test_formats_that_cannot_be_copied_are_refused(name, tmp_path):
    topology, trajectory = copied(name, tmp_path)
    with pytest.raises(UsageError, match="copied byte by byte"):
        split([trajectory], tmp_path / "frames", topology)
    assert not (tmp_path / "frames").exists()


def test_mixed_files_and_other_units_are_refused(tmp_path):
    paths = [make(tmp_path / "a.xtc", [0, 1]), make(tmp_path / "b.trr", [2, 3])]
    with pytest.raises(UsageError, match="TRR and XTC"):
        split(paths, tmp_path / "frames")
    with pytest.raises(UsageError, match="their own units"):
        split(paths[:1], tmp_path / "frames", keywords={"convert_units": False})


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


def test_describe(tmp_path):
    path = make(tmp_path / "a.trr", [0, 2, 4], velocities=True)
    plain = describe([path])
    assert plain["frames"] == 3
    assert plain["atoms"] == 40
    assert (plain["first_time"], plain["last_time"], plain["dt"]) == (0, 4, 2)
    assert plain["box"] == [50, 50, 50, 90, 90, 90]
    assert plain["velocities"]
    assert plain["topology"] is None
    assert plain["format"] == "TRR"
    json.dumps(plain)
    assert describe([data.PDB_multiframe])["topology"] == data.PDB_multiframe
    path.write_bytes(path.read_bytes()[:-1])
    assert "cut off" in describe([path])["warnings"][0]
    with pytest.raises(TrajectoryError, match="has 40"):
        describe([path], data.GRO)
