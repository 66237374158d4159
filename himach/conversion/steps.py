"""What a conversion does to frames: `Steps`, on the atoms alone that are written or needed for those."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from himach.atoms import Atoms
from himach.conversion.options import ConvertOptions
from himach.errors import UsageError
from himach.frame import RawFrame
from himach.opening.dataset import Opened
from himach.opening.frame_steps import Part, frame_steps, rows

if TYPE_CHECKING:
    from MDAnalysis import AtomGroup, Universe

    from himach.transformations import Transformation

__all__ = ["Steps"]

#: PDB files have no numbers of atoms from here on.
PDB_SERIALS = 100_000
PDB_END = b"END\n"


class Steps:
    """What is done to each frame, in two parts: before atoms are followed through the boundary, and then.

    Parameters
    ----------
    opened
        What is converted.
    options
        What is asked.

    Attributes
    ----------
    atoms
        Those that are written.
    needed
        The atoms that frames are read for, ascending int64 (n,).
    warnings
        What is to be said before.
    """

    def __init__(self, opened: Opened, options: ConvertOptions) -> None:
        from himach.io.universe.view import View
        from himach.transformations import known_bonds

        self._view: View = View(opened.topology, opened.origin, opened.frames, opened.first, name="convert")
        self._universe: Universe = self._view.universe
        self.atoms: AtomGroup = Atoms.of(options.selection).select_fixed(self._universe, "select")
        self._bonds = known_bonds(self._universe)  # before any are guessed
        self.warnings: list[str] = []
        ts = self._universe.trajectory.ts
        if options.nojump and ts.dimensions is None:
            raise UsageError("nojump: the frames have no box by whose periods atoms jump; leave it out")
        if options.whole or options.wrap == "molecules":
            self._need_bonds()
        steps: list[Transformation] = []
        for step in frame_steps(options, self._universe, options.wrap):
            step(ts)
            steps.append(step)
        wanted = np.zeros(len(self._universe.atoms), bool)
        wanted[self.atoms.indices] = True
        for step in reversed(steps):
            wanted = step.needed(wanted)
        self.needed = np.flatnonzero(wanted)
        self._read = rows(self.needed)
        self._written = rows(np.searchsorted(self.needed, self.atoms.indices))
        steps = [step.of(self.needed) for step in steps]
        self._before, self._after = (steps[:1], steps[1:]) if options.whole else ([], steps)

    def _need_bonds(self) -> None:
        from himach.transformations import find_bonds

        if not len(self._bonds):
            found = len(find_bonds(self._universe.atoms))
            self.warnings.append(f"the topology has no bonds: {found} were guessed from distances in the first frame")

    def write_topology(self, path: Path) -> None:
        """Write the atoms as they are in the first frame, before another is shown."""
        is_pdb = path.suffix.lower() in (".pdb", ".ent")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what a format has and the topology lacks
            self.atoms.write(str(path), **({"bonds": None} if is_pdb else {}))
        if is_pdb and len(self._bonds) and len(self.atoms) < PDB_SERIALS:
            _add_bonds(path, self.atoms.indices, self._bonds)

    def read(self, raw: RawFrame, copy: bool) -> Part:
        """Return what is needed of a frame, as it is before atoms are followed; in memory of its own, if asked."""
        positions, velocities, forces = (
            None if each is None else np.array(each[self._read], copy=copy or None)
            for each in (raw.positions, raw.velocities, raw.forces)
        )
        box = None if raw.box is None else raw.box.copy()
        assert positions is not None
        part = Part(raw.number, raw.time, positions, box, velocities, forces, data=raw.data)
        for step in self._before:
            step(part)
        return part

    def finish(self, part: Part) -> None:
        """Do the rest to a frame, and leave of it the atoms that are written."""
        for step in self._after:
            step(part)
        part.positions = part.positions[self._written]
        part.velocities, part.forces = (
            None if each is None else each[self._written] for each in (part.velocities, part.forces)
        )

    def show(self, part: Part, step: int) -> AtomGroup:
        """Show a frame of the atoms that are written; return these."""
        of_all: list[Any] = []
        for each in (part.positions, part.velocities, part.forces):
            of_all.append(None if each is None else np.zeros((len(self._universe.atoms), 3), np.float32))
            if each is not None:
                of_all[-1][self.atoms.indices] = each
        self._view.bind(RawFrame(part.number, part.time, of_all[0], part.box, *of_all[1:], data=part.data), step)
        return self.atoms


def _add_bonds(path: Path, indices: npt.NDArray[np.int64], bonds: npt.NDArray[np.int64]) -> None:
    """Add the bonds between some atoms to a PDB file of these: by the lines of MDAnalysis's writer, in less time."""
    serials = np.zeros(max(int(bonds.max()), int(indices.max())) + 1, np.int64)
    serials[indices] = np.arange(1, len(indices) + 1)
    ends = serials[bonds]
    ends = ends[ends.all(axis=1)]
    ends = np.unique(np.concatenate([ends, ends[:, ::-1]]), axis=0)
    partners: dict[int, str] = {}
    for one, other in ends.tolist():
        partners[one] = partners.get(one, "") + f"{other:5d}"
    lines = "".join(f"CONECT{one:5d}{others}\n" for one, others in partners.items())
    with path.open("r+b") as file:
        file.seek(-len(PDB_END), os.SEEK_END)
        if file.read() != PDB_END:
            raise ValueError("it does not end as PDB files do")
        file.seek(-len(PDB_END), os.SEEK_END)
        file.write(lines.encode() + PDB_END)
