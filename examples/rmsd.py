"""How far a structure has moved from where it began."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from MDAnalysis.lib.qcprot import CalcRMSDRotationalMatrix

import himach
from himach.examples.common import select


class Rmsd(himach.Analysis):
    """Root-mean-square deviation from the first selected frame, after superposition.

    Atoms have equal weights, as in the default of ``MDAnalysis.analysis.rms.RMSD``. Molecules must be whole.

    Parameters
    ----------
    selection
        Selection of the atoms that are superposed and compared.
    """

    name: ClassVar[str] = "rmsd"

    selection: str = "protein and backbone"

    def setup(self, universe):
        atoms = select(universe, self, "selection")
        self.atoms = atoms.indices
        self.reference = centred(atoms.positions)

    def map(self, frame):
        positions = centred(frame.positions[self.atoms])
        yield "rmsd", CalcRMSDRotationalMatrix(self.reference, positions, len(positions), None, None)

    def reduce(self, key, series):
        return {"time_ps": series.times, "rmsd": np.array(series.values)}

    def finish(self, results):
        return {"rmsd": results["rmsd"]}

    def plot(self, outcome, axes):
        table = outcome["rmsd"]
        axes.plot(table["time_ps"], table["rmsd"], linewidth=1)
        axes.set(xlabel="time / ps", ylabel="RMSD / Å", title="Deviation from the first frame")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)


def centred(positions):
    """Return positions about their centre, float64 (n, 3), Å."""
    positions = positions.astype(np.float64)
    positions -= positions.mean(axis=0)
    return positions
