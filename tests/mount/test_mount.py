"""Real mounts: what programs find in them, what ends them, and what does not."""

import contextlib
import errno
import os
import pwd
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from pathlib import Path

import MDAnalysis as mda
import numpy as np
import pytest
from MDAnalysisTests.datafiles import GRO, TRR, XTC
from scipy.io import netcdf_file
from support import needs
from support.cache_data import make
from support.commands import himach as command

from himach.io.store.store import Store

from .mounts import is_mount, mounted, until

FILES = ["trajectory.dcd", "trajectory.nc", "trajectory.trr"]
HALTING = (str(Path(__file__).with_name("halting.py")),)


def frames_of(topology, trajectory):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        universe = mda.Universe(str(topology), str(trajectory))
        return [
            (ts.time, ts.positions.copy(), ts.dimensions.copy(), ts.velocities.copy() if ts.has_velocities else None)
            for ts in universe.trajectory
        ]


def push(place, name, numbers, n_atoms=50):
    """What a server does with frames that a simulation pushes."""
    with Store(place).dataset(name) as dataset:
        for number in numbers:
            box = np.array([30, 30, 30, 90, 90, 90], np.float32)
            dataset.write(number, number * 2.0, box, np.full((n_atoms, 3), number, np.float32), native=True)


def positions_in(path, n_atoms=50):
    """The first coordinate of each frame of a TRR file, in Å."""
    content = np.frombuffer(path.read_bytes(), np.uint8)  # numpy.fromfile() tells of no error
    content = content.reshape(-1, 120 + 12 * n_atoms)
    return (np.ascontiguousarray(content[:, 120:124]).view(">f4")[:, 0] * 10).round().astype(int).tolist()


def test_every_format_has_the_frames_of_a_dataset_at_its_path_with_velocities(tmp_path):
    command("stage", TRR, "--topology", GRO, code=0)
    with mounted(tmp_path / "m") as mount:
        folder = mount.path / TRR.lstrip("/")
        assert sorted(os.listdir(folder)) == ["topology.gro", *FILES]
        assert (folder / "topology.gro").read_bytes() == Path(GRO).read_bytes()
        expected = frames_of(GRO, TRR)
        for name in FILES:
            result = frames_of(folder / "topology.gro", folder / name)
            for ours, theirs in zip(result, expected, strict=True):
                assert ours[0] == pytest.approx(theirs[0], rel=1e-6)
                np.testing.assert_allclose(ours[1], theirs[1], rtol=4e-7)
                np.testing.assert_allclose(ours[2], theirs[2], rtol=2e-6)
                if theirs[3] is not None and not name.endswith("dcd"):
                    np.testing.assert_allclose(ours[3], theirs[3], rtol=4e-7)
            assert (folder / name).stat().st_size == len((folder / name).read_bytes())


def test_nothing_can_be_written(tmp_path):
    command("stage", XTC, "--dataset", "adk", code=0)
    with mounted(tmp_path / "m") as mount:
        file = mount.path / "adk" / "trajectory.trr"
        for change in (
            lambda: file.open("r+b"),
            (mount.path / "new").touch,
            file.unlink,
            lambda: file.rename(mount.path / "other"),
            (mount.path / "adk").rmdir,
        ):
            with pytest.raises(OSError) as caught:
                change()
            assert caught.value.errno == errno.EROFS
        with pytest.raises(FileNotFoundError):
            (mount.path / "nobody").stat()
        with pytest.raises(NotADirectoryError):
            os.listdir(file)


def test_missing_frames_are_errors_that_the_log_explains(tmp_path):
    store = tmp_path / "store"
    push(store, "run7", [0, 1, 2, 5, 6], n_atoms=1000)  # a frame is some pages of memory, which are read whole
    with mounted(tmp_path / "m", "--cache", store) as mount:
        file = mount.path / "run7" / "trajectory.trr"
        with file.open("rb", buffering=0) as content:
            for number in range(7):
                content.seek(number * 12120 + 6000)
                if number in (3, 4):
                    with pytest.raises(OSError) as caught:
                        content.read(4)
                    assert caught.value.errno == errno.EIO
                else:
                    assert np.frombuffer(content.read(4), ">f4")[0] * 10 == pytest.approx(number)
        assert mount.says("frame 3")


def test_a_dataset_that_is_pushed_grows(tmp_path):
    """Also in the eyes of a program that has had a file open, as other files do."""
    store = tmp_path / "store"
    with mounted(tmp_path / "m", "--cache", store) as mount, contextlib.ExitStack() as stack:
        assert os.listdir(mount.path) == []
        file, netcdf = (mount.path / "run7" / f"trajectory.{kind}" for kind in ("trr", "nc"))
        for n_frames in (3, 8):
            push(store, "run7", range(n_frames))
            until(lambda n=n_frames: file.exists() and file.stat().st_size == n * 720, f"{n_frames} frames")
            assert positions_in(file) == list(range(n_frames))
            with netcdf_file(netcdf, mmap=False) as content:
                assert content.variables["coordinates"][:, 7, 1].tolist() == list(range(n_frames))
            if n_frames == 3:
                opened = stack.enter_context(file.open("rb"))
        assert len(opened.read()) == 8 * 720


def test_frames_that_the_store_lost_come_from_the_trajectory(tmp_path):
    topology, trajectory = make(tmp_path, 20)
    command("stage", trajectory, "--topology", topology, code=0)
    with mounted(tmp_path / "m") as mount:
        file = mount.path / os.fspath(trajectory).lstrip("/") / "trajectory.trr"
        size = file.stat().st_size
        for segment in Path(os.environ["HIMACH_CACHE"].replace("-{node}", "")).parent.rglob("*.seg"):
            segment.unlink()
        assert file.stat().st_size == size
        for item, other in zip(frames_of(topology, file), frames_of(topology, trajectory), strict=True):
            np.testing.assert_allclose(item[1], other[1], rtol=2e-7)


def test_odd_names(tmp_path):
    store = tmp_path / "store"
    names = ["with spaces & (brackets)", "ümläut", "new\nline", "a/b", "100%", "-rf", "\N{ROCKET}"]
    for name in names:
        push(store, name, range(3))
    with mounted(tmp_path / "m", "--cache", store) as mount:
        for name in names:
            assert positions_in(mount.path / name.replace("%", "%25") / "trajectory.trr") == [0, 1, 2]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_unmount(tmp_path, number):
    with mounted(tmp_path / "m") as mount:
        assert is_mount(mount.path)
        assert mount.end(number) == 0
        assert not is_mount(mount.path)
        assert not mount.path.exists()  # it was made


def test_a_signal_unmounts_while_a_file_is_open(tmp_path):
    store = tmp_path / "store"
    push(store, "run7", range(3))
    (tmp_path / "m").mkdir()
    with mounted(tmp_path / "m", "--cache", store) as mount:
        descriptor = os.open(mount.path / "run7" / "trajectory.trr", os.O_RDONLY)
        assert mount.end() == 0
        assert not is_mount(mount.path)
        with contextlib.suppress(OSError):  # the kernel tells that whom it told of the file has gone
            os.close(descriptor)
        assert list(mount.path.iterdir()) == []


@pytest.mark.parametrize("words", [["fusermount3", "-u"], ["umount"]])
def test_others_unmount(tmp_path, words):
    needs.program(words[0])
    if words == ["umount"]:
        needs.root("to unmount")
    with mounted(tmp_path / "m") as mount:
        subprocess.run([*words, mount.path], check=True)
        assert mount.process.wait(60) == 0
        assert not is_mount(mount.path)


def test_a_mount_that_was_killed_is_replaced(tmp_path):
    with mounted(tmp_path / "m") as first:
        first.end(signal.SIGKILL)
        assert is_mount(first.path)
        with mounted(tmp_path / "m") as second:
            assert os.listdir(second.path) == []
            assert second.end() == 0
        assert not is_mount(first.path)


def test_folders_that_cannot_be_mounted_on(tmp_path):
    needs.fuse()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    for place, why in (
        ("full", "not empty"),
        ("full/file", "Not a directory|File exists"),
        ("no/where", "No such file"),
    ):
        done = command("mount", tmp_path / place, code=2)
        assert any(item in done.stderr for item in why.split("|")), done.stderr


def test_nothing_waits_for_who_waits_for_frames(tmp_path):
    """Readers of frames that do not come take no thread from those who look around, or read others."""
    with mounted(tmp_path / "m", command=HALTING) as mount:
        file = mount.path / "halting" / "trajectory.trr"
        size = file.stat().st_size // 10
        script = (
            "import sys; f = open(sys.argv[1], 'rb'); f.seek(int(sys.argv[2])); print(len(f.read(100)), flush=True)"
        )
        stuck = [
            subprocess.Popen([sys.executable, "-c", script, str(file), str((3 + n % 7) * size)], stdout=subprocess.PIPE)
            for n in range(24)
        ]
        try:
            done = threading.Event()

            def look():
                for _ in range(50):
                    assert sorted(os.listdir(mount.path / "halting")) == FILES
                    assert file.stat().st_size == 10 * size
                    with pytest.raises(FileNotFoundError):
                        (mount.path / os.urandom(4).hex()).stat()
                done.set()

            thread = threading.Thread(target=look, daemon=True)
            thread.start()
            assert done.wait(60)
            assert [item.poll() for item in stuck] == [None] * 24
        finally:
            for item in stuck:
                item.kill()
        assert mount.end() == 0
        for item in stuck:
            item.wait(60)


def test_nobody_needs_root_and_nobody_else_looks_in(tmp_path):
    needs.root("to become another user")
    needs.program("fusermount3")
    if not os.path.exists("/dev/fuse") or os.stat("/dev/fuse").st_mode & 0o666 != 0o666:
        needs.skip("a /dev/fuse that others may open")
    user = pwd.getpwnam("nobody").pw_uid
    with tempfile.TemporaryDirectory(prefix="himach-test-") as place:
        os.chown(place, user, user)
        path = Path(place, "m")
        path.mkdir()
        os.chown(path, user, user)
        become = f"sys.argv.append('{user}'); runpy.run_path({HALTING[0]!r}, run_name='__main__')"
        command = ("-c", f"import runpy, sys, mfusepy; {become}")
        with mounted(path, command=command) as mount:
            words = ["/bin/ls", path / "halting"]
            listing = subprocess.run(words, user=user, group=user, stdout=subprocess.PIPE, check=True)
            assert listing.stdout.decode().split() == FILES
            with pytest.raises(PermissionError):
                os.listdir(path)
            assert mount.end() == 0
            assert not is_mount(path)


@pytest.mark.nightly
def test_a_file_of_that_name_is_no_dataset(tmp_path, monkeypatch):
    store = tmp_path / "store"
    push(store, "run7", range(3))
    push(store, "tmp", range(3))  # what mounts has the root as its directory
    (tmp_path / "run7").write_text("something else")
    monkeypatch.chdir(tmp_path)
    with mounted(Path("m"), "--cache", "store") as mount:
        for name in ("run7", "tmp"):
            assert positions_in(mount.path / name / "trajectory.trr") == [0, 1, 2]


@pytest.mark.parametrize(("hide", "why"), [("mfusepy", "himach[mount]"), ("ctypes.util", "libfuse")])
def test_what_is_not_installed_is_named(tmp_path, hide, why):
    script = {
        "mfusepy": "import sys; sys.modules['mfusepy'] = None",
        "ctypes.util": "import os; os.environ['FUSE_LIBRARY_NAME'] = 'nosuchlibrary'",
    }[hide]
    program = f"{script}; from himach.cli import main; import sys; sys.argv[0] = 'himach'; main()"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, "mount", str(tmp_path / "m")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert why in done.stderr
    assert not (tmp_path / "m").exists()
