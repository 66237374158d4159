"""H5MD in runs, and what is refused of it."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from support import needs
from support.cache_data import Emit, analyse, bits

import himach
from himach.errors import TrajectoryError, UsageError
from himach.io.trajectories.origin import open_origin, read_fingerprint

from ..trajectory_formats import read_frames
from .trees import BASE, KINDS, Tree, theirs, tree, write

for package in ("h5py", "zarr"):
    needs.module(package)


def minimal_topology(folder: Path) -> Path:
    """Write a topology of seven atoms."""
    path = folder / "top.xyz"
    path.write_text("7\n\n" + "C 0 0 0\n" * 7)
    return path


def outcome(path: Path, **options: object) -> list[bytes | bool]:
    """Return what frames a run saw, and whether it read the trajectory."""
    result = analyse(path, minimal_topology(path.parent), **options)
    return [*bits(result.outcome), result.record["bytes"]["origin"] > 0]


def touch(path: Path) -> None:
    """Change a byte of a chunk of positions, whose codec has no checksum."""
    content = bytearray(path.read_bytes())
    content[40] ^= 255
    path.write_bytes(content)


def chunk_of(path: Path, number: int) -> Path:
    """Return the chunk of Zarr that has the positions of a frame."""
    file = open_origin([path]).files[0]
    return next(Path(one) for one in file.frame_files(np.array([number])) if "position" in one)


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
    told = read_fingerprint([path])
    assert told == open_origin([path]).fingerprint
    shutil.copytree(path, tmp_path / "copy")
    shutil.rmtree(path)
    (tmp_path / "copy").rename(path)
    assert outcome(path, cache=place) == [*first[:-1], False]
    shutil.rmtree(path)
    write(path, tree(16))
    assert read_fingerprint([path]) != told
    assert outcome(path, cache=place) == outcome(path, cache="off")


class Changing(Emit):
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
    place = tmp_path / "store" if cache == "kept" else "off"
    with pytest.raises(himach.TrajectoryError, match=rf"{name}.*(has changed since this run|is missing)"):
        analyse(path, minimal_topology(tmp_path), job, cache=place)


def without(*paths: str) -> Tree:
    """Return a tree without what begins so."""
    return {path: values for path, values in tree().items() if not path.startswith(paths)}


def changed(path: str, values: object, **attributes: object) -> Tree:
    """Return a tree with another array."""
    return {**tree(), path: (values, attributes)}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (without("particles"), "no group particles, which H5MD asks for"),
        (without(f"{BASE}/position"), f"no array {BASE}/position/value"),
        (without(f"{BASE}/position/step"), f"no array {BASE}/position/step"),
        (without(f"{BASE}/box"), f"no group {BASE}/box"),
        ({**without(BASE), "particles": (None, {})}, "no group particles/...; there are: none"),
        (tree(units={"position": None}), f"{BASE}/position/value has no unit; .*convert_units=False"),
        (tree(units={"time": None}), f"{BASE}/position/time has no unit; .*convert_units=False"),
        (tree(units={"velocity": "knots"}), f"{BASE}/velocity/value has the unit 'knots', which MDAnalysis has not"),
        ({**tree(), f"{BASE}/box": (None, {"dimension": 2})}, "its box has 2 dimensions"),
        (changed(f"{BASE}/force/value", np.ones((12, 6, 3)), unit="N"), r"force/value has the shape \(12, 6, 3\)"),
        (changed(f"{BASE}/position/value", np.ones((12, 7)), unit="nm"), r"position/value has the shape \(12, 7\)"),
        (changed(f"{BASE}/box/edges/value", np.ones((12, 2)), unit="nm"), r"edges/value has the shape \(12, 2\)"),
        (changed(f"{BASE}/box/edges/step", np.arange(12) * 100), "has no box at step 50, where there are positions"),
    ],
)
def test_what_is_no_trajectory_is_told(content, words, tmp_path):
    for name, kind in (("a.h5md", "H5MD"), ("a.3.zarr", "ZARRMD")):
        path = write(tmp_path / name, content)
        with pytest.raises(TrajectoryError, match=f"{path} cannot be read as {kind}: .*{words}"):
            open_origin([path])


@pytest.mark.parametrize("name", KINDS)
def test_no_frame(name, tmp_path):
    with pytest.raises(TrajectoryError, match="has no frame"):
        open_origin([write(tmp_path / name, tree(n_frames=0), atoms=1)])


@pytest.mark.parametrize(("package", "name"), [("h5py", "a.h5md"), ("zarr", "a.3.zarr")])
def test_a_missing_package_is_named(package, name, tmp_path, monkeypatch):
    path = write(tmp_path / name, tree())
    monkeypatch.setitem(sys.modules, package, None)
    extra = {"h5py": "h5md", "zarr": "zarr"}[package]
    with pytest.raises(UsageError, match=rf"{name}: .* need {package}: pip install 'himach\[{extra}\]'"):
        open_origin([path])
    assert read_fingerprint([path])


@pytest.mark.parametrize("name", KINDS[1:])
def test_chunks_of_zeros_need_not_be_there(name, tmp_path):
    content = tree(4)
    content[f"{BASE}/velocity/value"][0][:] = 0
    content["observables/lambda/value"][0][:] = 0
    path = write(tmp_path / name, content, 1, 3)
    assert all((frame.velocities == 0).all() for frame in open_origin([path]).read([0]))
    if name == "a.3.zarr":  # which writes none
        with pytest.raises(TrajectoryError, match=r"its chunk .*velocity/value/c/1/0/0 is missing"):
            read_frames(open_origin([path]), [1])
    content[f"{BASE}/velocity/value"][0][:, 6] = 1  # the others are frozen
    expected = theirs(write(tmp_path / "twin.h5md", content))
    assert read_frames(open_origin([write(path, content, 1, 3)])) == expected


@pytest.mark.parametrize("name", KINDS[1:])
def test_metadata_that_is_missing(name, tmp_path):
    path = write(tmp_path / name, tree())
    for root in ("zarr.json", ".zgroup"):
        (path / root).unlink(missing_ok=True)
    with pytest.raises(TrajectoryError, match=r"is no group of Zarr: it has neither zarr\.json nor \.zgroup"):
        open_origin([path])
