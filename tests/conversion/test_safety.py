"""Conversions that are killed, ended, or fail: what was there before is there still, and nothing else."""

import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from MDAnalysisTests.datafiles import DCD, GRO, PSF, XTC
from support.commands import himach, killed_at_touch, processes_with, start_himach, wait_until
from support.needs import small_disk
from support.ranks import clean_environment, mpiexec

import himach as hm

pytestmark = pytest.mark.filterwarnings("ignore")
STEPS = ["--center", "protein", "--wrap", "residues", "--fit", "name CA"]


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


WRITES = """
import fcntl, os, sys
import himach
from himach.conversion.target_files import ConversionTarget

sync = ConversionTarget.sync

def synced(target):
    print(os.O_DSYNC & fcntl.fcntl(target.file, fcntl.F_GETFL) == os.O_DSYNC)
    sync(target)

ConversionTarget.sync = synced
himach.convert(*sys.argv[1:3], out=sys.argv[3], cache="off")
"""


@pytest.mark.parametrize(("nodes", "through"), [("nm", "True"), ("nn", "False")])
def test_ranks_of_several_nodes_write_through(tmp_path, nodes, through):
    """Two clients of NFS else leave zeros where frames of one end and those of the other begin."""
    words = [sys.executable, "-c", WRITES, XTC, GRO, str(tmp_path / "out.xtc")]
    done = mpiexec(nodes, words, disks=tmp_path, code=0)
    assert set(done.stdout.split()) == {through}


def test_kills_leave_no_half_file_and_inputs_as_they_were(tmp_path):
    """At any touch of a file; what is left of a killed conversion the next one takes away."""
    source, folder = tmp_path / "in.dcd", tmp_path / "out"
    source.write_bytes(Path(DCD).read_bytes())
    folder.mkdir()

    def convert():
        hm.convert(source, PSF, out=folder / "out.xtc", cache="off", fit="name CA")

    convert()
    whole, at, killed = content(folder), 0, True
    while killed:
        for path in folder.iterdir():
            path.unlink()
        at += 1
        killed = killed_at_touch(folder, at, convert)
        left = content(folder)
        assert all(left[name] == whole[name] for name in whole.keys() & left.keys()), at
        for name in whole.keys() & left.keys():
            (folder / name).unlink()
        convert()
        assert content(folder) == whole, at
    assert at > 5
    assert source.read_bytes() == Path(DCD).read_bytes()


@pytest.mark.nightly(but=2)
@pytest.mark.slow
@pytest.mark.parametrize("ranks", [[], ["-n", "2"]], ids=["alone", "two ranks"])
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signals_leave_no_file_and_no_process(long, tmp_path, ranks, signum, code):
    (tmp_path / "out.xtc").write_text("mine")
    mark, words = uuid.uuid4().hex, ["--out", tmp_path / "out.xtc", "--force", "--cache", "off", "-q", *STEPS]
    conversion = start_himach("convert", long, "-s", GRO, *words, *ranks, HIMACH_TEST_MARK=mark)
    assert wait_until(lambda: any(tmp_path.glob(".himach-*.xtc")))
    conversion.send_signal(signum)
    _, output = conversion.communicate(timeout=60)
    assert wait_until(lambda: not processes_with(mark), 10)
    assert (conversion.returncode, "Traceback" in output) == (code, False)
    assert content(tmp_path) == {"out.xtc": b"mine"}


@pytest.mark.slow
def test_a_script_that_is_terminated_leaves_no_file(long, tmp_path):
    program = f"import himach; himach.convert({str(long)!r}, {GRO!r}, out={str(tmp_path / 'out.xtc')!r}, cache='off')"
    with subprocess.Popen([sys.executable, "-P", "-W", "ignore", "-c", program], env=clean_environment()) as process:
        assert wait_until(lambda: any(tmp_path.glob(".himach-*.xtc")))
        process.terminate()
    assert process.returncode == -signal.SIGTERM
    assert content(tmp_path) == {}


def test_what_another_conversion_writes_stays(tmp_path):
    from himach.conversion.target_files import ConversionTarget, make_file

    path = tmp_path / "out.xtc"
    left, locked = make_file(path), make_file(path)
    assert not left.exists()
    target = ConversionTarget(path, locked)
    try:
        third = make_file(path)
        assert sorted(tmp_path.iterdir()) == sorted([locked, third])
    finally:
        target.close()


@pytest.mark.nightly(but=2)
@pytest.mark.parametrize(("suffix", "ranks"), [(".xtc", 1), (".xtc", 2), (".trr", 2), (".xyz", 1)])
def test_a_full_disk_is_told_and_leaves_what_was_there(tmp_path, suffix, ranks):
    with small_disk(tmp_path / "small", "size=600k") as disk:
        (disk / f"out{suffix}").write_text("mine")
        done = himach(
            "convert", DCD, "-s", PSF, "--out", disk / f"out{suffix}", "--force", "--cache", "off", "-q", "-n", ranks
        )
        assert (done.returncode, done.stdout) == (1, "")
        assert f"out{suffix} cannot be written (No space left on device)" in done.stderr
        assert content(disk) == {f"out{suffix}": b"mine"}


def test_a_disk_that_the_topology_fills(tmp_path):
    with small_disk(tmp_path / "small", "size=100k") as disk:
        (disk / "out.pdb").write_text("mine")
        done = himach("convert", DCD, "-s", PSF, "--out", disk / "out.xtc", "--force", "--cache", "off", "-q", code=1)
        assert "out.pdb cannot be written (No space left on device)" in done.stderr
        assert content(disk) == {"out.pdb": b"mine"}


def test_files_of_a_frame_directory_are_not_written(tmp_path):
    assert himach("split", XTC, tmp_path / "frames", "-s", GRO, "--frames-per-file", 5).returncode == 0
    file = next(path for path in (tmp_path / "frames").rglob("*.xtc"))
    before = content(file.parent)
    done = himach("convert", tmp_path / "frames", "--out", file, "--force", "--cache", "off", "-q")
    assert (done.returncode, "is what is read" in done.stderr) == (2, True)
    assert content(file.parent) == before
