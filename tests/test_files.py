"""Files that appear whole or not at all; directories that one process works in."""

import os
import stat

import pytest

from himach.errors import HimachError
from himach.files import whole_file, write_bytes
from himach.locks import locked


def test_a_file_has_its_name_when_all_is_written(tmp_path):
    path = tmp_path / "some"
    path.write_bytes(b"before")
    with whole_file(path, mode=0o600, sync=True) as file:
        file.write(b"after")
        file.flush()
        assert path.read_bytes() == b"before"
    assert path.read_bytes() == b"after"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["some"]


@pytest.mark.parametrize("there", [False, True])
def test_of_what_fails_nothing_is_left(tmp_path, there):
    path = tmp_path / "some"
    if there:
        path.write_bytes(b"before")

    def write():
        with whole_file(path) as file:
            file.write(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write()
    assert [one.read_bytes() for one in tmp_path.iterdir()] == [b"before"] * there


def test_a_file_that_is_there_stays_where_that_is_asked(tmp_path):
    path = tmp_path / "some"
    path.write_bytes(b"before")
    with pytest.raises(FileExistsError), whole_file(path, replace=False) as file:
        file.write(b"after")
    assert [one.read_bytes() for one in tmp_path.iterdir()] == [b"before"]


def test_what_cannot_be_written_is_named(tmp_path):
    with pytest.raises(HimachError, match="nowhere/some cannot be written"):
        write_bytes(tmp_path / "nowhere" / "some", b"")


def test_who_does_not_let_go_of_a_lock_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("himach.locks.PATIENCE", 0.05)
    with locked(tmp_path):  # by another descriptor, as of another process
        refused = pytest.raises(
            HimachError, match=f"locked for 0.05 s by process {os.getpid()}: let it go on, or end it"
        )
        with refused, locked(tmp_path):
            pass
    with locked(tmp_path):
        pass
