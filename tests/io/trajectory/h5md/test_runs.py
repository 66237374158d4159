"""Runs over H5MD, in HDF5 and in Zarr: cached and not, resumed, on several ranks, of a trajectory that changes."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from support import commands, needs
from support.ranks import run_under_mpiexec

import himach
from himach.frame import RawFrame
from himach.io.trajectory.origin import fingerprint_of, open_origin

from ..foreign import Seen, minimal_topology, read_frames, seen
from .trees import KINDS, theirs, tree, write

for package in ("h5py", "zarr"):
    needs.module(package)


class Bits(Seen):
    """What each frame holds, but for data, which no cache keeps."""

    def map(self, frame):
        plain = RawFrame(frame.number, frame.time, frame.positions, frame.box, frame.velocities, frame.forces, data={})
        yield "frames", seen(plain)[:-1]


def outcome(path: Path, **options: object) -> list[tuple]:
    """Return what frames a run saw, and whether it read the trajectory."""
    result = himach.run(Bits(), path, minimal_topology(path.parent, 7), progress=False, **options)
    return [*result.outcome, result.record["bytes"]["origin"] > 0]


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize("name", KINDS)
def test_cached_in_parts_and_whole(name, tmp_path):
    content = tree()
    expected = [frame[:-1] for frame in theirs(write(tmp_path / "twin.h5md", content))]
    path = write(tmp_path / name, content)
    place = tmp_path / "store"
    assert outcome(path, cache="off") == [*expected, True]
    assert outcome(path, cache=place, stop=5) == [*expected[:5], True]
    assert outcome(path, cache=place) == [*expected, True]
    assert outcome(path, cache=place) == [*expected, False]
    shutil.move(path, tmp_path / "away")
    assert outcome(path, cache=place) == [*expected, False]


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize("name", ["a.h5md", "a.3.zarr"])
def test_resumed(name, tmp_path):
    path = write(tmp_path / name, tree())
    pairs = tmp_path / "pairs"
    expected = outcome(path, cache="off")[:-1]
    assert outcome(path, cache="off", pairs=pairs, stop=7)[:-1] == expected[:7]
    result = himach.run(Bits(), path, minimal_topology(tmp_path, 7), progress=False, cache="off", pairs=pairs)
    assert (result.outcome, result.record["reused"]["frames"]) == (expected, 7)


def test_files_that_follow_one_another(tmp_path):
    content = tree()
    later = {
        path: (values[6:] if values is not None and path.endswith(("value", "step", "time")) else values, attributes)
        for path, (values, attributes) in content.items()
    }
    paths = [write(tmp_path / "one.h5md", content), write(tmp_path / "two.zarr", later)]
    with pytest.warns(UserWarning, match=r"6 frames of .*one\.h5md, from .* dropped: .*two\.zarr has them again"):
        origin = open_origin(paths)
    assert [frame[1:] for frame in read_frames(origin)] == [frame[1:] for frame in read_frames(open_origin(paths[:1]))]


@pytest.mark.nightly
@pytest.mark.slow
def test_three_ranks(tmp_path):
    run_under_mpiexec(Path(__file__).with_name("ranks_h5md.py"), 3, timeout=200)


def touch(path: Path) -> None:
    """Change a byte of a chunk of positions, whose codec has no checksum."""
    content = bytearray(path.read_bytes())
    content[40] ^= 255
    path.write_bytes(content)


def chunk_of(path: Path, number: int) -> Path:
    """Return the chunk of Zarr that has the positions of a frame."""
    (file, _) = open_origin([path]).files()[0]
    return next(Path(one) for one in file.files_of(np.array([number])) if "position" in one)


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize(("name", "number"), [("a.2.zarrmd", 6), ("a.3.zarr", 11)])
def test_a_chunk_that_changed_is_not_served_from_the_cache(name, number, tmp_path):
    path = write(tmp_path / name, tree(), compressors=None)
    place = tmp_path / "store"
    first = outcome(path, cache=place)
    touch(chunk_of(path, number))
    second = outcome(path, cache=place)
    assert second[:-1] != first[:-1]
    assert second == outcome(path, cache="off")
    assert outcome(path, cache=place) == [*second[:-1], False]


def test_a_copy_is_the_same_and_a_longer_one_is_another(tmp_path):
    path = write(tmp_path / "a.zarr", tree())
    place = tmp_path / "store"
    first = outcome(path, cache=place)
    told = fingerprint_of([path])
    assert told == open_origin([path]).fingerprint
    shutil.copytree(path, tmp_path / "copy")
    shutil.rmtree(path)
    (tmp_path / "copy").rename(path)
    assert outcome(path, cache=place) == [*first[:-1], False]
    shutil.rmtree(path)
    write(path, tree(16))
    assert fingerprint_of([path]) != told
    assert outcome(path, cache=place) == outcome(path, cache="off")


class Changing(Bits):
    """Changes the trajectory at a frame, before another is read."""

    path: str = ""
    change: str = ""

    def map(self, frame):
        if frame.number == 3:
            chunk = Path(self.path)
            touch(chunk) if self.change == "touch" else chunk.unlink()
        yield from super().map(frame)


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize(
    ("name", "change", "cache"),
    [("a.2.zarrmd", "touch", "kept"), ("a.3.zarr", "touch", "off"), ("a.3.zarr", "unlink", "kept")],
)
def test_a_change_during_a_run_is_told(name, change, cache, tmp_path):
    path = write(tmp_path / name, tree(), compressors=None)
    job = Changing(path=str(chunk_of(path, 11)), change=change)
    options = {"cache": tmp_path / "store" if cache == "kept" else "off", "progress": False}
    with pytest.raises(himach.TrajectoryError, match=rf"{name}.*(has changed since this run|is missing)"):
        himach.run(job, path, minimal_topology(tmp_path, 7), **options)


def test_commands(tmp_path):
    path = write(tmp_path / "a.zarrmd", tree())
    topology = minimal_topology(tmp_path, 7)
    store = {"HIMACH_CACHE": str(tmp_path / "store")}
    told = commands.himach("info", path, "--topology", topology, **store)
    assert told.returncode == 0, told.stderr
    assert "ZARRMD" in told.stdout and "positions, velocities, forces" in told.stdout
    assert commands.himach("stage", f"{path}/", **store).returncode == 0
    assert "all of 12 frames" in commands.himach("info", path, "--topology", topology, **store).stdout
    converted = commands.himach("convert", path, "--topology", topology, "--out", tmp_path / "b.trr", **store)
    assert converted.returncode == 0, converted.stderr
    pairs = zip(open_origin([path]).read(range(12)), open_origin([tmp_path / "b.trr"]).read(range(12)), strict=True)
    for frame, other in pairs:
        np.testing.assert_allclose(other.positions, frame.positions, rtol=0, atol=1e-5)
        np.testing.assert_allclose(other.velocities, frame.velocities, rtol=1e-6, atol=1e-9)
    refused = commands.himach("run", "rmsd", "--trajectory", path, **store)
    assert refused.returncode == 2 and "holds no topology; name a topology file, too" in refused.stderr
