"""Files that follow one another, and folders of files of one frame."""

import json
import os
import re
import shutil
import warnings
from unittest.mock import Mock

import MDAnalysis as mda
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from MDAnalysisTests import datafiles as data
from support.io_samples import FORMATS, copied, make
from support.needs import small_disk

from himach.conversion import split as split_module
from himach.conversion.split import split
from himach.errors import HimachError, TrajectoryError, UsageError
from himach.io.trajectories.frame_directory import Manifest
from himach.io.trajectories.origin import open_origin

from .trajectory_formats import Sample, TrajectoryFormatTests

WAY_OUT = r"look like two simulations, not like a restart: give .* as --ensemble .* or leave out the file"


def times(origin):
    return [round(frame.time, 4) for frame in origin.read(range(origin.n_frames))]


def test_numbers_run_through(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        origin = open_origin([make(tmp_path / "a.xtc", [0, 1, 2]), make(tmp_path / "b.trr", [3, 4])])
    assert times(origin) == [0, 1, 2, 3, 4]
    assert [frame.number for frame in origin.read([4, 1])] == [4, 1]
    assert origin.dt(range(5)) == 1
    assert origin.paths == (str(tmp_path / "a.xtc"), str(tmp_path / "b.trr"))


@pytest.mark.parametrize(
    ("earlier", "later", "words", "expected"),
    [
        ([*range(5)], [3, 4, 5], r"2 frames of .*a\.xtc, from 3 ps on, dropped: .*b\.trr has", [*range(6)]),
        # What the earlier file has beyond the later one's end belongs to another course of the simulation.
        ([*range(6)], [3, 4], r"3 frames of .*b\.trr begins anew there, .* ends at 4 ps .* to 5 ps", [*range(5)]),
        ([0, 0.1, 0.2, 0.7], [0.7 + 1e-8, 0.8], r"1 frame of .*a\.xtc, from 0\.7 ps on", [0, 0.1, 0.2, 0.7, 0.8]),
    ],
    ids=["again", "ends earlier", "in float32"],
)
def test_frames_written_again_are_dropped(tmp_path, earlier, later, words, expected):
    paths = [make(tmp_path / "a.xtc", earlier), make(tmp_path / "b.trr", later)]
    with pytest.warns(UserWarning, match=words):
        origin = open_origin(paths)
    assert times(origin) == expected
    assert origin.locate(len(expected) - len(later)) == (str(tmp_path / "b.trr"), 0)


@pytest.mark.parametrize("later", [[5, 6, 7], [5, 6, 7, 8, 9], [5, 6], [5], [5 + 1e-6, 6]])
def test_files_that_begin_at_the_same_time_are_no_restart(tmp_path, later):
    paths = [make(tmp_path / "a.xtc", [5, 6, 7]), make(tmp_path / "b.trr", later)]
    with pytest.raises(UsageError, match=rf"a\.xtc and .*b\.trr both begin at 5 ps, so they {WAY_OUT}.* keyword dt"):
        open_origin(paths)


@pytest.mark.parametrize("later", [[0, 1, 2], [0, 1, 2, 3, 4, 5, 6]], ids=["before", "before and beyond"])
def test_files_out_of_order(tmp_path, later):
    a, b = make(tmp_path / "a.xtc", later), make(tmp_path / "b.xtc", [3, 4])
    with pytest.raises(TrajectoryError, match=r"a\.xtc begins at 0 ps .* b?.*b\.xtc, at 3 ps.* as --ensemble"):
        open_origin([b, a])


def test_time_runs_backwards_within_a_file(tmp_path):
    path = make(tmp_path / "a.xtc", [0, 1, 2, 1.5, 3])
    with pytest.raises(TrajectoryError, match=r"a\.xtc: .*from 2 ps to 1\.5 ps at frame 3"):
        open_origin([path])
    assert open_origin([path], keywords={"dt": 1.0}).n_frames == 5


def test_other_atoms(tmp_path):
    paths = [make(tmp_path / "a.xtc", [0]), make(tmp_path / "b.xtc", [1], n_atoms=41)]
    with pytest.raises(TrajectoryError, match=r"a\.xtc has 40 atoms, .*b\.xtc has 41"):
        open_origin(paths)


def cut_to(path, first):
    """Return a copy of a file of ten frames of text of equally many lines, without the first of them."""
    lines = path.read_text().splitlines(keepends=True)
    shorter = path.with_name(f"from{first}{path.suffix}")
    shorter.write_text("".join(lines[first * len(lines) // 10 :]))
    return shorter


def test_formats_without_times_follow_one_another(tmp_path):
    _, first = copied("XYZ", tmp_path)
    origin = open_origin([first, cut_to(first, 3), cut_to(first, 9)])
    assert times(origin) == list(range(18))


@pytest.mark.parametrize("order", [[0, 0], [0, 3, 0], [3, 0, 9, 3]])
def test_formats_without_times_that_begin_with_the_same_frame(tmp_path, order):
    _, first = copied("XYZ", tmp_path)
    paths = []
    for place, begin in enumerate(order):
        paths.append(tmp_path / f"{place}.xyz")
        shutil.copy(cut_to(first, begin), paths[-1])
    one = order.index(order[-1])
    with pytest.raises(
        UsageError, match=rf"the first frames of .*/{one}\.xyz and .*/{place}\.xyz are equal, so they {WAY_OUT}"
    ):
        open_origin(paths)


@pytest.mark.parametrize("first", [[0, 1, 2], [0], [0, 7]])
def test_files_with_dt_that_begin_with_the_same_frame(tmp_path, first):
    paths = [make(tmp_path / "a.xtc", [0, 1, 2]), make(tmp_path / "b.xtc", [1, 2]), make(tmp_path / "c.xtc", first)]
    with pytest.raises(UsageError, match=rf"the first frames of .*a\.xtc and .*c\.xtc are equal, so they {WAY_OUT}"):
        open_origin(paths, keywords={"dt": 2.0})


def test_a_restart_with_dt_repeats_what_it_wrote_again(tmp_path):
    paths = [make(tmp_path / "a.xtc", [0, 1, 2]), make(tmp_path / "b.xtc", [2, 3])]
    assert times(open_origin(paths, keywords={"dt": 2.0})) == [0, 2, 4, 6, 8]


def test_a_first_frame_that_cannot_be_read_is_told_of_where_it_is_wanted(tmp_path):
    paths = [make(tmp_path / "a.xtc", [0, 1, 2]), make(tmp_path / "b.xtc", [0, 1, 2])]
    content = bytearray(paths[1].read_bytes())
    content[76:80] = b"\xff" * 4  # least coordinate behind the greatest
    paths[1].write_bytes(content)
    origin = open_origin(paths, keywords={"dt": 1.0})
    assert [frame.time for frame in origin.read([2, 4])] == [2, 4]
    with pytest.raises(TrajectoryError, match="frame 3 of the dataset"):
        list(origin.read([3]))


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(starts=st.lists(st.integers(0, 12), min_size=1, max_size=4), lengths=st.lists(st.integers(1, 8), min_size=4))
def test_joined_times_are_those_of_the_latest_files(tmp_path, starts, lengths):
    starts = sorted(starts)
    runs = [list(range(start, start + length)) for start, length in zip(starts, lengths, strict=False)]
    paths = [make(tmp_path / f"{i}.xtc", run) for i, run in enumerate(runs)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            origin = open_origin(paths)
        except UsageError as error:
            assert "both begin at" in str(error)
            assert len(set(starts)) < len(starts)
            return
    assert len(set(starts)) == len(starts)
    expected: list[int] = []
    for run in runs:
        expected = [time for time in expected if time < run[0]] + run
    assert times(origin) == expected


class TestFrameDirectory(TrajectoryFormatTests):
    message = r"{path}/frames-000001\.(xtc|trr)"

    @pytest.fixture(params=["xtc", "trr"])
    def sample(self, request, tmp_path):
        trajectory = make(tmp_path / f"a.{request.param}", [0.5 * number for number in range(8)], velocities=True)
        split([trajectory], tmp_path / "frames", frames_per_file=3)
        return Sample(tmp_path / "frames", twin=trajectory)

    def damages(self, sample, number):
        file = sample.path / f"frames-000001{sample.twin.suffix}"
        content = file.read_bytes()
        other_atoms = make(file.with_name(f"b{file.suffix}"), [3, 4, 5], n_atoms=41).read_bytes()
        for wrong in (content[:-8], content + content, b"", other_atoms):
            file.write_bytes(wrong)
            yield range(3, 6)


def test_bytes_are_copied(tmp_path):
    paths = [make(tmp_path / "a.xtc", [0, 1, 2]), make(tmp_path / "b.xtc", [3, 4])]
    split(paths, tmp_path / "frames", frames_per_file=1)
    names = sorted(path for path in os.listdir(tmp_path / "frames") if path.startswith("frames-"))
    copies = b"".join((tmp_path / "frames" / name).read_bytes() for name in names)
    assert len(names) == 5
    assert copies == b"".join(path.read_bytes() for path in paths)
    origin = open_origin([tmp_path / "frames"])
    assert origin.nbytes(range(5)) == len(copies)


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
    (tmp_path / "frames" / "himach.json").unlink()
    with pytest.raises(UsageError, match=r"no frame directory .*written last"):
        open_origin([tmp_path / "frames"])


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


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("himach.json", lambda whole: b"{"),
        ("times.npy", lambda whole: b"\x93NUMPY"),
        ("times.npy", lambda whole: whole[:-1]),
        ("times.npy", lambda whole: whole + bytes(8)),
        ("times.npy", lambda whole: whole.replace(b"<f8", b"<i8")),
        ("times.npy", lambda whole: whole[:6] + b"\x02" + whole[7:]),  # its version
        ("times.npy", lambda whole: whole.replace(b"'shape'", b"'shap,'")),
    ],
)
def test_damaged_manifest_and_times(tmp_path, name, damage):
    split([make(tmp_path / "a.xtc", [0, 1, 2])], tmp_path / "frames")
    path = tmp_path / "frames" / name
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(TrajectoryError, match=re.escape(name)):
        open_origin([tmp_path / "frames"])


def test_an_interrupted_split_leaves_nothing_and_can_be_repeated(tmp_path, monkeypatch):
    path = make(tmp_path / "a.xtc", list(range(6)))
    folder = tmp_path / "frames"
    with monkeypatch.context() as patch:
        patch.setattr(Manifest, "write", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            split([path], folder, frames_per_file=2)
        assert not folder.exists()
        folder.mkdir()
        with pytest.raises(KeyboardInterrupt):
            split([path], folder, frames_per_file=2)
        assert list(folder.iterdir()) == []
    (tmp_path / "link").symlink_to("frames")
    before = folder.stat().st_ino  # which a shell may be in
    split([path], tmp_path / "link", frames_per_file=2)
    assert folder.stat().st_ino == before
    assert [frame.time for frame in open_origin([folder]).read(range(6))] == list(range(6))


def test_two_splits_into_a_folder_at_once_do_not_mix(tmp_path, monkeypatch):
    path, folder, check = make(tmp_path / "a.xtc", list(range(6))), tmp_path / "frames", split_module._check

    def check_before_another(folder):
        check(folder)
        monkeypatch.setattr(split_module, "_check", check)
        split([path], folder, frames_per_file=3)

    monkeypatch.setattr(split_module, "_check", check_before_another)
    with pytest.raises(UsageError, match=f"another split writes to {folder}"):
        split([make(tmp_path / "b.xtc", [7])], folder)
    assert times(open_origin([folder])) == list(range(6))


def test_a_split_that_fails_leaves_files_of_others(tmp_path, monkeypatch):
    folder = tmp_path / "frames"
    monkeypatch.setattr(Manifest, "write", lambda manifest, path: (folder / "notes").touch() or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        split([make(tmp_path / "a.xtc", [0, 1])], folder)
    assert [file.name for file in folder.iterdir()] == ["notes"]


def test_a_split_that_fills_the_disk_leaves_nothing(tmp_path):
    path = make(tmp_path / "a.xtc", list(range(6)), 10_000)
    with small_disk(tmp_path / "small", "size=64k") as disk:
        with pytest.raises(HimachError, match=f"{disk} cannot be written .*No space left"):
            split([path], disk)
        assert list(disk.iterdir()) == []
