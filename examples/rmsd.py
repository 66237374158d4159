"""How far a structure has moved from where it began."""

from __future__ import annotations

from typing import ClassVar

import himach
from himach import kernels
from himach.examples.common import draw_mean, select, time_axis


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
        self.indices, self.reference = atoms.indices, atoms.positions

    def atoms(self, universe):
        return universe.atoms[self.indices]

    def map(self, frame):
        yield himach.Pairs([0], [kernels.rmsd(frame.positions[self.indices], self.reference)])

    def reduce(self, key, series):
        return {"time_ps": series.times, "rmsd": series.values}

    def finish(self, results):
        times, rmsd = results[0]["time_ps"], himach.Column(results[0]["rmsd"], "Å", estimate=True)
        return {"rmsd": himach.Table({"time_ps": himach.Column(times, "ps"), "rmsd": rmsd})}

    def plot(self, outcome, axes):
        table = outcome["rmsd"]
        scale, label = time_axis(table["time_ps"], "time")
        axes.plot(scale * table["time_ps"], table["rmsd"], linewidth=1)
        axes.set(xlabel=label, ylabel=table.label("rmsd", "RMSD"))
        axes.set_title("Deviation from the first frame")
        draw_mean(axes, table, "rmsd")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
