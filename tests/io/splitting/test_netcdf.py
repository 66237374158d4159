"""AMBER NetCDF as himach writes it, read by MDAnalysis."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.io_samples import same_frame

from himach.frame import RawFrame
from himach.io.splitting.netcdf import AmberWriter
from himach.io.trajectory.origin import open_origin


def test_boxes_and_velocities_come_and_go(tmp_path):
    like = RawFrame(0, 0.0, np.zeros((5, 3), np.float32), np.full(6, 90, np.float32))
    with AmberWriter(str(tmp_path / "a.nc"), like) as writer:
        writer.write(like)
        with pytest.raises(ValueError, match="having a box"):
            writer.write(RawFrame(1, 1.0, like.positions))


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(has=st.tuples(st.booleans(), st.booleans(), st.booleans()), n_frames=st.integers(1, 4), seed=st.integers(0, 99))
def test_netcdf_is_what_mdanalysis_reads(tmp_path, has, n_frames, seed):
    random = np.random.default_rng(seed)
    frames = [
        RawFrame(
            number,
            float(number),
            random.normal(size=(7, 3)).astype(np.float32),
            random.uniform(50, 90, 6).astype(np.float32) if has[0] else None,
            random.normal(size=(7, 3)).astype(np.float32) if has[1] else None,
            random.normal(size=(7, 3)).astype(np.float32) if has[2] else None,
        )
        for number in range(n_frames)
    ]
    path = tmp_path / "a.nc"
    with AmberWriter(str(path), frames[0]) as writer:
        for frame in frames:
            writer.write(frame)
    for one, other in zip(frames, open_origin([path]).read(range(n_frames)), strict=True):
        same_frame(one, other)
        if has[2]:
            np.testing.assert_allclose(one.forces, other.forces, rtol=3e-7)
