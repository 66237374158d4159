"""What an analysis sees of a frame: `View`, one analysis's own Universe, bound to one frame at a time.

The Universe's trajectory holds one Timestep and no file. Positions are bound without a copy; every other frame is out
of reach, because each rank sees some frames only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
from MDAnalysis import Universe
from MDAnalysis.coordinates.base import FrameIteratorAll, ProtoReader
from MDAnalysis.coordinates.timestep import Timestep
from MDAnalysis.core.topology import Topology

from himach.errors import AnalysisError
from himach.frame import DATA, FORCES, VELOCITIES, Frame, RawFrame
from himach.io.topology.parsed import copy_topology
from himach.io.trajectory.absent_file import out_of_reach
from himach.io.trajectory.origin import Origin
from himach.io.universe.asked import AskedVectors, asked_atoms
from himach.io.universe.gather import copy_rows

#: Reads a field of the frame of a number that was read without it (see `himach.io.dataset.source.Source.late`).
LateFields = Callable[[int, int], RawFrame]
#: Gives the data of a frame, which it may have to read.
Tell = Callable[[RawFrame, LateFields | None], dict[str, Any]]

_set_data = Timestep.data.__set__


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
        self._name = name or "the analysis"
        self.universe = _Universe(copy_topology(topology), to_guess=())
        self._reader = _BoundReader(origin, self._name)
        self.universe.name = self._name
        self.universe.trajectory = self._reader
        self._reader.bind(first, copy=True)  # setup() may write to positions, the source's frame stays as read

    def ask(self, groups: Any) -> None:
        """Show only the atoms of what atoms() returned in the frames that are bound from now on.

        Raises
        ------
        AnalysisError
            If it is neither a group of this view's Universe nor several.
        """
        asked = asked_atoms(groups, self.universe, self._name)
        if not asked.all():
            self._reader.ask(asked, partial(_refuse, self.universe, self._name))

    def settle(self) -> None:
        """Leave to setup() the arrays that it took of the first frame, such as the box: later frames have others."""
        self._reader.settle()

    @property
    def needs(self) -> npt.NDArray[np.int64] | None:
        """Indices of the atoms that a frame must have when it is bound, ascending int64 (n,); None for all."""
        return self._reader.needs

    def bind(self, raw: RawFrame, step: int, late: LateFields | None = None) -> Frame:
        """Bind the Universe to a frame, with the transformations and auxiliaries that setup() added.

        Parameters
        ----------
        raw
            The frame; its positions become the Universe's own (without `copy`).
        step
            Its position in the selection.
        late
            Reads velocities or forces that are unread, when they are touched.

        Returns
        -------
        Frame
            Whose positions, velocities, forces and box are the Universe's own memory; holds until the next bind().
        """
        assert self._frames[step] == raw.number, f"frame {raw.number} is not at step {step} of {self._frames}"
        ts = self._reader.bind(raw, self._copy, late)
        return _BoundFrame(raw, step, ts, self.universe, self._reader, late)


class _BoundFrame(Frame):
    """A frame whose arrays are those of a timestep; velocities and forces are read when they are touched."""

    __slots__ = ("_late", "_raw", "_reader", "_timestep")

    def __init__(
        self,
        raw: RawFrame,
        step: int,
        timestep: Timestep,
        universe: Universe,
        reader: _BoundReader,
        late: LateFields | None,
    ) -> None:
        self.number = raw.number
        self.step = step
        self.time = raw.time
        self.positions = timestep.positions
        self.box = timestep.dimensions
        self.universe = universe
        self._timestep = timestep
        self._raw = raw
        self._reader = reader
        self._late = late

    @property
    def data(self) -> dict[str, Any]:  # type: ignore[override]
        """What the file says of the frame beside all this."""
        return self._reader.data(self._raw, self._late)

    @property
    def velocities(self) -> Any:  # type: ignore[override]
        """Velocities in Å/ps, or None."""
        return self._timestep.velocities if self._timestep.has_velocities else None

    @property
    def forces(self) -> Any:  # type: ignore[override]
        """Forces in kJ/(mol Å), or None."""
        return self._timestep.forces if self._timestep.has_forces else None


def _refuse(universe: Universe, label: str, atom: int | None) -> NoReturn:
    """Tell that a map() touches an atom, or all of them, that its atoms() does not ask for."""
    if atom is None:
        raise AnalysisError(
            f"{label} uses positions, velocities or forces of all {len(universe.atoms)} atoms at once, and its atoms() "
            f"asks for some; index them, as in frame.positions[group.ix], or return universe.atoms from atoms() of "
            f"{label}"
        )
    raise AnalysisError(
        f"{label} touches atom {atom} ({_called(universe.atoms[atom])}), which its atoms() does not ask for; "
        f"add it to atoms() of {label}"
    )


def _called(atom: Any) -> str:
    """Return an atom's name and residue, as far as the topology tells them."""
    name = getattr(atom, "name", "") or getattr(atom, "type", "") or "unnamed"
    residue = " ".join(str(word) for word in (getattr(atom, "resname", ""), getattr(atom, "resid", "")) if word != "")
    return f"{name} of residue {residue}" if residue else str(name)


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


class _Timestep(Timestep):  # type: ignore[misc]
    """A timestep that shows the atoms asked for, and reads velocities, forces and data when they are touched."""

    _raw: RawFrame | None = None
    _late: LateFields | None = None
    _untouched = 0
    _tell: Tell | None = None
    _asked: Mapping[str, AskedVectors] = MappingProxyType({})
    _shown = False

    def ask(self, asked: npt.NDArray[np.bool_], refuse: Callable[[int | None], NoReturn]) -> None:
        """Show these atoms only, from the next `show` on."""
        self._asked = {name: AskedVectors(asked, refuse) for name in ("positions", "velocities", "forces")}

    def show(self, shown: bool) -> None:
        """Show the atoms asked for only; or, for a transformation, all."""
        self._shown = shown and bool(self._asked)

    def settle(self) -> None:
        """Write later boxes, velocities and forces to memory of their own."""
        for name in ("_unitcell", "_velocities", "_forces"):
            values = getattr(self, name, None)
            if values is not None:
                setattr(self, name, values.copy())

    def expect(self, raw: RawFrame, late: LateFields | None, tell: Tell) -> None:
        """Take velocities and forces from this frame, or from `late`, when they are touched; and its data by `tell`."""
        self._raw, self._late, self._untouched, self._tell = raw, late, VELOCITIES | FORCES, tell

    @property
    def data(self) -> dict[str, Any]:
        """What MDAnalysis's readers give beside positions, velocities and forces: time and dt, and the frame's data."""
        facts: dict[str, Any] = Timestep.data.__get__(self)
        if self._tell is not None:
            tell, self._tell = self._tell, None
            assert self._raw is not None
            facts.update(tell(self._raw, self._late))
        return facts

    @data.setter
    def data(self, values: dict[str, Any]) -> None:
        Timestep.data.__set__(self, values)

    def _touch(self, field: int) -> None:
        if not self._untouched & field or self._raw is None:
            return
        self._untouched &= ~field
        raw = self._raw
        if raw.unread & field and self._late is not None:
            raw = self._late(raw.number, field)
        has, own = (
            (Timestep.has_velocities, Timestep.velocities)
            if field == VELOCITIES
            else (Timestep.has_forces, Timestep.forces)
        )
        vectors = raw.velocities if field == VELOCITIES else raw.forces
        has.__set__(self, vectors is not None)
        if vectors is not None:
            own.__set__(self, vectors)

    def _of(self, name: str, vectors: npt.NDArray[np.float32]) -> Any:
        if not self._shown:
            return vectors
        asked = self._asked[name]
        asked.vectors = vectors
        return asked

    @property
    def positions(self) -> Any:
        """Positions in Å."""
        return self._of("positions", Timestep.positions.__get__(self))

    @positions.setter
    def positions(self, values: Any) -> None:
        if self._shown:
            self.positions[:] = values
        else:
            Timestep.positions.__set__(self, values)

    @property
    def dimensions(self) -> npt.NDArray[np.float32] | None:
        """Lengths in Å and angles in degrees; None without a box."""
        box: npt.NDArray[np.float32] = self._unitcell
        return box if box[0] or box[1] or box[2] else None  # without the arrays that Timestep's own makes each time

    @dimensions.setter
    def dimensions(self, values: Any) -> None:
        Timestep.dimensions.__set__(self, values)

    @property
    def has_velocities(self) -> bool:
        """Whether the frame has velocities."""
        self._touch(VELOCITIES)
        has: bool = Timestep.has_velocities.__get__(self)
        return has

    @has_velocities.setter
    def has_velocities(self, has: bool) -> None:
        self._untouched &= ~VELOCITIES
        Timestep.has_velocities.__set__(self, has)

    @property
    def velocities(self) -> Any:
        """Velocities in Å/ps."""
        self._touch(VELOCITIES)
        return self._of("velocities", Timestep.velocities.__get__(self))

    @velocities.setter
    def velocities(self, values: Any) -> None:
        self._untouched &= ~VELOCITIES
        Timestep.velocities.__set__(self, values)

    @property
    def has_forces(self) -> bool:
        """Whether the frame has forces."""
        self._touch(FORCES)
        has: bool = Timestep.has_forces.__get__(self)
        return has

    @has_forces.setter
    def has_forces(self, has: bool) -> None:
        self._untouched &= ~FORCES
        Timestep.has_forces.__set__(self, has)

    @property
    def forces(self) -> Any:
        """Forces in kJ/(mol Å)."""
        self._touch(FORCES)
        return self._of("forces", Timestep.forces.__get__(self))

    @forces.setter
    def forces(self, values: Any) -> None:
        self._untouched &= ~FORCES
        Timestep.forces.__set__(self, values)

    def __getitem__(self, atoms: Any) -> Any:
        return self.positions[atoms]

    def copy_slice(self, sel: Any) -> Any:
        """Return a copy of some atoms, with the frame's data."""
        self.data  # noqa: B018 (reads it)
        return super().copy_slice(sel)

    def copy(self) -> _Timestep:
        """Return a copy, which shows the same atoms."""
        (shown, self._shown), (tell, self._tell) = (self._shown, False), (self._tell, None)
        new: _Timestep = super().copy()
        self._shown = new._shown = shown
        self._tell = new._tell = tell
        new._raw, new._late = self._raw, self._late  # for its data; the rest is copied
        new._asked = {name: AskedVectors(asked.asked, asked.refuse) for name, asked in self._asked.items()}
        return new


class _BoundReader(ProtoReader):  # type: ignore[misc]
    """A trajectory of MDAnalysis that shows one frame at a time and cannot be moved."""

    units = {"time": "ps", "length": "Angstrom", "velocity": "Angstrom/ps", "force": "kJ/(mol*Angstrom)"}  # noqa: RUF012

    def __init__(self, origin: Origin, name: str) -> None:
        super().__init__()
        self._name = name
        self.filename = origin.paths[0]
        self.n_frames = origin.n_frames
        self.n_atoms = origin.n_atoms
        self._dt = origin.timestep
        self._origin = origin
        self._own = _Timestep(origin.n_atoms, reader=self)
        self.ts: Timestep = self._own
        self._memory: npt.NDArray[np.float32] | None = None
        self._number = _FrameNumber(-1)
        self._asked: npt.NDArray[np.int64] | None = None
        self._kept: tuple[RawFrame, dict[str, Any]] | None = None

    def ask(self, asked: npt.NDArray[np.bool_], refuse: Callable[[int | None], NoReturn]) -> None:
        """Show these atoms only, from the next frame on."""
        self._asked = np.flatnonzero(asked)
        self._own.ask(asked, refuse)

    def settle(self) -> None:
        """Show later frames in memory of their own."""
        self._own.settle()
        self._memory = None

    @property
    def needs(self) -> npt.NDArray[np.int64] | None:
        """Indices of the atoms that are needed; None for all, also because a transformation may touch any."""
        return None if self.transformations else self._asked

    def bind(self, raw: RawFrame, copy: bool, late: LateFields | None = None) -> Timestep:
        """Show a frame, then apply auxiliaries and transformations as every reader of MDAnalysis does."""
        own = self._own
        own.frame = raw.number
        self._number = _FrameNumber(raw.number)
        _set_data(own, {"time": raw.time, "dt": self.dt})
        if not own.has_positions:  # a transformation took them; allow them again, which zeroes the present array
            own._pos = np.empty_like(raw.positions)
            own.has_positions = True
        own._pos = self._copied(raw.positions) if copy else raw.positions
        own.dimensions = raw.box
        self._kept = None
        own.expect(raw, late, self._tell)
        self.ts = own
        if self._auxs or self._transformations:
            own.show(False)
            self._transform()
        if isinstance(self.ts, _Timestep):  # a transformation may have put another in its place
            self.ts.show(True)
        return self.ts

    def data(self, raw: RawFrame, late: LateFields | None) -> dict[str, Any]:
        """Return what the file says of a frame beside positions, velocities and forces; from a cache, it is read.

        Raises
        ------
        AnalysisError
            If the frame is from a cache, and the trajectory cannot be reached.
        """
        if self._kept is None or self._kept[0] is not raw:
            data = self._read_data(raw.number, late) if raw.data is None else raw.data
            self._kept = raw, deepcopy(data)  # analyses must not see each other's changes
        return self._kept[1]

    def _read_data(self, number: int, late: LateFields | None) -> dict[str, Any]:
        if self._origin.kinds == ("pushed",):
            return {}
        if not self._origin.present:
            raise AnalysisError(
                f"{self._name} reads frame.data, what the file says of frame {number} beside positions, velocities and "
                f"forces: caches do not keep it, and {out_of_reach(self.filename)}"
            )
        frame = next(self._origin.read([number], 0)) if late is None else late(number, DATA)
        return frame.data or {}

    def _tell(self, raw: RawFrame, late: LateFields | None) -> dict[str, Any]:
        """Return the same for the timestep, where MDAnalysis's writers look for it, too: nothing if it is away."""
        return self.data(raw, late) if raw.data is not None or self._origin.present else {}

    def _transform(self) -> None:
        for auxiliary in self._auxs.values():
            self.ts = auxiliary.update_ts(self.ts)
        self.ts = self._apply_transformations(self.ts)

    def _copied(self, positions: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        if self._memory is None:
            self._memory = np.empty((self.n_atoms, 3), dtype=np.float32)
        if self.needs is None:
            np.copyto(self._memory, positions)
        else:
            copy_rows(positions, self._memory, self.needs)
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
