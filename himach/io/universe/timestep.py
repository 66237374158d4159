"""A frame as a Timestep of MDAnalysis: `BoundTimestep`, which reads some fields on access; `FrameNumber`."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
from MDAnalysis.coordinates.timestep import Timestep

from himach.frame import FORCES, VELOCITIES, RawFrame
from himach.io.universe.requested import RequestedVectors

#: Returns a frame's data, and reads them if need be.
DataReader = Callable[[RawFrame], dict[str, Any]]


class FrameNumber(int):
    """A frame number that is unequal to the same number of an earlier binding.

    Updating groups compare numbers to check whether they are current. A group made in setup() must not count as current
    in map() of the same frame, because positions may have been written to in between.
    """

    def __eq__(self, other: object) -> bool:
        return self is other if isinstance(other, FrameNumber) else int(self) == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = int.__hash__


def _lazy_properties(field: int, name: str) -> tuple[property, property]:
    """Make the properties `has_NAME` and `NAME` for velocities or forces, which are read on access."""
    has, vectors = getattr(Timestep, f"has_{name}"), getattr(Timestep, name)

    def get(ts: "BoundTimestep", attribute: property) -> Any:
        if ts._unread & field and ts._raw is not None:
            values = ts._raw.field(field)
            set_value(ts, values is not None, has)
            if values is not None:
                set_value(ts, values, vectors)
        return attribute.__get__(ts)

    def set_value(ts: "BoundTimestep", value: Any, attribute: property) -> None:
        ts._unread &= ~field
        attribute.__set__(ts, value)

    return (
        property(lambda ts: get(ts, has), lambda ts, value: set_value(ts, value, has)),
        property(lambda ts: ts._restrict(name, get(ts, vectors)), lambda ts, value: set_value(ts, value, vectors)),
    )


class BoundTimestep(Timestep):  # type: ignore[misc]
    """A timestep restricted to requested atoms, which reads velocities, forces and data on access."""

    _raw: RawFrame | None = None
    _unread = 0
    _read_data: DataReader | None = None
    _requested: Mapping[str, RequestedVectors] = MappingProxyType({})
    _restricted = False
    refuse_box: Callable[[], NoReturn] | None = None  # raises if the atoms were rotated without the box

    def ask(self, requested: npt.NDArray[np.bool_], refuse: Callable[[int | None], NoReturn]) -> None:
        """Restrict vectors to these atoms, from the next `show` on."""
        self._requested = {name: RequestedVectors(requested, refuse) for name in ("positions", "velocities", "forces")}

    def show(self, restricted: bool) -> None:
        """Show only the requested atoms; or all, for transformations."""
        self._restricted = restricted and bool(self._requested)

    def detach(self) -> None:
        """Move the box, velocities and forces to new memory, so that later frames leave the old arrays alone."""
        for name in ("_unitcell", "_velocities", "_forces"):
            values = getattr(self, name, None)
            if values is not None:
                setattr(self, name, values.copy())

    def expect(self, raw: RawFrame, reader: DataReader) -> None:
        """Set the frame to read velocities and forces from on access; `reader` reads its data."""
        self._raw, self._unread, self._read_data = raw, VELOCITIES | FORCES, reader

    @property
    def data(self) -> dict[str, Any]:
        """Time, dt and the frame's data, as MDAnalysis's readers give them."""
        facts: dict[str, Any] = Timestep.data.__get__(self)
        if self._read_data is not None:
            reader, self._read_data = self._read_data, None
            assert self._raw is not None
            facts.update(reader(self._raw))
        return facts

    @data.setter
    def data(self, values: dict[str, Any]) -> None:
        Timestep.data.__set__(self, values)

    def _restrict(self, name: str, vectors: npt.NDArray[np.float32]) -> Any:
        if not self._restricted:
            return vectors
        requested = self._requested[name]
        requested.vectors = vectors
        return requested

    @property
    def positions(self) -> Any:
        """Positions in Å."""
        return self._restrict("positions", Timestep.positions.__get__(self))

    @positions.setter
    def positions(self, values: Any) -> None:
        if self._restricted:
            self.positions[:] = values
        else:
            Timestep.positions.__set__(self, values)

    @property
    def dimensions(self) -> npt.NDArray[np.float32] | None:
        """Lengths in Å and angles in degrees; None without a box."""
        if self.refuse_box is not None:
            self.refuse_box()
        box: npt.NDArray[np.float32] = self._unitcell
        return box if box[0] or box[1] or box[2] else None  # avoids the arrays that Timestep's own property makes

    @dimensions.setter
    def dimensions(self, values: Any) -> None:
        Timestep.dimensions.__set__(self, values)

    has_velocities, velocities = _lazy_properties(VELOCITIES, "velocities")  # in Å/ps
    has_forces, forces = _lazy_properties(FORCES, "forces")  # in kJ/(mol Å)

    def __getitem__(self, atoms: Any) -> Any:
        return self.positions[atoms]

    def copy_slice(self, sel: Any) -> Any:
        """Return a copy of some atoms, with the frame's data."""
        self.data  # noqa: B018 (reads it)
        return super().copy_slice(sel)

    def copy(self) -> "BoundTimestep":
        """Return a copy restricted to the same atoms."""
        (restricted, self._restricted), (reader, self._read_data) = (self._restricted, False), (self._read_data, None)
        refuse, self.refuse_box = self.refuse_box, None
        new: BoundTimestep = super().copy()
        self.refuse_box = new.refuse_box = refuse
        self._restricted = new._restricted = restricted
        self._read_data = new._read_data = reader
        new._raw = self._raw  # for its data; all else is copied
        new._requested = {
            name: RequestedVectors(vectors.requested, vectors.refuse) for name, vectors in self._requested.items()
        }
        return new
