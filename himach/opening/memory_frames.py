"""A trajectory in memory: `MemoryFrames` of a MemoryReader."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from himach.frame import RawFrame
from himach.io.trajectory.index.timeline import EvenTimeline
from himach.io.trajectory.origin import OriginFacts
from himach.io.trajectory.xdr_file import FrameFile
from himach.opening.shared_arrays import SharedArrays

#: Name of a trajectory in memory in place of a path.
NAME = "memory"
FIELDS = ("positions", "velocities", "forces")


class MemoryFrames(FrameFile):
    """Frames of a MemoryReader."""

    kind = "MEMORY"

    def __init__(self, reader: Any) -> None:
        super().__init__(NAME)
        self.stamps = ()
        self.n_frames, self.n_atoms = int(reader.n_frames), int(reader.n_atoms)
        self._bytes_per_frame = 12.0 * self.n_atoms  # of the positions
        order = reader.stored_order
        axes = [order.find(axis) for axis in "fac"]
        sources = zip(FIELDS, (reader.coordinate_array, reader.velocity_array, reader.force_array), strict=True)
        arrays = {name: np.transpose(array, axes) for name, array in sources if array is not None}
        self._shared = SharedArrays({**arrays, "boxes": np.asarray(reader.dimensions_array, dtype=np.float32)})
        start = float(reader.ts.data.get("time_offset", 0.0))
        self.times = EvenTimeline(self.n_frames, float(reader.dt), 0.0, start)

    def facts(self) -> OriginFacts:
        """Return the facts of the origin; the fingerprint covers the shape and the first and last frames."""
        digest = hashlib.sha256(repr((self.n_frames, self.n_atoms)).encode())
        arrays = self._shared.arrays
        for name in sorted(arrays):
            for index in (0, -1):
                digest.update(name.encode() + np.ascontiguousarray(arrays[name][index]).tobytes())
        timestep = self._time(1) - self._time(0) if self.n_frames > 1 else None
        return OriginFacts(digest.hexdigest(), timestep, "velocities" in arrays, "forces" in arrays)

    def read(self, index: int, needed: int | None = None) -> RawFrame:
        """Return a copy of a whole frame."""
        arrays = self._shared.arrays
        vectors = [np.array(arrays[name][index], order="C") if name in arrays else None for name in FIELDS]
        positions, velocities, forces = vectors
        assert positions is not None
        box = np.array(arrays["boxes"][index])
        return RawFrame(
            index, self._time(index), positions, box if box[:3].any() else None, velocities, forces, data={}
        )

    def _time(self, index: int) -> float:
        assert self.times is not None
        return self.times[index]
