"""Splitting a trajectory into a frame directory: its frames are those of the original."""

from __future__ import annotations

import os

import MDAnalysis as mda
import pytest
from MDAnalysisTests import datafiles as data
from support.io_samples import FORMATS, copied, make

from himach.errors import UsageError
from himach.io.dataset.split import split
from himach.io.trajectory.origin import open_origin
from himach.io.universe.topology import load_topology

from ..trajectory.foreign import minimal_topology, read_frames


@pytest.mark.parametrize("frames_per_file", [1, 4, 100])
@pytest.mark.parametrize("suffix", ["xtc", "trr"])
def test_frames_are_those_of_the_original(suffix, frames_per_file, tmp_path):
    trajectory = make(tmp_path / f"a.{suffix}", [0.5 * number for number in range(10)], velocities=True)
    n_frames = split([trajectory], tmp_path / "frames", minimal_topology(tmp_path, 40), frames_per_file=frames_per_file)
    original, again = open_origin([trajectory]), open_origin([tmp_path / "frames"])
    assert again.n_frames == original.n_frames == n_frames
    assert again.has_velocities == original.has_velocities == (suffix == "trr")
    assert read_frames(again) == read_frames(original)
    assert load_topology(None, again).n_atoms == 40
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


def test_directories_that_are_refused(tmp_path):
    path = make(tmp_path / "a.xtc", [0, 1])
    with pytest.raises(UsageError, match="not empty"):
        split([path], tmp_path)
    split([path], tmp_path / "frames")
    with pytest.raises(UsageError, match="is a frame directory already: give it as the trajectory"):
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
