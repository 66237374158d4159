"""How many hydrogen bonds there are and how long they last."""

from typing import ClassVar, Literal

import numpy as np

import himach
from himach.examples.common import WATER, check_not_negative, check_positive, lag_times, select, warn_of_nm
from himach.examples.drawing import draw_legend, draw_mean, draw_series, panels, time_axis
from himach.examples.groups import residue_labels
from himach.examples.interactions.bonding import find_bonds, joined_sites, pair_hydrogens
from himach.examples.interactions.survival import (
    find_runs,
    find_runs_of_many,
    occupancy,
    plot_stays,
    plot_survival,
    stay_tables,
    survival,
)

#: Keys of bonds are pairs of atoms; keys of bridges are pairs after this number, which is no index.
BRIDGE = -2


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
        the other atoms that the hydrogens are bonded to, for topologies with bonds.
    hydrogens
        Selection of the hydrogens. Those that no donor is paired with, or that have no such bond where `donors` is
        None, are left out, so that all hydrogens will do.
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
    by
        What ``occupancy`` and ``bridges`` tell of: each ``atom``, by its index, or each ``residue``, by its name.
    bridges
        1: tell which are joined by a water that is bonded to both, too; 0: do not.
    water
        Selection of the oxygens of water, for bridges; hydrogens of their residues within 1.2 Å are theirs.
    """

    name: ClassVar[str] = "hydrogen-bonds"
    references: ClassVar[tuple[str, ...]] = (
        "10.1039/C9CP01532A",
        "10.1063/1.4922445",
        "10.1080/01621459.1958.10501452",
    )
    caption: ClassVar[str] = (
        "Number of hydrogen bonds against time, and against the lag time the survival probability of a bond, and that "
        "of bonds that form after the first frame, by the method of Kaplan and Meier."
    )

    donors: str | None = "protein and name N* O*"
    hydrogens: str = "protein and name H* 1H* 2H* 3H*"
    acceptors: str = "protein and name N* O*"
    distance: float = 3.0
    angle: float = 150.0
    tau_max: int = 20
    intermittency: int = 0
    by: Literal["atom", "residue"] = "atom"
    bridges: Literal[0, 1] = 0
    water: str = WATER

    @property
    def methods(self):
        """What a paper says of it, as the parameters are."""
        donors = "atoms bonded to {hydrogens}," if self.donors is None else "{donors} with hydrogens {hydrogens},"
        gaps = (
            " Bonds that were broken for up to {intermittency} selected frames survived." if self.intermittency else ""
        )
        bridges = " Bridges are single molecules of {water} that are bonded to both." if self.bridges else ""
        return (
            f"Hydrogen bonds between donors, {donors} and acceptors, {{acceptors}}, were there where donor and "
            "acceptor were at most {distance} Å apart and the angle at the hydrogen was more than {angle}° "
            "[10.1039/C9CP01532A]. Their survival probability was averaged over all time origins [10.1063/1.4922445]."
            f"{gaps} How long bonds last that form after the first frame was estimated by the method of Kaplan and "
            f"Meier [10.1080/01621459.1958.10501452].{bridges}"
        )

    def setup(self, universe):
        check_positive(self, "distance")
        check_not_negative(self, "intermittency")
        self.donor_atoms, self.hydrogen_atoms = self.pair_donors(universe)
        self.acceptor_atoms = select(universe, self, "acceptors").indices
        self.tau_ps = lag_times(self, self.tau_max)
        self.donor_sites, self.acceptor_sites = (
            self.sites(universe, atoms) for atoms in (self.donor_atoms, self.acceptor_atoms)
        )
        if self.by == "residue":
            sites = np.union1d(self.donor_sites, self.acceptor_sites)
            self.names = dict(zip(sites.tolist(), residue_labels(universe.residues[sites]), strict=True))
        if self.bridges:
            self.set_up_bridges(universe)

    def sites(self, universe, atoms):
        """Return the sites of atoms: the atoms, or their residues."""
        return universe.atoms[atoms].resindices if self.by == "residue" else atoms

    def set_up_bridges(self, universe):
        """Pair the hydrogens of water, and find donors and acceptors that are no water."""
        water = select(universe, self, "water")
        hydrogens = water.residues.atoms.select_atoms("name H* 1H* 2H* 3H*")
        self.water_atoms = water.indices
        self.water_donors, self.water_hydrogens = pair_hydrogens(water, hydrogens)
        if not len(self.water_donors):
            raise himach.UsageError(f"{self.label()}: no hydrogen is within 1.2 Å of water {self.water!r}")
        donors, acceptors = (
            ~np.isin(universe.atoms[atoms].resindices, water.resindices)
            for atoms in (self.donor_atoms, self.acceptor_atoms)
        )
        if not (donors.any() or acceptors.any()):
            raise himach.UsageError(f"{self.label()}: all donors and acceptors are water, which joins what is not")
        self.outer_donors, self.outer_acceptors = np.flatnonzero(donors), np.flatnonzero(acceptors)

    def pair_donors(self, universe):
        """Return the indices of donors and their hydrogens, one row per pair."""
        hydrogens = select(universe, self, "hydrogens")
        if self.donors is None:
            if not hasattr(universe, "bonds"):
                raise himach.UsageError(f"{self.label()}: the topology has no bonds; name the donors with donors=...")
            bonds = universe.bonds.indices.reshape(-1, 2).astype(np.int64)
            bonds = np.unique(np.concatenate([bonds, bonds[:, ::-1]]), axis=0)
            bonds = bonds[~np.isin(bonds[:, 0], hydrogens.indices)]  # rigid water has bonds between hydrogens
            paired, first = np.unique(bonds[:, 1], return_index=True)
            donors, paired = (indices[np.isin(paired, hydrogens.indices)] for indices in (bonds[first, 0], paired))
            if not len(paired):
                raise himach.UsageError(
                    f"{self.label()}: none of the {len(hydrogens)} hydrogens of {self.hydrogens!r} has a bond to "
                    "another atom in the topology; name the donors with donors=..."
                )
            return donors, paired
        donors, paired = pair_hydrogens(select(universe, self, "donors"), hydrogens)
        if not len(paired):
            raise himach.UsageError(
                f"{self.label()}: no hydrogen of {self.hydrogens!r} is within 1.2 Å of any donor of {self.donors!r}"
            )
        return donors, paired

    def atoms(self, universe):
        groups = [self.donor_atoms, self.hydrogen_atoms, self.acceptor_atoms]
        if self.bridges:
            groups += [self.water_atoms, self.water_hydrogens]
        return [universe.atoms[indices] for indices in groups]

    def map(self, frame):
        limits = self.distance, self.angle
        donor, acceptor = find_bonds(frame, self.donor_atoms, self.hydrogen_atoms, self.acceptor_atoms, *limits)
        yield himach.Pairs(np.column_stack([self.hydrogen_atoms[donor], self.acceptor_atoms[acceptor]]))
        yield himach.Row(bonds=len(donor))
        if self.bridges:
            pairs = self.find_bridges(frame)
            yield himach.Pairs(np.column_stack([np.full(len(pairs), BRIDGE), pairs]))

    def find_bridges(self, frame):
        """Return the pairs of sites that are joined by a water, (n, 2)."""
        limits, outer = (self.distance, self.angle), self.outer_donors
        donor, water = find_bonds(frame, self.donor_atoms[outer], self.hydrogen_atoms[outer], self.water_atoms, *limits)
        acceptors = self.acceptor_atoms[self.outer_acceptors]
        water_donor, acceptor = find_bonds(frame, self.water_donors, self.water_hydrogens, acceptors, *limits)
        waters = np.append(self.water_atoms[water], self.water_donors[water_donor])
        sites = np.append(self.donor_sites[outer[donor]], self.acceptor_sites[self.outer_acceptors[acceptor]])
        return joined_sites(waters, sites)

    def reduce(self, key, series):
        return find_runs(series.steps, self.intermittency)

    def reduce_many(self, keys, series):
        return find_runs_of_many(series.steps, series.offsets, self.intermittency)

    def finish(self, results):
        bonds = {key: runs for key, runs in results.items() if key[0] != BRIDGE}
        warn_of_nm(self, "distance", bool(bonds))
        n_frames = len(self.frames)
        probability = survival(list(bonds.values()), n_frames, len(self.tau_ps) - 1)
        stays, mean = stay_tables(list(bonds.values()), n_frames, abs(self.dt or 0), self.intermittency)
        times = himach.Column(results.rows["time_ps"], "ps")
        counts = himach.Column(results.rows["bonds"], estimate=True)
        outcome = {
            "lifetime": himach.Table({"tau_ps": himach.Column(self.tau_ps, "ps", role="x"), "survival": probability}),
            "counts": himach.Table({"time_ps": times, "bonds": counts}),
            "stays": stays,
            "residence": mean,
            "occupancy": self.occupancy(bonds),
        }
        if self.bridges:
            runs = {key[1:]: [run] for key, run in results.items() if key[0] == BRIDGE}
            outcome["bridges"] = self.table(runs, "a", "b")
        return outcome

    def occupancy(self, bonds):
        """Return the table of donor-acceptor pairs that are ever bonded, by any of their bonds."""
        donor_sites = dict(zip(self.hydrogen_atoms.tolist(), self.donor_sites.tolist(), strict=True))
        acceptor_sites = dict(zip(self.acceptor_atoms.tolist(), self.acceptor_sites.tolist(), strict=True))
        runs = {}
        for (hydrogen, acceptor), bond_runs in bonds.items():
            runs.setdefault((donor_sites[hydrogen], acceptor_sites[acceptor]), []).append(bond_runs)
        return self.table(runs, "donor", "acceptor")

    def table(self, runs, *columns):
        """Return the table of pairs of sites and the fraction of frames in which they are together."""
        pairs = sorted(runs)
        part = occupancy([runs[pair] for pair in pairs], len(self.frames))
        labels = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        if self.by == "residue":
            labels = [[self.names[site] for site in label.tolist()] for label in labels]
        sites = {name: himach.Column(label, role="label") for name, label in zip(columns, labels, strict=True)}
        return himach.Table({**sites, "occupancy": part})

    def plot(self, outcome, axes):
        counts = outcome["counts"]
        scale, label = time_axis(counts["time_ps"], "time")
        axes.set_title(f"Hydrogen bonds, {np.mean(counts['bonds']):.1f} on average")
        in_time, over_lags = panels(axes, [1, 1.7])
        draw_series(in_time, scale * counts["time_ps"], counts["bonds"], linewidth=0.8)
        draw_mean(in_time, counts, "bonds")
        in_time.margins(x=0)
        in_time.set(xlabel=label, ylabel="bonds", ylim=(0, None))
        draw_legend(in_time)
        in_time.grid(alpha=0.3)
        scale = plot_survival(outcome["lifetime"], over_lags, "")
        plot_stays(outcome["stays"], outcome["residence"], over_lags, scale)
