"""An analysis's view of a frame: `View`, the trajectory of its own Universe, bound to one frame at a time.

It has one Timestep and no file. Positions are bound without a copy. Other frames are refused, because each rank sees
only some frames.
"""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from functools import partial
from numbers import Integral
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
from MDAnalysis import Universe
from MDAnalysis.coordinates.base import FrameIteratorAll, FrameIteratorBase, ProtoReader
from MDAnalysis.coordinates.timestep import Timestep
from MDAnalysis.core.topology import Topology

from himach.errors import AnalysisError, TrajectoryError, UsageError
from himach.frame import DATA, Frame, RawFrame
from himach.io.frame_source import ReadOptions
from himach.io.trajectories.origin import PUSHED, Origin
from himach.io.trajectories.xdr_file import out_of_reach
from himach.io.universe.gather import first_lost
from himach.io.universe.requested import requested_atoms
from himach.io.universe.timestep import BoundTimestep, FrameNumber
from himach.selection import Selected
from himach.transformations import Transformation

_set_data = Timestep.data.__set__


class _BoundFrame(Frame):
    """A frame with the arrays of a timestep; velocities and forces are read on access."""

    __slots__ = ("_raw", "_timestep", "_view")

    def __init__(self, raw: RawFrame, step: int, timestep: Timestep, view: "View", member: str | None) -> None:
        self.member = member
        self.number = raw.number
        self.step = step
        self.time = raw.time
        self.positions = timestep.positions
        self.universe = view.universe
        self._timestep = timestep
        self._raw = raw
        self._view = view

    @property
    def box(self) -> Any:  # type: ignore[override]
        """Lengths in Å and angles in degrees, or None; refused if fit has rotated the atoms but not the box."""
        return self._timestep.dimensions

    @property
    def pair_box(self) -> Any:
        """The box for pairs of the frame; None where `box` is refused."""
        refused = isinstance(self._timestep, BoundTimestep) and self._timestep.refuse_box is not None
        return None if refused else self._timestep.dimensions

    @property
    def data(self) -> dict[str, Any]:  # type: ignore[override]
        """The frame's other data in the file."""
        return self._view.data(self._raw)

    @property
    def velocities(self) -> Any:  # type: ignore[override]
        """Velocities in Å/ps, or None."""
        return self._timestep.velocities if self._timestep.has_velocities else None

    @property
    def forces(self) -> Any:  # type: ignore[override]
        """Forces in kJ/(mol Å), or None."""
        return self._timestep.forces if self._timestep.has_forces else None


def _refuse(universe: Universe, label: str, atom: int | None) -> NoReturn:
    """Raise for a map() that uses an atom, or all (None), that its atoms() does not request."""
    if atom is None:
        raise AnalysisError(
            f"{label} uses positions, velocities or forces of all {len(universe.atoms)} atoms at once, and its atoms() "
            f"asks for some; index them, as in frame.positions[group.ix], or return universe.atoms from atoms() of "
            f"{label}"
        )
    raise AnalysisError(
        f"{label} touches atom {atom} ({_describe_atom(universe.atoms[atom])}), which its atoms() does not ask for; "
        f"add it to atoms() of {label}"
    )


def _describe_atom(atom: Any) -> str:
    """Return an atom's name and residue, as far as the topology has them."""
    name = getattr(atom, "name", "") or getattr(atom, "type", "") or "unnamed"
    residue = " ".join(str(word) for word in (getattr(atom, "resname", ""), getattr(atom, "resid", "")) if word != "")
    return f"{name} of residue {residue}" if residue else str(name)


class _Universe(Universe):  # type: ignore[misc]
    """A Universe whose trajectory cannot be replaced."""

    name = ""

    def load_new(self, *args: Any, **keywords: Any) -> NoReturn:
        raise AnalysisError(
            f"{self.name}: universe.load_new() is refused, because himach decides which frame the Universe is at; "
            "make a Universe of your own from universe.copy()"
        )


class _PresentFrame(FrameIteratorBase):  # type: ignore[misc]
    """Iterable of the present frame."""

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Timestep]:
        yield self.trajectory.ts


class View(ProtoReader):  # type: ignore[misc]
    """The trajectory of an analysis's own Universe, made of a topology of its own: one frame at a time."""

    units = {"time": "ps", "length": "Angstrom", "velocity": "Angstrom/ps", "force": "kJ/(mol*Angstrom)"}  # noqa: RUF012

    def __init__(
        self,
        topology: Topology,
        origin: Origin,
        frames: Selected,
        first: RawFrame,
        *,
        name: str = "",
        member: str | None = None,
        finite: bool = False,
        nojump: bool = False,
    ) -> None:
        super().__init__()
        self._member = member
        self._finite = finite
        self._frames = frames
        self._name = name or "the analysis"
        self._first = first
        self._nojump = nojump
        self.filename = origin.paths[0]
        self.n_frames = origin.n_frames
        self.n_atoms = origin.n_atoms
        self.kinds = origin.kinds
        self._dt = origin.timestep
        self._origin = origin
        self._bound_timestep = BoundTimestep(origin.n_atoms, reader=self)
        self.ts: Timestep = self._bound_timestep
        self._memory: npt.NDArray[np.float32] | None = None
        self._number = FrameNumber(-1)
        self._requested: npt.NDArray[np.int64] | None = None
        self._needs: tuple[npt.NDArray[np.int64] | None] | None = None
        self._cached_data: tuple[RawFrame, dict[str, Any]] | None = None
        self._detached = False
        self.universe = _Universe(topology, to_guess=())
        self.universe.name = self._name
        self.universe.trajectory = self
        self.go_back()

    def transform(self, add: Callable[[Universe], None]) -> None:
        """Have `add` add transformations to the Universe, and rebind it, so that updating groups see them."""
        add(self.universe)
        self.go_back()

    def ask(self, groups: Any) -> None:
        """Restrict later frames to the atoms that atoms() returned."""
        requested = requested_atoms(groups, self.universe, self._name)
        if not requested.all():
            self._requested, self._needs = np.flatnonzero(requested), None
            self._bound_timestep.ask(requested, partial(_refuse, self.universe, self._name))

    def detach(self) -> None:
        """Give later frames new arrays, so that those that setup() kept, such as the box, stay unchanged."""
        self._bound_timestep.detach()
        self._memory = None
        self._detached = True

    def go_back(self) -> None:
        """Bind the Universe to a copy of the first selected frame; after map(), all ranks show the same frame again."""
        self._bind(self._first, copy=True)  # setup() may write to positions, and the source's frame must stay as read

    def bind(self, raw: RawFrame, step: int, copy: bool = False) -> Frame:
        """Bind the Universe to a frame, or to a copy, with the transformations and auxiliaries that setup() added."""
        assert self._frames[step] == raw.number, f"frame {raw.number} is not at step {step} of {self._frames}"
        if self._finite and raw.coded is None and (atom := first_lost(raw.positions, self.needs)) >= 0:
            description = f"atom {atom} ({_describe_atom(self.universe.atoms[atom])})"
            raise TrajectoryError(
                f"{self._name}: in frame {raw.number} the position of {description} "
                "is nan or infinite; leave the frame out (--frames), or the atom"
            )
        return _BoundFrame(raw, step, self._bind(raw, copy), self, self._member)

    def positions_at(self, number: int) -> npt.NDArray[np.float32]:
        """Return positions of any frame of the dataset as the run transforms it; only in setup()."""
        if self._detached:
            self._refuse()
        at = number + self.n_frames if number < 0 else number
        if not 0 <= at < self.n_frames:
            raise UsageError(f"{self._name}: there is no frame {number}, the trajectory has {self.n_frames}")
        if self._origin.kinds == (PUSHED,) or not self._origin.present:
            raise AnalysisError(f"{self._name} reads frame {number} in setup(), and {out_of_reach(self.filename)}")
        if self._nojump and at != self._first.number:
            where = f"the first selected frame, {self._first.number}"
            raise AnalysisError(f"{self._name} reads frame {number}, and nojump follows atoms from {where}: take that")
        raw = self._first if self._nojump else next(self._origin.read([at], ReadOptions()))
        if not self._auxs and not self._transformations:
            return raw.positions.copy()
        try:
            return np.array(self._bind(raw, copy=True).positions)
        finally:
            self.go_back()

    @property
    def needs(self) -> npt.NDArray[np.int64] | None:
        """Indices of the needed atoms; None for all, e.g. if a transformation may use any."""
        if self._requested is None or not self.transformations:
            return self._requested
        if self._needs is None:
            self._needs = (self._needed(self._requested),)
        return self._needs[0]

    def _needed(self, requested: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
        """Return the atoms that transformations need for the requested ones; None for all."""
        mask = np.zeros(self.n_atoms, bool)
        mask[requested] = True
        for transformation in reversed(self.transformations):
            if not isinstance(transformation, Transformation):
                return None
            mask = transformation.needed(mask)
        return None if mask.all() else np.flatnonzero(mask)

    def _bind(self, raw: RawFrame, copy: bool) -> Timestep:
        """Set the frame, then apply auxiliaries and transformations as MDAnalysis's readers do."""
        timestep = self._bound_timestep
        timestep.frame, timestep.refuse_box = raw.number, None
        self._number = FrameNumber(raw.number)
        _set_data(timestep, {"time": raw.time, "dt": self.dt})
        if not timestep.has_positions:  # a transformation removed them; setting this again zeroes the present array
            timestep._pos = np.empty_like(raw.positions)
            timestep.has_positions = True
        timestep._pos = self._copy_positions(raw.positions) if copy else raw.positions
        timestep.dimensions = raw.box
        self._cached_data = None
        timestep.expect(raw, self._timestep_data)
        self.ts = timestep
        if self._auxs or self._transformations:
            timestep.show(False)
            for auxiliary in self._auxs.values():
                self.ts = auxiliary.update_ts(self.ts)
            self.ts = self._apply_transformations(self.ts)
            if any(getattr(transformation, "turns", False) for transformation in self._transformations):
                timestep.refuse_box = self._refuse_box
        if isinstance(self.ts, BoundTimestep):  # a transformation may have replaced it
            self.ts.show(True)
        return self.ts

    def data(self, raw: RawFrame) -> dict[str, Any]:
        """Return a frame's other data in the file; for a cached frame, read them from there."""
        if self._cached_data is None or self._cached_data[0] is not raw:
            data = self._read_data(raw) if raw.data is None else raw.data
            self._cached_data = raw, deepcopy(data)  # analyses must not see each other's changes
        return self._cached_data[1]

    def _read_data(self, raw: RawFrame) -> dict[str, Any]:
        if self._origin.kinds == (PUSHED,):
            return {}
        if not self._origin.present:
            raise AnalysisError(
                f"{self._name} reads frame.data, what the file says of frame {raw.number} beside positions, velocities "
                f"and forces: caches do not keep it, and {out_of_reach(self.filename)}"
            )
        if raw.more is None:
            raw = next(self._origin.read([raw.number], ReadOptions(np.empty(0, np.int64))))
        return raw.field(DATA) or {}

    def _timestep_data(self, raw: RawFrame) -> dict[str, Any]:
        """Return the same for the timestep, as MDAnalysis's writers use it; empty if the file is out of reach."""
        return self.data(raw) if raw.data is not None or self._origin.present else {}

    def _copy_positions(self, positions: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        if self._memory is None:
            self._memory = np.empty((self.n_atoms, 3), dtype=np.float32)
        if self.needs is None:
            np.copyto(self._memory, positions)
        else:
            self._memory[self.needs] = positions.take(self.needs, axis=0)
        return self._memory

    @property
    def frame(self) -> int:
        """Number of the frame in the dataset."""
        return self._number

    @property
    def dt(self) -> float:
        """Time step of the dataset, ps; 0 for a single frame."""
        return self._dt if self._dt is not None else 0.0

    def add_transformations(self, *transformations: Any) -> None:
        """Add transformations that need no other frame; they run on every frame."""
        for transformation in transformations:
            if not getattr(transformation, "parallelizable", True):
                raise AnalysisError(
                    f"{self._name}: the transformation {type(transformation).__name__} needs other frames, and each "
                    "rank sees some frames only; follow atoms by transform=[himach.transformations.NoJump()] of the "
                    "run (--nojump), or yield the positions and do it over the series in reduce()"
                )
        # They follow the transformations of the run's universe and of the run itself.
        self._transformations: Sequence[Any] = [*self._transformations, *transformations]
        self._needs = None
        for transformation in transformations:
            self.ts = transformation(self.ts)
            if getattr(transformation, "turns", False):
                self._bound_timestep.refuse_box = self._refuse_box

    def copy(self) -> "View":
        """Return a reader with a copy of the present frame."""
        new = View.__new__(View)
        ProtoReader.__init__(new)
        new.__dict__.update(
            {**self.__dict__, "_auxs": {}, "_transformations": [*self._transformations], "_memory": None}
        )
        new._bound_timestep = new.ts = self.ts.copy()
        return new

    def close(self) -> None:
        """Do nothing: no file is open."""

    def _refuse(self, *args: Any, **keywords: Any) -> NoReturn:
        raise AnalysisError(
            f"{self._name}: universe.trajectory cannot be moved to other frames, because each rank sees some "
            "frames only; use the frame that map() gets, and reduce() for what needs several frames"
        )

    def _refuse_box(self) -> NoReturn:
        raise AnalysisError(
            f"{self._name} asks for the box, and fit has turned the atoms of the frame out of it: leave fit out of the "
            "run (--fit), or analyse without the box"
        )

    def __getitem__(self, frames: Any) -> Any:
        present = int(self._number)
        if isinstance(frames, Integral):
            return self.ts if frames == present else self._refuse()
        if isinstance(frames, slice):
            if frames == slice(None):  # AtomGroup.write() takes this slice and its length; iterating is refused
                return FrameIteratorAll(self)
            frames = range(*super().check_slice_indices(frames.start, frames.stop, frames.step))
        return _PresentFrame(self) if len(frames) == 1 and frames[0] == present else self._refuse()

    def check_slice_indices(self, start: int | None, stop: int | None, step: int | None) -> tuple[int, int, int]:
        """Return the present frame for all frames, so that MDAnalysis's analyses run on it."""
        if start is stop is step is None:
            return int(self._number), int(self._number) + 1, 1
        indices: tuple[int, int, int] = super().check_slice_indices(start, stop, step)
        return indices

    next = __next__ = __iter__ = rewind = timeseries = _refuse
    _reopen = _read_next_timestep = _read_frame = _read_frame_with_aux = _sliced_iter = _refuse
