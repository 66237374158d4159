"""How large a molecule is, and of which shape."""

from typing import ClassVar, Literal

import numpy as np

import himach
from himach import kernels
from himach.examples.common import select
from himach.examples.drawing import draw_legend, draw_mean, draw_series, panels, time_axis
from himach.examples.molecules import warn_of_cut_molecules
from himach.examples.superposition import get_weights


class RadiusOfGyration(himach.Analysis):
    """Radius of gyration, and how far from a sphere the shape is, by the gyration tensor of Theodorou and Suter.

    Molecules must be whole.

    Parameters
    ----------
    selection
        Selection of the atoms.
    weights
        Weights of atoms, in the tensor and in its centre: ``mass``, or ``none`` for equal ones.
    """

    name: ClassVar[str] = "radius-of-gyration"
    references: ClassVar[tuple[str, ...]] = ("10.1021/ma00148a028",)
    caption: ClassVar[str] = "Radius of gyration and relative shape anisotropy of {selection} against time."

    selection: str = "protein"
    weights: Literal["mass", "none"] = "mass"

    @property
    def methods(self):
        """What a paper says of it, as the parameters are."""
        weights = "weighted by mass" if self.weights == "mass" else "of equal weights"
        return (
            "The radius of gyration, asphericity, acylindricity and relative shape anisotropy of {selection}, with "
            f"atoms {weights}, were computed from the gyration tensor [10.1021/ma00148a028]."
        )

    def setup(self, universe):
        atoms = select(universe, self, "selection")
        warn_of_cut_molecules(self, atoms)
        self.indices, self.atom_weights = atoms.indices, get_weights(atoms, self)

    def atoms(self, universe):
        return universe.atoms[self.indices]

    def map(self, frame):
        tensor = kernels.gyration(frame.positions[self.indices], self.atom_weights)
        moments = np.maximum(np.linalg.eigvalsh(tensor), 0)
        smallest, middle, largest = moments
        square = moments.sum()
        asphericity, acylindricity = largest - (smallest + middle) / 2, middle - smallest
        # Also where all atoms are at one place.
        anisotropy = (asphericity**2 + 0.75 * acylindricity**2) / square**2 if square > 0 else 0.0
        yield himach.Row(
            rg=np.sqrt(square), asphericity=asphericity, acylindricity=acylindricity, anisotropy=anisotropy
        )

    def finish(self, rows):
        units = {"time_ps": "ps", "rg": "Å", "asphericity": "Å²", "acylindricity": "Å²", "anisotropy": ""}
        columns = {name: himach.Column(rows[name], unit, estimate=name != "time_ps") for name, unit in units.items()}
        return {"rg": himach.Table(columns)}

    def plot(self, outcome, axes):
        table = outcome["rg"]
        scale, label = time_axis(table["time_ps"], "time")
        axes.set_title("Radius of gyration and shape")
        size, shape = panels(axes, [1, 1])
        for panel, column, name in (size, "rg", "radius"), (shape, "anisotropy", "anisotropy"):
            draw_series(panel, scale * table["time_ps"], table[column])
            panel.margins(x=0)
            draw_mean(panel, table, column)
            draw_legend(panel)
            panel.set(xlabel=label, ylabel=table.label(column, name))
            panel.grid(alpha=0.3)
        shape.set_ylim(0, 1.3 * max(table["anisotropy"].max(), 0.01))
