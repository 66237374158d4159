"""Failures of the file system under a trajectory: tried again a few times, then told by name."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cache_data import analyse, bits, make

import himach
from himach.io.trajectory import retry
from himach.io.trajectory.origin import open_origin

from .failing_folder import FailingFolder, failing_folder

NAMES = ["md.trr", "md.xtc", "md.dcd", "md.xyz"]


@pytest.fixture
def mounted(tmp_path, monkeypatch) -> Iterator[tuple[FailingFolder, Path]]:
    monkeypatch.setattr(retry, "PAUSES", (0.01, 0.01, 0.01))
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # readers of MDAnalysis that could not open or close
    content = tmp_path / "content"
    content.mkdir()
    with failing_folder(content, tmp_path / "mounted", tmp_path / "control") as folder:
        yield folder, content


def bytes_of(path: Path, topology: Path) -> list[bytes]:
    origin = open_origin([path], topology)
    return [frame.positions.tobytes() for frame in origin.read(range(origin.n_frames))]


@pytest.mark.nightly(but=4)
@pytest.mark.parametrize(("number", "call"), [(errno.EIO, "read"), (errno.ESTALE, "read"), (errno.ESTALE, "open")])
@pytest.mark.parametrize("name", NAMES)
def test_what_passes_ends_no_run(mounted, name, number, call):
    folder, content = mounted
    topology, trajectory = make(content, name=name)
    expected = bytes_of(trajectory, topology)
    origin = open_origin([folder.path / name], topology)
    found = []
    for frame in origin.read(range(origin.n_frames)):
        if frame.number in (10, 40):
            if call == "open":
                origin.close()
            folder.fail(number, call, count=2)
        found.append(frame.positions.tobytes())
    assert found == expected
    assert folder.failed() >= 2


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize(("number", "cache"), [(errno.EIO, "kept"), (errno.ESTALE, "off")])
@pytest.mark.parametrize("name", ["md.trr", "md.dcd"])
def test_what_passes_while_a_run_opens(mounted, tmp_path, name, number, cache):
    folder, content = mounted
    topology, trajectory = make(content, name=name)
    expected = analyse(trajectory, topology, cache="off")
    for after in (0, 3, 8):
        folder.fail(number, "read", after=after, count=2)
        store = tmp_path / f"store-{after}" if cache == "kept" else "off"
        result = analyse(folder.path / name, topology, cache=store)
        assert bits(result.outcome) == bits(expected.outcome)
    assert folder.failed() >= 4


@pytest.mark.parametrize("name", ["md.xtc", "md.dcd"])
def test_what_stays_is_told(mounted, name):
    folder, content = mounted
    topology, _ = make(content, name=name)
    origin = open_origin([folder.path / name], topology)
    reading = origin.read(range(origin.n_frames))
    next(reading)
    folder.fail(errno.EIO, count=10**6)
    with pytest.raises(himach.TrajectoryError, match=rf"frame \d+ of the dataset cannot be read from {folder.path}"):
        for _ in reading:
            pass
    with pytest.raises(himach.TrajectoryError, match=rf"{folder.path / name} cannot be read"):
        analyse(folder.path / name, topology, cache="off")
