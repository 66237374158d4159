"""`HimachReader` reads the frames of a dataset as a trajectory of MDAnalysis; `HimachParser` its topology."""

import errno
import os
from copy import copy
from typing import Any

from MDAnalysis.coordinates.base import ReaderBase
from MDAnalysis.core.topology import Topology
from MDAnalysis.lib.util import store_init_arguments
from MDAnalysis.topology.base import TopologyReaderBase

from himach.frame import RawFrame
from himach.io.datasets.opening import FramesAhead, OpenDataset
from himach.io.universe.topology import copy_topology
from himach.mdanalysis.dataset_names import is_url, normalize_url, open_url
from himach.mdanalysis.dataset_writer import HimachWriter

#: Keywords of MDAnalysis.Universe that affect frames.
FRAME_KEYWORDS = ("dt", "time_offset")


class HimachReader(ReaderBase):  # type: ignore[misc]
    """Reads the frames of a dataset: from this node's store, else from its files, and then keeps them."""

    format = "HIMACH"
    units = {"time": "ps", "length": "Angstrom", "velocity": "Angstrom/ps", "force": "kJ/(mol*Angstrom)"}  # noqa: RUF012

    @staticmethod
    def _format_hint(thing: Any) -> bool:
        return is_url(thing)

    @store_init_arguments  # type: ignore[untyped-decorator]
    def __init__(
        self,
        filename: str | os.PathLike[str],
        convert_units: bool = True,
        cache: str = "auto",
        dataset: OpenDataset | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(filename, convert_units=convert_units, **kwargs)
        self.filename = normalize_url(filename)
        self.cache = cache
        self._frame_keywords = {name: kwargs[name] for name in FRAME_KEYWORDS if kwargs.get(name) is not None}
        self._open(dataset)
        self.ts = self._Timestep(self.n_atoms, reader=self)
        self._read_frame(0)

    def _open(self, dataset: OpenDataset | None = None) -> None:
        if dataset is not None:
            dataset = copy(dataset)  # each reader has a writer of its own
        self.dataset = dataset = dataset or open_url(self.filename, self.cache, self._frame_keywords)
        self.n_frames = dataset.origin.n_frames
        self.n_atoms = dataset.origin.n_atoms
        self._dt = dataset.origin.timestep or 0.0
        self._ahead = FramesAhead(dataset)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["_ahead"], state["dataset"]
        state["_kwargs"] = {name: value for name, value in self._kwargs.items() if name != "dataset"}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    @classmethod
    def parse_n_atoms(cls, filename: str, cache: str = "auto", **kwargs: Any) -> int:
        """Return the number of atoms."""
        return open_url(filename, cache).origin.n_atoms

    def _reopen(self) -> None:
        self._ahead.rewind()
        self.ts.frame = 0
        self._frame = -1

    def _read_next_timestep(self, ts: Any = None) -> Any:
        if self._frame + 1 >= self.n_frames:
            raise OSError(errno.EIO, "trying to go over trajectory limit")
        return self._read_frame(self._frame + 1)

    def _read_frame(self, frame: int) -> Any:
        raw = self._ahead.frame(int(frame))
        self._frame = int(frame)
        self._show(raw)
        return self.ts

    def _show(self, raw: RawFrame) -> None:
        """Copy a frame to the timestep: arrays that others keep show the last frame read, as in MDAnalysis."""
        ts = self.ts
        ts.frame = raw.number
        ts.data = {"time": raw.time, "dt": self._dt}
        ts.positions = raw.positions
        ts.dimensions = raw.box
        ts.has_velocities = raw.velocities is not None
        if raw.velocities is not None:
            ts.velocities = raw.velocities
        ts.has_forces = raw.forces is not None
        if raw.forces is not None:
            ts.forces = raw.forces

    def Writer(self, filename: str, n_atoms: int | None = None, **kwargs: Any) -> HimachWriter:  # noqa: N802
        """Return a writer of a dataset with as many atoms."""
        return HimachWriter(filename, n_atoms=self.n_atoms if n_atoms is None else n_atoms, **kwargs)

    def close(self) -> None:
        """Close what is open; reading still works."""
        if hasattr(self, "_ahead"):  # missing if opening failed
            self._ahead.close()


class HimachParser(TopologyReaderBase):  # type: ignore[misc]
    """Gives the topology that a dataset brings, or that it was last staged or run with; else its number of atoms."""

    format = "HIMACH"

    @staticmethod
    def _format_hint(thing: Any) -> bool:
        return is_url(thing)

    def parse(self, cache: str = "auto", **kwargs: Any) -> Topology:
        """Return the topology."""
        dataset = open_url(self.filename, cache)
        topology = dataset.find_topology()
        return Topology(dataset.origin.n_atoms, 1, 1) if topology is None else copy_topology(topology)
