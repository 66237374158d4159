"""Transformations of frames before map(): `universe_transform()`, and `Paths`, which do not jump through the boundary.

From one frame to the next each atom takes the shortest step in the box of the later one (von Bülow, Bullerjahn and
Hummer, J. Chem. Phys. 153, 021101 (2020)). The box vectors by which steps in the file are longer are summed as integers
of a small unit, so that sums do not depend on how frames are divided among ranks.

In a run, the ranks read all frames once before the first map() and count the periods by which atoms jump to each frame.
The counts are in the memory of each node, so every rank can compute the shifts of any frame.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from himach.errors import UsageError
from himach.frame import RawFrame, Vectors
from himach.io.datasets.opening import OpenFrames, share_from_first
from himach.io.datasets.request import FramesRequest
from himach.io.datasets.source import Source
from himach.ranks.collective import run_collectively
from himach.ranks.communicator import World
from himach.selection import Selected, find_steps, numbers_at

if TYPE_CHECKING:
    from MDAnalysis import Universe

    from himach.transformations import NoJump, Transformation

Rows = slice | npt.NDArray[np.int64]


@dataclass(slots=True)
class PartialFrame(RawFrame):
    """Some atoms of a frame, with the interface of a timestep for transformations."""

    @property
    def frame(self) -> int:
        """Frame number."""
        return self.number

    @property
    def dimensions(self) -> Vectors | None:
        """Box lengths and angles."""
        return self.box

    @property
    def triclinic_dimensions(self) -> Vectors | None:
        """Box vectors."""
        from MDAnalysis.lib.mdamath import triclinic_vectors

        return None if self.box is None else triclinic_vectors(self.box)

    def vectors_to_follow(self) -> npt.NDArray[np.float64]:
        """Return the box vectors for following atoms, float64 (3, 3); raises UsageError if there is no box."""
        vectors = self.triclinic_dimensions
        if vectors is None:
            raise UsageError(f"frame {self.number} has no box by which its atoms could be followed")
        return vectors.astype(np.float64)

    @property
    def has_velocities(self) -> bool:
        """Whether there are velocities."""
        return self.velocities is not None

    @property
    def has_forces(self) -> bool:
        """Whether there are forces."""
        return self.forces is not None


def rows(indices: npt.NDArray[np.int64]) -> Rows:
    """Return an index of rows: a slice if they are consecutive, which avoids a copy."""
    start, n = int(indices[0]) if len(indices) else 0, len(indices)
    return slice(start, start + n) if np.array_equal(indices, np.arange(start, start + n)) else indices


def frame_steps(steps: "Iterable[Transformation | NoJump]", universe: "Universe") -> "Iterator[Transformation]":
    """Yield the transformations, except `NoJump`, each bound to the first frame as the previous ones leave it."""
    from himach.transformations import Transformation

    for step in steps:
        if isinstance(step, Transformation):
            yield step.bind(universe)


def universe_transform(request: FramesRequest) -> "Callable[[Universe], None] | None":
    """Return a function that adds the given Universe's transformations and the steps to a run's Universe."""
    own_transform = None if request.universe_input is None else request.universe_input.transform
    done_before = ("whole", "nojump") if request.transform_options.nojump else ()
    steps = [step for step in request.transform if step.name not in done_before]
    if not steps:
        return own_transform

    def add_all(universe: "Universe") -> None:
        if own_transform is not None:
            own_transform(universe)
        for step in frame_steps(steps, universe):
            universe.trajectory.add_transformations(step)

    return add_all


Ints = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]
#: Unit in which shifts are summed, Å: box vectors are float32 and have no finer digits.
UNIT = 2.0**-30

#: Shifted atoms, int64 (k,), and their shifts, int64 (k, 3) in units of `UNIT`.
Shift = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
#: An atom that jumped, and the number of each box vector.
JUMP = np.dtype([("atom", np.uint32), ("periods", np.int16, 3)])
Jumps = npt.NDArray[np.void]
MOST_PERIODS = np.iinfo(np.int16).max
#: A box and those around it, in periods.
CELLS = np.stack(np.meshgrid(*[(0, -1, 1)] * 3, indexing="ij"), axis=-1).reshape(-1, 3)


def jumps(before: Vectors, after: Vectors, vectors: npt.NDArray[np.float64], frame: int) -> Jumps:
    """Return the atoms that jumped between frames, `JUMP` (k,); `vectors` are of the later box, float64 (3, 3), Å."""
    if not np.all(np.diagonal(vectors) > 0):
        raise UsageError(f"frame {frame} has no box by which its atoms could be followed; leave nojump out")
    step = np.empty((3, len(after)))  # by axis, as below
    counts = np.empty_like(step)
    with np.errstate(invalid="ignore"):  # from infinite positions
        np.subtract(after.T, before.T, out=step, dtype=np.float64)
        for axis in (2, 1, 0):
            np.rint(step[axis] / vectors[axis, axis], out=counts[axis])
            jumped = np.flatnonzero(counts[axis])
            step[:, jumped] -= vectors[axis][:, np.newaxis] * counts[axis, jumped]
        if np.count_nonzero(vectors) > 3:  # the shortest step may be a neighbouring image
            x, y, z = step
            far = np.flatnonzero(x * x + y * y + z * z > (np.diagonal(vectors).min() / 2) ** 2)
            images = step.T[far][:, np.newaxis] - CELLS @ vectors
            counts[:, far] += CELLS[(images**2).sum(axis=2).argmin(axis=1)].T
    atoms = np.flatnonzero((counts[0] != 0) | (counts[1] != 0) | (counts[2] != 0))
    counted = counts.T[atoms]
    lost = np.flatnonzero(~(np.abs(counted) < MOST_PERIODS).all(axis=1))
    if len(lost):
        raise UsageError(
            f"frame {frame}: atoms cannot be followed to it, {len(lost)} of them: they, or those before, are at no "
            f"place (nan), or jump by {MOST_PERIODS} periods of the box or more; leave this frame out, or nojump"
        )
    jumped_atoms = np.empty(len(atoms), JUMP)
    jumped_atoms["atom"], jumped_atoms["periods"] = atoms, counted
    return jumped_atoms


def periods_to_shift(jumped_atoms: Jumps, vectors: npt.NDArray[np.float64]) -> Shift:
    """Return the shift of atoms that jumped in a box with these vectors, float64 (3, 3), Å."""
    atoms, periods = (jumped_atoms[name].astype(np.int64) for name in ("atom", "periods"))
    return atoms, np.rint(periods @ vectors / UNIT).astype(np.int64)


def add(shift: Shift, shifts: npt.NDArray[np.int64]) -> None:
    """Add the shift of some atoms to the shifts of all, int64 (n, 3)."""
    atoms, units = shift
    shifts[atoms] += units


def total(shifts: Sequence[Shift], n_atoms: int) -> Shift:
    """Return the sum of shifts."""
    sums = np.zeros((n_atoms, 3), np.int64)
    moved = np.zeros(n_atoms, bool)
    for shift in shifts:
        add(shift, sums)
        moved[shift[0]] = True
    atoms = np.flatnonzero(moved)
    return atoms, sums[atoms]


#: Words sent from node to node at a time.
ROUND_WORDS = 1 << 22


class Paths:
    """Removes jumps from frames, from the first selected one on; molecules are made whole first, if requested."""

    def __init__(self, request: FramesRequest, opened: OpenFrames) -> None:
        from himach.io.universe.view import View
        from himach.transformations import Whole

        self._frames: Selected = opened.frames
        self._n_atoms = opened.origin.n_atoms
        first = opened.first
        if first.box is None:
            raise UsageError("nojump: the frames have no box by whose periods atoms jump; leave it out")
        self._whole: Whole | None = None
        if request.transform_options.whole:
            view = View(opened.copy_topology(), opened.origin, opened.frames, first, name="nojump")
            self._whole = Whole(view.universe.atoms)
            first.positions = np.array(first.positions)
        self._rows: slice | Ints = slice(0, self._n_atoms)
        self._extract(first)
        self._jumps: Jumps = np.empty(0, JUMP)
        self._ends: Ints = np.zeros(1, np.int64)  # of the jumps to each step
        self._vectors: Doubles = np.empty((0, 3, 3))
        self._at = 0  # step that _moved and _shift belong to
        self._moved: Ints = np.empty((0, 3), np.int64)
        self._shift: Doubles = np.empty((0, 3))

    def follow(self, atoms: Ints | None) -> Ints | None:
        """Follow only the atoms needed for some, ascending; return the followed atoms, None for all."""
        if atoms is not None:
            mask = np.zeros(self._n_atoms, bool)
            mask[atoms] = True
            if self._whole is not None:
                mask = self._whole.needed(mask)
            atoms = np.flatnonzero(mask)
            self._rows = rows(atoms)
            self._whole = None if self._whole is None else self._whole.restricted_to(atoms)
        n = self._n_atoms if atoms is None else len(atoms)
        self._moved, self._shift = np.zeros((n, 3), np.int64), np.zeros((n, 3))
        return atoms

    def count(self, world: World, source: Source, n_steps: int) -> None:
        """Count the jumps in the first `n_steps` steps of the selection (collective)."""
        comm = world.comm
        part = range(n_steps * comm.rank // comm.size, n_steps * (comm.rank + 1) // comm.size)
        jump_rows, *own = run_collectively(comm, partial(self._count_jumps, source, part))
        by_rank = comm.gather(own)

        def join() -> tuple[Ints, Doubles]:
            counts, vectors = (np.concatenate(columns) for columns in zip(*by_rank, strict=True))
            return np.concatenate([[0], np.cumsum(counts)]), vectors

        (self._ends, self._vectors), _ = share_from_first(world, join)
        self._jumps = _share_jumps(world, jump_rows, int(self._ends[part.start]), int(self._ends[-1]))

    def _count_jumps(self, source: Source, part: range) -> tuple[Jumps, Ints, Doubles]:
        """Return the jumps to each step of `part` from the one before, their counts, and the box vectors, (n, 3, 3)."""
        jump_rows = [np.empty(0, JUMP)]
        counts, vectors = np.zeros(len(part), np.int64), np.empty((len(part), 3, 3))
        steps = np.arange(max(part.start - 1, 0), part.stop) if len(part) else np.empty(0, np.int64)
        before = None
        for step, raw in zip(steps.tolist(), source.read(numbers_at(self._frames, steps)), strict=True):
            after = self._extract(raw)
            if step >= part.start:
                box = vectors[step - part.start] = after.vectors_to_follow()
                if before is not None:
                    jump_rows.append(jumps(before, after.positions, box, after.number))
                    counts[step - part.start] = len(jump_rows[-1])
            before = after.positions.copy()  # the reader reuses its memory
        return np.concatenate(jump_rows), counts, vectors

    def _extract(self, raw: RawFrame) -> PartialFrame:
        """Return the followed atoms, made whole in the frame's own memory if requested."""
        part = PartialFrame(raw.number, raw.time, raw.positions[self._rows], raw.box)
        if self._whole is not None:
            self._whole(part)
            raw.positions[self._rows] = part.positions
        return part

    def read(self, source: Source, numbers: Ints) -> Iterator[RawFrame]:
        """Yield frames of a source without jumps."""
        steps = find_steps(self._frames, numbers)
        for step, raw in zip(steps.tolist(), source.read(numbers), strict=True):
            part = self._extract(raw)
            self._go_to(step)
            raw.positions[self._rows] = part.positions - self._shift
            yield raw

    def _go_to(self, step: int) -> None:
        forward = step > self._at
        for index in range(self._at + 1, step + 1) if forward else range(self._at, step, -1):
            chunk = self._jumps[self._ends[index] : self._ends[index + 1]]
            atoms, units = periods_to_shift(chunk, self._vectors[index])
            self._moved[atoms] += units if forward else -units
            self._shift[atoms] = self._moved[atoms] * UNIT
        self._at = step


def _share_jumps(world: World, own: Jumps, first: int, n: int) -> Jumps:
    """Return the `n` jumps of all ranks, once in the memory of each node, where this rank's have number `first`.

    No rank has more than its own and a piece of them besides.
    """
    words = world.share_words(-(-n * JUMP.itemsize // 8) or 1)
    if world.leaders is not None:
        words[:] = 0
    world.node.barrier()
    jump_rows = words.view(np.uint8)[: n * JUMP.itemsize].view(JUMP)
    jump_rows[first : first + len(own)] = own
    world.node.barrier()
    if world.leaders is not None and world.leaders.size > 1:
        for piece in np.split(words, range(ROUND_WORDS, len(words), ROUND_WORDS)):
            world.leaders.Allreduce(piece.copy(), piece, world.bor)
    world.node.barrier()
    return jump_rows
