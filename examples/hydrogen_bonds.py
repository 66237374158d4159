"""How many hydrogen bonds there are and how long they last."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from MDAnalysis.lib.distances import calc_angles, capped_distance

import himach
from himach import kernels
from himach.examples.common import check_not_negative, check_positive, draw_mean, lag_times, select, time_axis
from himach.examples.survival import (
    find_runs,
    find_runs_of_many,
    lasting,
    occupancy,
    plot_stays,
    plot_survival,
    survival,
)

#: Key of the number of bonds; bonds are pairs of atoms, which no negative number is.
COUNT = -1


class HydrogenBonds(himach.Analysis):
    """Number of hydrogen bonds in time, and the survival probability of a bond.

    A bond is where donor and acceptor are at most `distance` apart and donor, hydrogen and acceptor make an angle of
    more than `angle`. A bond that survives is between the same hydrogen and acceptor at every frame. Number and
    survival are equal to ``MDAnalysis.analysis.hydrogenbonds.HydrogenBondAnalysis``, its ``count_by_time()`` and
    ``lifetime()``. Beside them, how long bonds last that form after the first frame, by Kaplan and Meier, and their
    mean, if bonds break at the same rate however old they are.

    Parameters
    ----------
    donors
        Selection of the donors; each is paired with the hydrogens within 1.2 Å of it at the first selected frame. None:
        the atoms that the hydrogens are bonded to, for topologies with bonds.
    hydrogens
        Selection of the hydrogens. Those that no donor is paired with, or that have no bond where `donors` is None, are
        left out, so that all hydrogens will do.
    acceptors
        Selection of the acceptors.
    distance
        Largest distance in Å between donor and acceptor.
    angle
        Smallest angle in degrees at the hydrogen.
    tau_max
        Longest lag, in selected frames.
    intermittency
        A bond that is broken for up to so many frames survives.
    """

    name: ClassVar[str] = "hydrogen-bonds"

    donors: str | None = "protein and name N* O*"
    hydrogens: str = "protein and name H* 1H* 2H* 3H*"
    acceptors: str = "protein and name N* O*"
    distance: float = 3.0
    angle: float = 150.0
    tau_max: int = 20
    intermittency: int = 0

    def setup(self, universe):
        check_positive(self, "distance")
        check_not_negative(self, "intermittency")
        self.donor_atoms, self.hydrogen_atoms = self.pair_donors(universe)
        self.acceptor_atoms = select(universe, self, "acceptors").indices
        self.tau_ps = lag_times(self, self.tau_max)

    def pair_donors(self, universe):
        """Return the indices of donors and their hydrogens, one row a pair."""
        hydrogens = select(universe, self, "hydrogens")
        if self.donors is None:
            if not hasattr(universe, "bonds"):
                raise himach.UsageError(f"{self.label()}: the topology has no bonds; name the donors with donors=...")
            bonded = [(hydrogen.bonded_atoms[0].index, hydrogen.index) for hydrogen in hydrogens if len(hydrogen.bonds)]
            if not bonded:
                raise himach.UsageError(
                    f"{self.label()}: none of the {len(hydrogens)} hydrogens of {self.hydrogens!r} has a bond in the "
                    "topology; name the donors with donors=..."
                )
            return np.array(bonded).T
        donors = select(universe, self, "donors")
        near = capped_distance(
            donors.positions, hydrogens.positions, 1.2, box=universe.dimensions, return_distances=False
        )
        if not len(near):
            raise himach.UsageError(
                f"{self.label()}: no hydrogen of {self.hydrogens!r} is within 1.2 Å of any donor of {self.donors!r}"
            )
        donor, hydrogen = near[np.lexsort(near.T[::-1])].T  # the same at whichever frame
        return donors.indices[donor], hydrogens.indices[hydrogen]

    def atoms(self, universe):
        return [universe.atoms[indices] for indices in (self.donor_atoms, self.hydrogen_atoms, self.acceptor_atoms)]

    def map(self, frame):
        donors, acceptors = frame.positions[self.donor_atoms], frame.positions[self.acceptor_atoms]
        near, distances = kernels.neighbors(donors, acceptors, self.distance, frame.box)
        donor, acceptor = near[distances > 1].T  # closer is the donor itself
        hydrogen = self.hydrogen_atoms[donor]
        angles = calc_angles(donors[donor], frame.positions[hydrogen], acceptors[acceptor], box=frame.box)
        bonded = np.degrees(angles) > self.angle
        bonds = np.column_stack([hydrogen, self.acceptor_atoms[acceptor]])[bonded]
        yield himach.Pairs(bonds)
        yield himach.Pairs([COUNT], [len(bonds)])

    def reduce(self, key, series):
        if key == COUNT:
            return {"time_ps": series.times, "bonds": series.values}
        return find_runs(series.steps, self.intermittency)

    def reduce_many(self, keys, series):
        if keys.ndim == 1:  # not bonds, but their number
            return map(self.reduce, keys.tolist(), series)
        return find_runs_of_many(series.steps, series.offsets, self.intermittency)

    def finish(self, results):
        runs = [result for key, result in results.items() if key != COUNT]
        n_frames = len(self.frames)
        probability = survival(runs, n_frames, len(self.tau_ps) - 1)
        stays, mean = lasting(runs, n_frames, abs(self.dt or 0), self.intermittency)
        times = himach.Column(results[COUNT]["time_ps"], "ps")
        bonds = himach.Column(results[COUNT]["bonds"], estimate=True)
        return {
            "lifetime": himach.Table({"tau_ps": himach.Column(self.tau_ps, "ps"), "survival": probability}),
            "counts": himach.Table({"time_ps": times, "bonds": bonds}),
            "stays": stays,
            "residence": mean,
            "occupancy": self.occupancy(results, n_frames),
        }

    def occupancy(self, results, n_frames):
        """Return the table of the pairs of donor and acceptor that are ever bonded, by any hydrogen of the donor."""
        donor_of = dict(zip(self.hydrogen_atoms.tolist(), self.donor_atoms.tolist(), strict=True))
        runs = {}
        for key, of_bond in results.items():
            if key != COUNT:
                runs.setdefault((donor_of[key[0]], key[1]), []).append(of_bond)
        pairs = sorted(runs)
        part = occupancy([runs[pair] for pair in pairs], n_frames)
        donor, acceptor = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        return himach.Table({"donor": donor, "acceptor": acceptor, "occupancy": part})

    def plot(self, outcome, axes):
        counts = outcome["counts"]
        scale, label = time_axis(counts["time_ps"], "time")
        axes.set_title(f"Hydrogen bonds, {np.mean(counts['bonds']):.1f} on average")
        axes.set_axis_off()
        in_time, over_lags = axes.inset_axes([0, 0.6, 1, 0.4]), axes.inset_axes([0, 0, 1, 0.4])
        in_time.plot(scale * counts["time_ps"], counts["bonds"], linewidth=0.8)
        draw_mean(in_time, counts, "bonds")
        in_time.set(xlabel=label, ylabel="bonds", ylim=(0, None))
        in_time.grid(alpha=0.3)
        scale = plot_survival(outcome["lifetime"], over_lags, "")
        plot_stays(outcome["stays"], outcome["residence"], over_lags, scale)
