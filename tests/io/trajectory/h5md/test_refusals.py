"""H5MD that cannot be read, in HDF5 and in Zarr: what is no trajectory, is damaged or missing is told by its name."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from support import needs

from himach.errors import NoFrameError, TrajectoryError, UsageError
from himach.io.trajectory.origin import fingerprint_of, open_origin

from ..foreign import read_frames
from .trees import BASE, KINDS, Tree, theirs, tree, write

for package in ("h5py", "zarr"):
    needs.module(package)


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
    path = write(tmp_path / "a.h5md", content)
    with pytest.raises(TrajectoryError, match=words) as caught:
        open_origin([path])
    assert f"{path} cannot be read as " in str(caught.value)


def test_what_is_no_trajectory_is_told_of_zarr(tmp_path):
    path = write(tmp_path / "a.3.zarr", without("particles"))
    with pytest.raises(TrajectoryError, match=f"{path} cannot be read as ZARRMD: it has no group particles"):
        open_origin([path])


@pytest.mark.parametrize("name", KINDS)
def test_no_frame(name, tmp_path):
    with pytest.raises(NoFrameError, match="has no frame"):
        open_origin([write(tmp_path / name, tree(n_frames=0), atoms=1)])


@pytest.mark.parametrize(("package", "name"), [("h5py", "a.h5md"), ("zarr", "a.3.zarr")])
def test_a_missing_package_is_named(package, name, tmp_path, monkeypatch):
    path = write(tmp_path / name, tree())
    monkeypatch.setitem(sys.modules, package, None)
    extra = {"h5py": "h5md", "zarr": "zarr"}[package]
    with pytest.raises(UsageError, match=rf"{name}: .* need {package}: pip install 'himach\[{extra}\]'"):
        open_origin([path])
    assert fingerprint_of([path])


def test_a_file_cut_off(tmp_path):
    path = write(tmp_path / "a.h5md", tree())
    path.write_bytes(path.read_bytes()[:-3000])
    with pytest.raises(TrajectoryError, match=r"a\.h5md cannot be read as H5MD: .*truncated"):
        open_origin([path])
    path.write_bytes(b"no HDF5 at all")
    with pytest.raises(TrajectoryError, match=r"a\.h5md cannot be read as H5MD: .*signature"):
        open_origin([path])


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
