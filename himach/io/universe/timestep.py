"""A frame as MDAnalysis sees it: `BoundTimestep`, which reads what is late when it is touched; `FrameNumber`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
from MDAnalysis.coordinates.timestep import Timestep

from himach.frame import FORCES, VELOCITIES, RawFrame
from himach.io.universe.asked import AskedVectors

#: Reads a field of the frame of a number that was read without it (see `himach.io.dataset.source.Source.late`).
LateFields = Callable[[int, int], RawFrame]
#: Gives the data of a frame, which it may have to read.
Tell = Callable[[RawFrame, LateFields | None], dict[str, Any]]


class FrameNumber(int):
    """A frame number that differs from the same number of an earlier binding.

    Updating groups compare numbers to see whether they are up to date. A group made in setup() must not pass for up to
    date in map() of the same frame, because positions may have been written to in between.
    """

    def __eq__(self, other: object) -> bool:
        return self is other if isinstance(other, FrameNumber) else int(self) == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = int.__hash__


class BoundTimestep(Timestep):  # type: ignore[misc]
    """A timestep that shows the atoms asked for, and reads velocities, forces and data when they are touched."""

    _raw: RawFrame | None = None
    _late: LateFields | None = None
    _untouched = 0
    _tell: Tell | None = None
    _asked: Mapping[str, AskedVectors] = MappingProxyType({})
    _shown = False
    refuse_box: Callable[[], NoReturn] | None = None  # where it does not turn with the atoms

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
        if self.refuse_box is not None:
            self.refuse_box()
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

    def copy(self) -> BoundTimestep:
        """Return a copy, which shows the same atoms."""
        (shown, self._shown), (tell, self._tell) = (self._shown, False), (self._tell, None)
        refuse, self.refuse_box = self.refuse_box, None
        new: BoundTimestep = super().copy()
        self.refuse_box = new.refuse_box = refuse
        self._shown = new._shown = shown
        self._tell = new._tell = tell
        new._raw, new._late = self._raw, self._late  # for its data; the rest is copied
        new._asked = {name: AskedVectors(asked.asked, asked.refuse) for name, asked in self._asked.items()}
        return new
