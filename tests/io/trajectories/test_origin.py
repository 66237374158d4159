"""Origins: files by number, what is said of them, patience with a network's disk, keywords of MDAnalysis."""

import bz2
import contextlib
import errno
import pickle
from pathlib import Path

import numpy as np
import pytest
from MDAnalysisTests import datafiles as data
from support.cache_data import analyse, bits
from support.cache_data import make as make_of_cache_data
from support.io_samples import copied, make

from himach.errors import TrajectoryError, UsageError
from himach.io.trajectories import file_failures, open_file
from himach.io.trajectories.keywords import check
from himach.io.trajectories.origin import open_origin
from himach.io.universe.topology import load_topology


def test_unpickled_xyz_counts_no_lines(tmp_path, monkeypatch):
    _, trajectory = copied("XYZ", tmp_path)
    state = pickle.dumps(open_origin([trajectory]))
    monkeypatch.setattr("MDAnalysis.coordinates.XYZ.XYZReader._read_xyz_n_frames", None)
    assert len(list(pickle.loads(state).read([9, 0]))) == 2


def test_times_and_dt(tmp_path):
    even = open_origin([make(tmp_path / "even.xtc", [0.1 * i for i in range(30)])])
    assert even.dt(range(0, 30)) == pytest.approx(0.1, abs=1e-7)
    assert even.dt(range(0, 30, 3)) == pytest.approx(0.3, abs=1e-7)
    assert even.dt(range(4, 5)) is None
    assert even.timestep == pytest.approx(0.1)
    uneven = open_origin([make(tmp_path / "uneven.xtc", [0, 1, 2, 4, 6])])
    assert uneven.dt(range(5)) is None
    assert uneven.dt(range(0, 5, 2)) is None
    assert uneven.dt(range(2, 5)) == 2
    np.testing.assert_array_equal(uneven.times(range(5)), [0, 1, 2, 4, 6])
    np.testing.assert_array_equal(uneven.times(np.array([3, 0])), [4, 0])


def write_text(path, text):
    with bz2.open(path, "wt") if path.suffix == ".bz2" else path.open("w") as file:
        file.write(text)
    return path


@pytest.mark.parametrize("packing", ["", ".bz2"])
def test_files_that_readers_misread_are_refused_or_warned_of(tmp_path, packing):
    frame = "water\n    1\n    1SOL     OW    1   0.100   0.200   0.300\n   3.00000   3.00000   3.00000\n"
    several = write_text(tmp_path / f"several.gro{packing}", 2 * frame)
    single = write_text(tmp_path / f"single.gro{packing}", frame)
    with pytest.raises(TrajectoryError, match=rf"several\.gro{packing} has several frames"):
        open_origin([several])
    assert open_origin([single]).n_frames == 1
    extended = '1\nLattice="9 0 0 0 9 0 0 0 9" Properties=species:S:1:pos:R:3\nAr 1 2 3\n'
    boxed = write_text(tmp_path / f"boxed.xyz{packing}", extended)
    with pytest.warns(UserWarning, match=r"the box that Lattice= tells is not read"):
        open_origin([boxed])


@pytest.mark.parametrize("packing", ["", ".bz2"])
@pytest.mark.parametrize(
    ("columns", "tilt", "warning"), [("x y z", "", None), ("xs ys zs", "", "displaced"), ("x y z", " 1", None)]
)
def test_image_flags_of_lammps_are_read_right_or_refused(tmp_path, columns, tilt, warning, packing):
    path, bounds = tmp_path / f"a.lammpsdump{packing}", "\n".join(f"-2 8{tilt}" for _ in range(3))
    heads = (f"ITEM: TIMESTEP\n{step}\nITEM: NUMBER OF ATOMS\n1\nITEM: BOX BOUNDS" for step in (0, 1))
    rest = f"{' xy xz yz' * bool(tilt)} pp pp pp\n{bounds}\nITEM: ATOMS id {columns} ix iy iz\n1 .5 .5 .5 1 0 0\n"
    write_text(path, "".join(head + rest for head in heads))
    with pytest.warns(UserWarning, match=warning) if warning else contextlib.nullcontext():
        open_origin([path], keywords={"dt": 1.0})
    if columns == "x y z" and not tilt:
        origin = open_origin([path], keywords={"dt": 1.0, "unwrap_images": True})
        np.testing.assert_array_equal(next(iter(origin.read([0]))).positions, [[12.5, 2.5, 2.5]])
    else:
        with pytest.raises(TrajectoryError, match=r"MDAnalysis unwraps columns x, y, z alone"):
            open_origin([path], keywords={"dt": 1.0, "unwrap_images": True})


def test_missing_file_gets_a_hint(tmp_path):
    make(tmp_path / "production.xtc", [0, 1])
    with pytest.raises(UsageError, match=r"prodution\.xtc; did you mean .*production\.xtc"):
        open_origin([tmp_path / "prodution.xtc"])
    with pytest.raises(UsageError, match=r"folder .* does not exist"):
        open_origin([tmp_path / "nowhere" / "a.xtc"])
    with pytest.raises(UsageError, match="no trajectory given"):
        open_origin([])


def test_no_trajectory(tmp_path):
    (tmp_path / "notes.foo").write_text("notes")
    with pytest.raises(UsageError, match="format"):
        open_origin([tmp_path / "notes.foo"])
    with pytest.raises(UsageError, match="himach split"):
        open_origin([tmp_path])


def test_keywords_that_mean_nothing_here(tmp_path):
    path = make(tmp_path / "a.xtc", [0])
    for name in ("in_memory", "transformations", "sub"):
        with pytest.raises(UsageError, match=name):
            open_origin([path], keywords={name: True})


def test_format_keyword_and_content(tmp_path):
    path = make(tmp_path / "a.xtc", [0, 1]).rename(tmp_path / "frames.part0002")
    assert open_origin([path]).kinds == ("XTC",)
    assert open_origin([path], keywords={"format": "XTC"}).n_frames == 2


NAMES = ["md.trr", "md.xtc", "md.dcd", "md.xyz"]


class Failing:
    """Does what a function does, but fails so many times first, where `place` is the first of its numbers."""

    def __init__(self, function, number: int, count: int, place: int | None = None) -> None:
        self.function, self.number, self.left, self.place = function, number, count, place

    def __call__(self, *words, **options):
        if self.left and self.place in (None, *words[1:2]):
            self.left -= 1
            raise OSError(self.number, "it failed")
        return self.function(*words, **options)


@pytest.fixture
def impatient(monkeypatch) -> None:
    monkeypatch.setattr(file_failures, "PAUSES", (0.0, 0.0, 0.0))


def read_failing(folder: Path, monkeypatch, name: str, number: int, count: int) -> None:
    """Read a trajectory one of whose frames fails so many times; check that the others are right."""
    topology, trajectory = make_of_cache_data(folder, name=name)
    origin = open_origin([trajectory], topology)
    expected = [frame.positions.tobytes() for frame in origin.read(range(origin.n_frames))]
    kind = type(origin.files[0])
    failing = Failing(kind.read, number, count, 10)
    monkeypatch.setattr(kind, "read", lambda file, index, needed=None: failing(file, index, needed))
    found = [frame.positions.tobytes() for frame in origin.read(range(origin.n_frames))]
    assert found == expected
    assert not failing.left


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
@pytest.mark.parametrize("name", NAMES)
def test_what_passes_ends_no_run(impatient, tmp_path, monkeypatch, name, number):
    read_failing(tmp_path, monkeypatch, name, number, 3)


@pytest.mark.parametrize(("number", "count"), [(errno.EIO, 4), (errno.ENOENT, 1)])
@pytest.mark.parametrize("name", NAMES)
def test_what_stays_is_told(impatient, tmp_path, monkeypatch, name, number, count):
    with pytest.raises(TrajectoryError, match=rf"frame 10 of the dataset cannot be read from {tmp_path / name}"):
        read_failing(tmp_path, monkeypatch, name, number, count)


@pytest.mark.parametrize("cache", ["kept", "off"])
def test_what_fails_while_a_run_opens_is_tried_again_or_told(impatient, tmp_path, monkeypatch, cache):
    topology, trajectory = make_of_cache_data(tmp_path, name="md.trr")
    expected = analyse(trajectory, topology, cache="off")
    store = tmp_path / "store" if cache == "kept" else "off"
    opening = "himach.io.trajectories.origin.open_file"
    monkeypatch.setattr(opening, Failing(open_file.open_file, errno.EIO, 3))
    assert bits(analyse(trajectory, topology, cache=store).outcome) == bits(expected.outcome)
    monkeypatch.setattr(opening, Failing(open_file.open_file, errno.EIO, 99))
    with pytest.raises(TrajectoryError, match=rf"{trajectory} cannot be read: it failed"):
        analyse(trajectory, topology, cache="off")


@pytest.mark.parametrize(
    ("keyword", "told"),
    [
        ("dtt", "did you mean 'dt'"),
        ("time_ofset", "did you mean 'time_offset'"),
        ("to_gues", "did you mean 'to_guess'"),
    ],
)
def test_unknown_keywords_are_refused_by_name(keyword, told, tmp_path):
    with pytest.raises(UsageError, match=rf"no keyword '{keyword}'.*{told}"):
        open_origin([make(tmp_path / "a.xtc", [0, 1])], keywords={keyword: 2})


def test_keywords_of_the_topology_are_known(tmp_path):
    trajectory = make(tmp_path / "a.xtc", [0, 1], n_atoms=10)
    open_origin([data.LAMMPSdcd2], data.LAMMPSdata2, {"format": "LAMMPS", "atom_style": "id resid type charge x y z"})
    open_origin([trajectory], data.PDB_icodes, {"force_chainids_to_segids": True})
    check({"HEAVY_H": 1}, "top.itp")  # defines a word of the file


@pytest.mark.parametrize("value", ["abc", 0, -1.0, float("nan"), float("inf"), True, [1]])
@pytest.mark.parametrize("path", [data.DCD, data.XTC])
def test_dt_is_a_number_above_0(value, path):
    with pytest.raises(UsageError, match=r"keyword dt=.*a number of ps above 0"):
        open_origin([path], keywords={"dt": value})


def test_values_of_keywords_that_cannot_be_meant():
    with pytest.raises(UsageError, match=r"time_offset='x'.*a number of ps"):
        open_origin([data.XTC], keywords={"time_offset": "x"})
    for value in ("bonds", 5):
        with pytest.raises(UsageError, match=r"to_guess=.*a list of names"):
            open_origin([data.XTC], data.GRO, {"to_guess": value})
    origin = open_origin([data.XTC], data.GRO)
    with pytest.raises(UsageError, match="no topology that MDAnalysis reads"):
        load_topology(data.GRO, origin, {"topology_format": 5})
