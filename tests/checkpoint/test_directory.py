"""A directory of kept pairs: one run at a time, generations, and whose it is."""

import os
import subprocess
import sys

import pytest
from support.needs import sample

from himach.checkpoint.directory import MAP, PairsDirectory, is_private
from himach.errors import UsageError
from himach.examples import load

from .fingerprint.fingerprints import fingerprint_of

HOLDER = """
import sys
from pathlib import Path
from himach.checkpoint.directory import PairsDirectory
PairsDirectory(Path(sys.argv[1])).claim()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def directory(tmp_path):
    made = PairsDirectory(tmp_path / "pairs")
    made.claim()
    yield made
    made.release()


def test_generations_are_numbered_and_read_back(directory):
    identity = fingerprint_of(load("rmsd")())
    for number in (1, 2):
        begun = directory.begin("rmsd", identity)
        assert begun.number == number
        assert directory.generations("rmsd")[number - 1 :] == []
        begun.write()
    first, second = directory.generations("rmsd")
    assert (first.number, second.number, first.key == second.key) == (1, 2, False)
    assert first.fingerprint == second.fingerprint == identity
    assert directory.labels() == ["rmsd"]
    assert first.private
    directory.evict("rmsd", 1)
    assert [item.number for item in directory.generations("rmsd")] == [2]
    assert directory.begin("rmsd", identity).number == 3
    directory.evict("rmsd", 2)
    assert directory.labels() == []
    assert os.listdir(directory.path) == [".lock"]


def test_a_damaged_map_has_none(directory):
    """Whichever bit flips, wherever it is torn, whatever else it says, and where it is away."""
    begun = directory.begin("rmsd", fingerprint_of(load("rmsd")()))
    begun.write()
    data = (begun.path / MAP).read_bytes()
    contents = [b"", b"{}", b"[1]", b"\xff", b'{"digest": "0", "version": 1}']
    for place in sample(range(len(data)), 200):
        contents += [data[:place], data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :]]
    for content in contents:
        (begun.path / MAP).write_bytes(content)
        (result,) = directory.generations("rmsd")
        assert result.fingerprint is None
    (begun.path / MAP).unlink()
    (result,) = directory.generations("rmsd")
    assert result.fingerprint is None


def test_another_run_is_refused_by_name_and_a_dead_one_is_not(tmp_path):
    place = tmp_path / "pairs"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UsageError, match=rf"another run keeps its pairs there .*process {holder.pid} on"):
            PairsDirectory(place).claim()
        holder.kill()
    directory = PairsDirectory(place)
    directory.claim()
    directory.release()
    assert os.listdir(place) == []


def test_what_a_killed_run_was_writing_is_swept(tmp_path):
    folder = tmp_path / "pairs" / "rmsd" / "1"
    folder.mkdir(parents=True)
    (folder / ".0123.tmp").write_bytes(b"torn")
    (folder / "4567.pairs").write_bytes(b"whole")
    (tmp_path / "pairs" / ".nfs00000001").touch()  # a lock that was removed while it was open
    directory = PairsDirectory(tmp_path / "pairs")
    directory.claim()
    directory.release()
    assert os.listdir(folder) == ["4567.pairs"]


def test_other_directories_are_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"neither empty nor a directory of kept pairs .notes\.txt is in it"):
        PairsDirectory(tmp_path).claim()
    with pytest.raises(UsageError, match=r"notes\.txt is a file; name another"):
        PairsDirectory(tmp_path / "notes.txt").claim()
    assert os.listdir(tmp_path) == ["notes.txt"]


def test_only_what_nobody_else_can_write_is_private(directory):
    assert is_private(directory.path)
    assert is_private(directory.path / "not there")
    for mode, private in ((0o755, True), (0o775, False), (0o707, False), (0o700, True)):
        directory.path.chmod(mode)
        assert is_private(directory.path) is private
        assert directory.begin("rmsd", fingerprint_of(load("rmsd")())).private is private
    if os.geteuid() == 0:
        os.chown(directory.path, 65534, -1)
        assert not is_private(directory.path)
    (directory.path / "link").symlink_to(directory.path.parent)
    assert not is_private(directory.path / "link")
