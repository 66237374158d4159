"""What an analysis sees of a frame: `View`, one analysis's own Universe, bound to one frame at a time.

The Universe's trajectory holds one Timestep and no file. Positions are bound without a copy; every other frame is out
of reach, because each rank sees some frames only.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
from MDAnalysis import Universe
from MDAnalysis.coordinates.base import FrameIteratorAll, ProtoReader
from MDAnalysis.coordinates.timestep import Timestep
from MDAnalysis.core.topology import Topology

from himach.errors import AnalysisError
from himach.frame import Frame, RawFrame
from himach.io.origin import Origin

__all__ = ["View"]


class View:
    """One analysis's own Universe, and the frames that it is bound to.

    Parameters
    ----------
    topology
        With guessed attributes (see `load_topology`); each view works on a copy of its own.
    origin
        Tells the number of frames, the time between them, and the path.
    frames
        The selected frame numbers.
    first
        The first selected frame, which setup() sees.
    name
        The analysis's name, for errors.
    copy
        Whether to copy positions on binding. One view may do without; further views of the same frames need copies,
        because positions are writable and analyses must not see each other's changes.

    Attributes
    ----------
    universe
        The Universe that setup() gets.
    """

    def __init__(
        self,
        topology: Topology,
        origin: Origin,
        frames: range,
        first: RawFrame,
        *,
        name: str = "",
        copy: bool = False,
    ) -> None:
        self._copy = copy
        self._frames = frames
        self.universe = _Universe(topology.copy(), to_guess=())
        self._reader = _BoundReader(origin, name)
        self.universe.name = name or "the analysis"
        self.universe.trajectory = self._reader
        self._reader.bind(first, copy=True)  # setup() may write to positions, the source's frame stays as read

    def bind(self, raw: RawFrame, step: int) -> Frame:
        """Bind the Universe to a frame, with the transformations and auxiliaries that setup() added.

        Parameters
        ----------
        raw
            The frame; its positions become the Universe's own (without `copy`).
        step
            Its position in the selection.

        Returns
        -------
        Frame
            Whose positions, velocities, forces and box are the Universe's own memory; holds until the next bind().
        """
        assert self._frames[step] == raw.number, f"frame {raw.number} is not at step {step} of {self._frames}"
        ts = self._reader.bind(raw, self._copy)
        return Frame(
            raw.number,
            step,
            raw.time,
            ts.positions,
            ts.dimensions,
            ts.velocities if ts.has_velocities else None,
            ts.forces if ts.has_forces else None,
            self.universe,
        )


class _FrameNumber(int):
    """A frame number that differs from the same number of an earlier binding.

    Updating groups compare numbers to see whether they are up to date. A group made in setup() must not pass for up to
    date in map() of the same frame, because positions may have been written to in between.
    """

    def __eq__(self, other: object) -> bool:
        return self is other if isinstance(other, _FrameNumber) else int(self) == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = int.__hash__


class _Universe(Universe):  # type: ignore[misc]
    """A Universe whose trajectory stays."""

    name = ""

    def load_new(self, *args: Any, **keywords: Any) -> NoReturn:
        raise AnalysisError(
            f"{self.name}: universe.load_new() is refused, because himach decides which frame the Universe is at; "
            "make a Universe of your own from universe.copy()"
        )


class _BoundReader(ProtoReader):  # type: ignore[misc]
    """A trajectory of MDAnalysis that shows one frame at a time and cannot be moved."""

    units = {"time": "ps", "length": "Angstrom", "velocity": "Angstrom/ps", "force": "kJ/(mol*Angstrom)"}  # noqa: RUF012

    def __init__(self, origin: Origin, name: str) -> None:
        super().__init__()
        self._name = name or "the analysis"
        self.filename = origin.paths[0]
        self.n_frames = origin.n_frames
        self.n_atoms = origin.n_atoms
        self._dt = origin.timestep
        self._own = Timestep(origin.n_atoms, reader=self)
        self.ts = self._own
        self._memory: npt.NDArray[np.float32] | None = None
        self._number = _FrameNumber(-1)

    def bind(self, raw: RawFrame, copy: bool) -> Timestep:
        """Show a frame, then apply auxiliaries and transformations as every reader of MDAnalysis does."""
        ts = self.ts = self._own
        ts.frame = raw.number
        self._number = _FrameNumber(raw.number)
        ts.data = {"time": raw.time, "dt": self.dt}
        if not ts.has_positions:  # a transformation took them; allow them again, which zeroes the present array
            ts._pos = np.empty_like(raw.positions)
            ts.has_positions = True
        ts._pos = self._copied(raw.positions) if copy else raw.positions
        ts.dimensions = raw.box
        ts.has_velocities = raw.velocities is not None
        if raw.velocities is not None:
            ts.velocities = raw.velocities
        ts.has_forces = raw.forces is not None
        if raw.forces is not None:
            ts.forces = raw.forces
        for auxiliary in self._auxs.values():
            ts = auxiliary.update_ts(ts)
        self.ts = self._apply_transformations(ts)
        return self.ts

    def _copied(self, positions: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        if self._memory is None:
            self._memory = np.empty((self.n_atoms, 3), dtype=np.float32)
        np.copyto(self._memory, positions)
        return self._memory

    @property
    def frame(self) -> int:
        """Number of the frame in the dataset."""
        return self._number

    @property
    def dt(self) -> float:
        """Time between two frames of the dataset, ps; 0 for a single frame."""
        return self._dt if self._dt is not None else 0.0

    def add_transformations(self, *transformations: Any) -> None:
        """Add transformations that need no other frame; they run on every frame."""
        for transformation in transformations:
            if not getattr(transformation, "parallelizable", True):
                raise AnalysisError(
                    f"{self._name}: the transformation {type(transformation).__name__} needs other frames, and each "
                    "rank sees some frames only; use the built-in msd, which unwraps, or yield the positions "
                    "and do it over the series in reduce()"
                )
        super().add_transformations(*transformations)

    def copy(self) -> _BoundReader:
        """Return a reader that stays at the present frame."""
        new = _BoundReader.__new__(_BoundReader)
        ProtoReader.__init__(new)
        new.__dict__.update(
            {**self.__dict__, "_auxs": {}, "_transformations": [*self._transformations], "_memory": None}
        )
        new._own = new.ts = self.ts.copy()
        return new

    def close(self) -> None:
        """Do nothing: no file is open."""

    def _refuse(self, *args: Any, **keywords: Any) -> NoReturn:
        raise AnalysisError(
            f"{self._name}: universe.trajectory cannot be moved to other frames, because each rank sees some "
            "frames only; use the frame that map() gets, and reduce() for what needs several frames"
        )

    def __getitem__(self, frames: Any) -> FrameIteratorAll:
        if frames == slice(None):  # AtomGroup.write() asks for it, and how long it is; iterating over it is refused
            return FrameIteratorAll(self)
        return self._refuse()

    next = __next__ = __iter__ = rewind = timeseries = _refuse
    _reopen = _read_next_timestep = _read_frame = _read_frame_with_aux = _sliced_iter = _refuse
