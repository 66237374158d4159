"""Frames as bytes of files: what readers of others find in them."""

import tracemalloc
import warnings
from dataclasses import fields
from pathlib import Path

import MDAnalysis as mda
import numpy as np
import pytest
from scipy.io import netcdf_file

from himach.conversion.options import ConvertOptions
from himach.io.trajectories.formats import FORMATS
from himach.io.trajectories.layouts import Content, Dcd, NetCdf, Trr

from ...mount.mounts import sample_frames, whole

N_ATOMS = 41


def written(tmp_path, format_, frames):
    content = Content(
        len(frames), N_ATOMS, frames[0].velocities is not None, frames[0].forces is not None, frames[0].box is not None
    )
    layout = format_(content)
    path = tmp_path / f"file{layout.suffix}"
    path.write_bytes(whole(layout, frames))
    return path


def universe_of(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return mda.Universe.empty(N_ATOMS).load_new(str(path))


@pytest.mark.parametrize("box", [True, False])
@pytest.mark.parametrize(("velocities", "forces"), [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("format_", [Trr, NetCdf, Dcd])
def test_readers_of_mdanalysis_find_the_frames(tmp_path, format_, velocities, forces, box):
    frames = sample_frames(7, N_ATOMS, velocities=velocities, forces=forces, box=box, first=10.0)
    universe = universe_of(written(tmp_path, format_, frames))
    assert len(universe.trajectory) == 7
    for ts, frame in zip(universe.trajectory, frames, strict=True):
        assert ts.time == pytest.approx(frame.time, abs=1e-3)
        exact = format_ is not Trr  # which has nm
        np.testing.assert_allclose(ts.positions, frame.positions, rtol=0 if exact else 2e-7)
        if box:
            np.testing.assert_allclose(ts.dimensions, frame.box, rtol=1e-6)
        else:
            assert ts.dimensions is None
        if format_ is Dcd:
            continue
        assert ts.has_velocities == velocities
        assert ts.has_forces == forces
        if velocities:
            np.testing.assert_allclose(ts.velocities, frame.velocities, rtol=2e-7)
        if forces:
            np.testing.assert_allclose(ts.forces, frame.forces, rtol=4e-7)


def test_netcdf_says_of_itself_what_the_convention_asks(tmp_path):
    path = written(tmp_path, NetCdf, sample_frames(4, N_ATOMS, velocities=True))
    with netcdf_file(path, mmap=False) as file:
        assert file.Conventions == b"AMBER"
        assert file.ConventionVersion == b"1.0"
        assert file.dimensions["atom"] == N_ATOMS
        assert file.variables["spatial"][:].tobytes() == b"xyz"
        assert file.variables["cell_spatial"][:].tobytes() == b"abc"
        assert file.variables["cell_angular"][:].tobytes() == b"alphabeta gamma"
        assert file.variables["coordinates"].units == b"angstrom"
        assert file.variables["time"][:].tolist() == [0, 2, 4, 6]


def test_the_size_of_a_netcdf_file_is_known_without_a_frame_in_memory():
    tracemalloc.start()
    try:
        layout = NetCdf(Content(5, 1_000_000))
        assert layout.size > 60_000_000
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
        assert len(layout.head(0.0, 1.0)) == layout.head_bytes
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("format_", [Trr, NetCdf, Dcd])
def test_a_box_and_velocities_may_go_away_and_come_back(tmp_path, format_):
    frames = sample_frames(3, N_ATOMS, velocities=format_ is not Dcd)
    frames[1].box = frames[1].velocities = None
    universe = universe_of(written(tmp_path, format_, frames))
    for ts, frame in zip(universe.trajectory, frames, strict=True):
        np.testing.assert_allclose(ts.positions, frame.positions, rtol=2e-7)
        if format_ is not Dcd:
            assert np.isnan(ts.velocities).all() == (frame.velocities is None)
        if frame.box is not None:
            np.testing.assert_allclose(ts.dimensions, frame.box, rtol=1e-6)
        elif format_ is NetCdf:
            assert np.isnan(ts.dimensions[:3]).all()
        else:
            assert ts.dimensions is None


def test_pages_and_options_name_the_registered_formats():
    pages = Path(__file__).parents[3] / "docs"
    written = [item.suffixes[0] for item in FORMATS.values() if item.layout is not None or item.name == "XTC"]
    *others, last = (f"`{suffix}`" for suffix in written)
    assert f"{', '.join(others)} and {last} by all ranks" in (pages / "api.md").read_text(encoding="utf-8")
    option = next(item for item in fields(ConvertOptions) if item.name == "out")
    assert f"{', '.join(written)} by all ranks" in option.metadata["help"]
    assert all(item.layout.suffix == item.suffixes[0] for item in FORMATS.values() if item.layout is not None)


def test_what_a_format_cannot_hold_is_said():
    many_atoms, many_frames = Content(1, 1 << 29), Content(1 << 32, 10)
    assert not any(format_(content).possible for format_ in (Trr, Dcd, NetCdf) for content in (many_atoms, many_frames))
    assert Trr(Content(1 << 30, 10)).size == (1 << 30) * 240
    assert all(format_(Content((1 << 31) - 1, 10)).possible for format_ in (Trr, Dcd, NetCdf))


def test_first_times_that_no_dcd_can_hold():
    layout = Dcd(Content(3, 1))
    for first, between in [(5.0, 0.0), (1e30, 2.0), (float("-1e30"), 1.0)]:
        assert len(layout.head(first, between)) == layout.head_bytes
