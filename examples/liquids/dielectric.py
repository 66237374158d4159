"""How much a liquid screens charges: from what its dipole moment fluctuates by."""

from typing import ClassVar

import numpy as np
from MDAnalysis.lib.mdamath import box_volume
from scipy import constants

import himach
from himach import kernels, uncertainty
from himach.examples.charges import get_charges
from himach.examples.common import check_positive, select
from himach.examples.drawing import draw_legend, draw_series, in_words, time_axis
from himach.examples.groups import residue_labels
from himach.examples.molecules import Centers

#: Charge, e, above which a molecule is not neutral.
NEUTRAL = 1e-4
#: e² / ε0 k in Å K.
E2_EPS0_K = constants.e**2 / (constants.epsilon_0 * constants.k * constants.angstrom)


class Dielectric(himach.Analysis):
    """Static dielectric constant of a liquid of neutral molecules, from the fluctuations of its dipole moment.

    It is that of a simulation with Ewald sums and conducting ("tin foil") boundary. Molecules are made whole in each
    frame. The constant converges slowly: look at the table of running values.

    Parameters
    ----------
    selection
        Selection of the atoms: neutral molecules, which are whole molecules.
    temperature
        Temperature of the simulation in K.
    charges
        Charges of atoms in e where the topology has none, or wrong ones: a list of ``SELECTION = CHARGE``.
    """

    name: ClassVar[str] = "dielectric"
    methods: ClassVar[str] = (
        "The static dielectric constant was computed from fluctuations of the total dipole moment of {selection} at "
        "{temperature} K, with conducting boundary conditions [10.1080/00268978300102721]."
    )
    references: ClassVar[tuple[str, ...]] = ("10.1080/00268978300102721",)
    caption: ClassVar[str] = (
        "Static dielectric constant of {selection} at {temperature} K, by the frames up to each time."
    )

    selection: str = "all"
    temperature: float = 300.0
    charges: list[str] | None = None

    def setup(self, universe):
        check_positive(self, "temperature")
        if universe.dimensions is None:
            raise himach.UsageError("dielectric: the trajectory has no box, and the constant needs its volume")
        atoms = select(universe, self, "selection")
        molecules = Centers(atoms, self, by="molecule")
        selected = np.isin(molecules.indices, atoms.indices)
        self.indices, self.tree = molecules.indices, molecules.tree
        self.atom_charges = np.where(selected, get_charges(universe.atoms[self.indices], self), 0)
        total = np.bincount(molecules.groups, self.atom_charges)
        worst = int(np.argmax(np.abs(total)))
        if abs(total[worst]) > NEUTRAL:
            first = universe.atoms[self.indices[molecules.groups == worst][:1]]
            raise himach.UsageError(
                f"dielectric: what is selected of the molecule of {residue_labels(first.residues)[0]} has a charge of "
                f"{total[worst]:.4g} e, and what is charged has no dipole moment of its own; select whole neutral "
                "molecules"
            )

    def atoms(self, universe):
        return universe.atoms[self.indices]

    def map(self, frame):
        if frame.box is None:
            raise himach.UsageError("the frame has no box, and the constant needs its volume; select frames with a box")
        whole = kernels.unwrap(frame.positions[self.indices], self.tree, frame.box)
        moment = (self.atom_charges * whole.T).sum(axis=1)
        yield himach.Pairs([0], [[*moment, box_volume(frame.box)]])

    def reduce(self, key, series):
        return series.times, series.values

    def finish(self, results):
        times, values = results[0]
        moments = np.column_stack([values, (values[:, :3] ** 2).sum(axis=1)])  # x, y, z, volume, square
        n = len(moments)
        block = uncertainty.fine_block(np.arange(n), n)
        in_block = np.bincount(block)
        sums = np.add.reduceat(moments, np.flatnonzero(np.diff(block, prepend=-1)))
        running = self.epsilon(np.cumsum(moments, axis=0) / np.arange(1, n + 1)[:, np.newaxis])

        def limits(level):
            return uncertainty.of_blocks(sums, in_block, level, of=lambda means: self.epsilon(means[np.newaxis]))

        epsilon = himach.Column(running[-1:], estimate=limits)
        times = himach.Column(times, "ps")
        return {
            "dielectric": himach.Table({"epsilon": epsilon}),
            "running": himach.Table({"time_ps": times, "epsilon": himach.Column(running, role="label")}),
        }

    def epsilon(self, means):
        """Return the dielectric constant (n,) from means (n, 5) of the dipole moment, the volume, and its square."""
        x, y, z, volume, square = means.T
        return 1 + E2_EPS0_K * (square - x**2 - y**2 - z**2) / (3 * self.temperature * volume)

    def plot(self, outcome, axes):
        constant, running = outcome["dielectric"], outcome["running"]
        scale, label = time_axis(running["time_ps"], "time")
        text = in_words(constant, "epsilon", "ε")
        draw_series(axes, scale * running["time_ps"], running["epsilon"], label="of the frames up to here")
        axes.axhline(constant["epsilon"][0], color="black", lw=0.8, ls="--", label=text)
        if "epsilon_low" in constant and np.isfinite(constant["epsilon_low"][0]):
            limits = constant["epsilon_low"][0], constant["epsilon_high"][0]
            axes.axhspan(*limits, color="black", alpha=0.15, linewidth=0, label=text)
        axes.set(xlabel=label, ylabel="dielectric constant ε", title="Static dielectric constant")
        axes.margins(x=0)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        draw_legend(axes)
