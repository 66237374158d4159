"""The frames of a conversion: `Reader` reads them, also from other nodes; `Steps` transforms them.

Both handle only the atoms that are written or needed for those.
"""

import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from MDAnalysis import AtomGroup, Universe

from himach.atoms import Atoms
from himach.conversion.options import ConvertOptions
from himach.errors import UsageError
from himach.frame import RawFrame
from himach.io.datasets.frame_steps import PartialFrame, Shift, frame_steps, jumps, periods_to_shift, rows
from himach.io.datasets.opening import OpenFrames
from himach.io.datasets.source import Source
from himach.io.frame_source import ReadOptions
from himach.io.trajectories.origin import PUSHED
from himach.ranks.collective import run_collectively
from himach.ranks.communicator import World
from himach.staging.replication import exchange
from himach.transformations import Transformation, find_bonds, topology_bonds

NO_ATOMS = ReadOptions(np.empty(0, np.int64))
#: First serial number that does not fit into a PDB file.
PDB_SERIALS = 100_000
PDB_END = b"END\n"


class Steps:
    """Transformations of each frame, in two parts: before and after atoms are followed through the boundary.

    `needed` are the atoms to read, ascending int64 (n,); `atoms` are written. Print `warnings` before converting.
    """

    def __init__(self, opened: OpenFrames, options: ConvertOptions) -> None:
        from himach.io.universe.view import View

        self._view: View = View(opened.copy_topology(), opened.origin, opened.frames, opened.first, name="convert")
        self._universe: Universe = self._view.universe
        self.atoms: AtomGroup = Atoms.from_value(options.selection).select_fixed(self._universe, "select")
        self._bonds = topology_bonds(self._universe)  # before any are guessed
        self.warnings: list[str] = []
        ts = self._universe.trajectory.ts
        if (transform := options.transform_options).nojump and ts.dimensions is None:
            raise UsageError("nojump: the frames have no box by whose periods atoms jump; leave it out")
        if (transform.whole or transform.wrap == "molecules") and not len(self._bonds):
            n_bonds = len(find_bonds(self._universe.atoms))
            self.warnings.append(f"the topology has no bonds: {n_bonds} were guessed from distances in the first frame")
        steps: list[Transformation] = []
        for step in frame_steps(options.transform, self._universe):
            step(ts)
            steps.append(step)
        mask = np.zeros(len(self._universe.atoms), bool)
        mask[self.atoms.indices] = True
        for step in reversed(steps):
            mask = step.needed(mask)
        self.needed = np.flatnonzero(mask)
        self._read = rows(self.needed)
        self._written = rows(np.searchsorted(self.needed, self.atoms.indices))
        steps = [step.restricted_to(self.needed) for step in steps]
        self._before, self._after = (steps[:1], steps[1:]) if transform.whole else ([], steps)

    def write_topology(self, path: Path) -> None:
        """Write the topology with the positions of the first frame; call before `show`."""
        is_pdb = path.suffix.lower() in (".pdb", ".ent")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about attributes that the topology lacks
            self.atoms.write(str(path), **({"bonds": None} if is_pdb else {}))
        if is_pdb and len(self._bonds) and len(self.atoms) < PDB_SERIALS:
            _add_bonds(path, self.atoms.indices, self._bonds)

    def read(self, raw: RawFrame, copy: bool) -> PartialFrame:
        """Return the needed atoms of a frame after the first part of the steps; in new memory with `copy`."""
        positions, velocities, forces = (
            None if array is None else np.array(array[self._read], copy=copy or None)
            for array in (raw.positions, raw.velocities, raw.forces)
        )
        box = None if raw.box is None else raw.box.copy()
        assert positions is not None
        part = PartialFrame(
            raw.number, raw.time, positions, box, velocities, forces, data=raw.data, precision=raw.precision
        )
        for step in self._before:
            step(part)
        return part

    def finish(self, part: PartialFrame) -> None:
        """Apply the second part of the steps to a frame and keep only the atoms to write."""
        for step in self._after:
            step(part)
        part.positions = part.positions[self._written]
        part.velocities, part.forces = (
            None if array is None else array[self._written] for array in (part.velocities, part.forces)
        )

    def show(self, part: PartialFrame, step: int) -> AtomGroup:
        """Set the Universe to a frame of the written atoms; return these."""
        full: list[Any] = []
        for array in (part.positions, part.velocities, part.forces):
            full.append(None if array is None else np.zeros((len(self._universe.atoms), 3), np.float32))
            if array is not None:
                full[-1][self.atoms.indices] = array
        self._view.bind(RawFrame(part.number, part.time, full[0], part.box, *full[1:], data=part.data), step)
        return self.atoms


def _add_bonds(path: Path, indices: npt.NDArray[np.int64], bonds: npt.NDArray[np.int64]) -> None:
    """Add bonds to a PDB file of some atoms, with the lines of MDAnalysis's writer but faster."""
    serials = np.zeros(max(int(bonds.max()), int(indices.max())) + 1, np.int64)
    serials[indices] = np.arange(1, len(indices) + 1)
    pairs = serials[bonds]
    pairs = pairs[pairs.all(axis=1)]
    pairs = np.unique(np.concatenate([pairs, pairs[:, ::-1]]), axis=0)
    partners: dict[int, str] = {}
    for atom, partner in pairs.tolist():
        partners[atom] = partners.get(atom, "") + f"{partner:5d}"
    lines = "".join(f"CONECT{atom:5d}{texts}\n" for atom, texts in partners.items())
    with path.open("r+b") as file:
        file.seek(-len(PDB_END), os.SEEK_END)
        if file.read() != PDB_END:
            raise ValueError("it does not end as PDB files do")
        file.seek(-len(PDB_END), os.SEEK_END)
        file.write(lines.encode() + PDB_END)


class Reader:
    """Reads frames after the first part of the steps, and the jumps of atoms through the boundary."""

    def __init__(
        self, world: World, opened: OpenFrames, steps: Steps, fields: int, nojump: bool, with_data: bool
    ) -> None:  # fmt: skip
        self._world = world
        self._apart = len(world.nodes) > 1 and not opened.origin.present
        self._cached = opened.cached
        self._received: dict[int, RawFrame] = {}
        options = ReadOptions(None if len(steps.needed) == opened.origin.n_atoms else steps.needed, fields)
        self._source = Source(opened.origin, opened.cached, False, options, opened.watch)
        self._steps = steps
        self._origin = opened.origin
        self._with_data = with_data and opened.origin.present and PUSHED not in opened.origin.kinds
        self.frames = opened.frames
        self.first_time, self.timestep = opened.first.time, opened.dt or 0.0
        self.n_atoms = len(steps.needed)
        self.followed = self.n_atoms if nojump else 0

    def read(self, span: range) -> tuple[Iterable[PartialFrame], list[Shift]]:
        """Return some frames, and the shifts of atoms that jumped to each from the one before.

        If atoms are not followed, frames are read lazily, and each may reuse the memory of the one before.
        """
        if not self.followed or not span:
            return self._read(span, copy=False), []
        steps = self._steps_for(span)
        parts = list(self._read(steps, copy=True))
        no_shift = np.empty(0, np.int64), np.empty((0, 3), np.int64)
        shifts: list[Shift] = [] if steps.start < span.start else [no_shift]
        for before, after in pairwise(parts):
            vectors = after.vectors_to_follow()
            shifts.append(periods_to_shift(jumps(before.positions, after.positions, vectors, after.number), vectors))
        return parts[span.start - steps.start :], shifts

    def _steps_for(self, part: range) -> range:
        """Return the steps to read for `part`: if atoms are followed, the one before too."""
        return range(max(part.start - 1, 0), part.stop) if self.followed and part else part

    def bring(self, parts: Sequence[range]) -> None:
        """Receive the next frames of this rank that only other nodes hold (collective)."""
        self._received = {}
        if not self._apart:
            return
        comm, node_ranks = self._world.comm, self._world.node_ranks
        numbers = [np.array([self.frames[step] for step in self._steps_for(part)], np.int64) for part in parts]
        needed = np.unique(np.concatenate(numbers))
        cached = None if self._world.leaders is None else self._cached
        holds = run_collectively(comm, lambda: np.zeros(len(needed), bool) if cached is None else cached.holds(needed))
        by_rank = comm.allgather(holds)
        moves: dict[tuple[int, int], npt.NDArray[np.int64]] = {}
        for own, rank in ((ranks[0], rank) for ranks in node_ranks for rank in ranks):
            missing = np.isin(needed, numbers[rank]) & ~by_rank[own]
            for leader in (ranks[0] for ranks in node_ranks):
                if (missing & by_rank[leader]).any():
                    moves[leader, rank] = needed[missing & by_rank[leader]]
                missing &= ~by_rank[leader]
        self._received = {frame.number: frame for frame in exchange(comm, moves, self._source.read)}

    def _read(self, steps: range, copy: bool) -> Iterator[PartialFrame]:
        numbers = np.array([self.frames[step] for step in steps], np.int64)
        facts: dict[int, tuple[dict[str, Any] | None, float]] = {}
        local_numbers = [number for number in numbers.tolist() if number not in self._received]
        frames = self._source.read(np.array(local_numbers, np.int64))
        for number in numbers.tolist():
            raw = self._received.get(number) or next(frames)
            if raw.data is None and self._with_data:
                if not facts:
                    facts = {head.number: (head.data, head.precision) for head in self._origin.read(numbers, NO_ATOMS)}
                raw.data, raw.precision = facts[raw.number]
            yield self._steps.read(raw, copy)

    def close(self) -> None:
        """Close the source."""
        self._source.close(False)
