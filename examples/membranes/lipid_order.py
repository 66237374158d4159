"""How well the tails of lipids are ordered along the normal of their membrane."""

from typing import ClassVar, Literal

import numpy as np

import himach
from himach import kernels, uncertainty
from himach.examples.drawing import draw_legend
from himach.examples.membranes.leaflets import HEADGROUPS, LIPIDS, UPPER, Leaflets, turn_to_z
from himach.examples.membranes.tails import carbons_and_hydrogens, number_carbons

#: Unit of kernels.order_parameters().
ONE = 2**30
SIDES = ("lower", "upper")
#: Offset of the bars of one carbon from each other.
ASIDE = 0.12


class LipidOrder(himach.Analysis):
    """Order parameters S_CH of the bonds between carbons and hydrogens of lipids, along the normal of the membrane.

    The mean of (3 cos² - 1) / 2 of the angle between a bond and the normal of the membrane: -1/2 where bonds lie in the
    plane of the membrane, as in a stretched tail that stands upright; 0 in a liquid. -S_CH is what many plots show.

    Parameters
    ----------
    lipids
        Selection of the lipids.
    carbons
        Selection of the carbons; their hydrogens are those that they are bonded to. None: the carbons of tails, which
        are bonded to carbons and hydrogens only.
    leaflets
        ``none``, or how leaflets are found, for order in each: ``z``, by whether headgroups are above or below the
        mean of lipids; ``graph``, by which headgroups are within 15 Å of one another.
    headgroups
        Selection of an atom of each lipid's headgroup, by which leaflets are found.
    normal
        Axis of the box that is the normal of the membrane: ``x``, ``y`` or ``z``; x and y in rectangular boxes alone.
    """

    name: ClassVar[str] = "lipid-order"
    references: ClassVar[tuple[str, ...]] = ("10.1021/acs.jctc.7b00643",)
    caption: ClassVar[str] = "Order parameter S_CH of each carbon of the tails of {lipids}, by its number in the chain."

    lipids: str = LIPIDS
    carbons: str | None = None
    leaflets: Literal["none", "z", "graph"] = "none"
    headgroups: str = HEADGROUPS
    normal: Literal["x", "y", "z"] = "z"

    @property
    def methods(self):
        """What a paper says of it, as the parameters are."""
        by_leaflet = "" if self.leaflets == "none" else ", in each leaflet"
        return (
            "Order parameters S_CH = <3 cos² θ - 1>/2 of the bonds between carbons and hydrogens of {lipids} were "
            f"computed{by_leaflet}, with θ the angle between a bond and {{normal}}, the normal of the membrane "
            "[10.1021/acs.jctc.7b00643]."
        )

    def setup(self, universe):
        bonds = carbons_and_hydrogens(universe, self)
        atoms = universe.atoms
        residue = atoms.resindices[bonds[:, 0]]
        kinds = list(zip(atoms.resnames[bonds[:, 0]], *(atoms.names[bonds].T), strict=True))
        self.chains = self.find_chains(universe, bonds, residue)
        self.rows = sorted(
            dict.fromkeys(kinds), key=lambda kind: (kind[0], self.place(*kind))
        )  # lipid, carbon, hydrogen
        number = {kind: row for row, kind in enumerate(self.rows)}
        self.kinds = np.array([number[kind] for kind in kinds])
        self.counts = np.bincount(self.kinds)
        self.indices = np.unique(bonds)
        self.bonds = np.searchsorted(self.indices, bonds)
        self.membrane = None
        if self.leaflets != "none":
            self.membrane = Leaflets(universe, self)
            self.lipid = self.membrane.find_lipids(atoms[bonds[:, 0]])
            if (self.lipid < 0).any():
                missing = atoms.residues[residue[self.lipid < 0][0]]
                raise himach.UsageError(
                    f"{self.label()}: headgroups={self.headgroups!r} selects no atom of residue {missing.resname} "
                    f"{missing.resid}, whose leaflet is asked for; select one atom of each lipid"
                )

    def find_chains(self, universe, bonds, residue):
        """Return the chain and place of each carbon, by names of lipids and of carbons."""
        chains = {}
        names, first = np.unique(universe.atoms.resnames[bonds[:, 0]].astype(str), return_index=True)
        for name, row in zip(names.tolist(), first.tolist(), strict=True):
            carbons = np.unique(bonds[residue == residue[row], 0])
            places = zip(*(column.tolist() for column in number_carbons(universe, carbons)), strict=True)
            chains |= {
                (name, carbon): place for carbon, place in zip(universe.atoms.names[carbons], places, strict=True)
            }
        return chains

    def place(self, lipid, carbon, hydrogen):
        """Return chain and place of a row's carbon; carbons that the first lipid of this name lacks come first."""
        return self.chains.get((lipid, carbon), (0, 0))

    def atoms(self, universe):
        bonded = universe.atoms[self.indices]
        return bonded if self.membrane is None else (bonded, universe.atoms[self.membrane.indices])

    def map(self, frame):
        n = len(self.rows)
        positions, box = turn_to_z(self.normal, frame.positions[self.indices], frame.box)
        if self.membrane is None:
            sums = kernels.order_parameters(positions, self.bonds, self.kinds, box, n_kinds=n)
        else:
            placement = self.membrane.place(frame.positions[self.membrane.indices], frame.box)
            kinds = self.kinds + n * (placement.leaflets[self.lipid] == UPPER)
            sums = kernels.order_parameters(positions, self.bonds, kinds, box, n_kinds=2 * n)
            sums = np.concatenate([sums, np.bincount(kinds, minlength=2 * n)])
        yield "order", uncertainty.block_row(frame.number, sums)

    def combine(self, key, series):
        return uncertainty.add_blocks(series.values)

    reduce = combine

    def finish(self, results):
        frames, sums = uncertainty.split_blocks(results["order"])
        n = len(self.rows)
        sides = [(sums[:, :n], frames[:, np.newaxis] * self.counts)]
        if self.membrane is not None:
            sides = [(sums[:, i * n : (i + 1) * n], sums[:, (2 + i) * n : (3 + i) * n]) for i in range(2)]
        total = [sum(parts) for parts in zip(*sides, strict=True)]
        lipid, carbon, hydrogen = (list(names) for names in zip(*self.rows, strict=True))
        bonds = {"lipid": lipid, "carbon": carbon, "hydrogen": hydrogen}
        outcome = {"order": himach.Table({**bonds, "s_ch": mean_order(*total)})}
        if self.membrane is not None:
            leaflet = np.repeat(SIDES, n).tolist()
            column = mean_order(*(np.concatenate(parts, axis=1) for parts in zip(*sides, strict=True)))
            doubled = {name: 2 * cells for name, cells in bonds.items()}
            outcome["by_leaflet"] = himach.Table({**doubled, "leaflet": leaflet, "s_ch": column})
        return outcome | {"carbons": self.carbon_table(*total)}

    def carbon_table(self, sums, weights):
        """Return the table of carbons: chains, places, and means over their hydrogens."""
        names = list(dict.fromkeys((lipid, carbon) for lipid, carbon, _ in self.rows))
        number = {name: row for row, name in enumerate(names)}
        carbon_rows = np.array([number[lipid, carbon] for lipid, carbon, _ in self.rows])
        joined = [np.array([np.bincount(carbon_rows, block) for block in part]) for part in (sums / ONE, weights)]
        lipid, carbon = (list(part) for part in zip(*names, strict=True))
        chain, place = np.array([self.chains.get(name, (0, 0)) for name in names]).T
        labels = {"lipid": lipid, "chain": chain, "number": place, "carbon": carbon}
        columns = {name: himach.Column(cells, role="label") for name, cells in labels.items()}
        return himach.Table({**columns, "s_ch": mean_order(joined[0] * ONE, joined[1])})

    def plot(self, outcome, axes):
        table = outcome["carbons"]
        lines = list(dict.fromkeys(zip(table["lipid"], table["chain"].tolist(), strict=True)))
        lipids = list(dict.fromkeys(table["lipid"]))
        for lipid, chain in lines:
            rows = np.flatnonzero((np.array(table["lipid"]) == lipid) & (table["chain"] == chain))
            part = himach.Table({name: [cells[row] for row in rows] for name, cells in table.items()})
            part.level = table.level
            colour, style = f"C{lipids.index(lipid) % 10}", ["o-", "^--", "s:", "v-."][(chain - 1) % 4]
            label, shift = f"{lipid}, chain {chain}", ASIDE * (lines.index((lipid, chain)) - (len(lines) - 1) / 2)
            places = np.asarray(part["number"]) + shift
            axes.plot(places, part["s_ch"], style, color=colour, linewidth=0.8, label=label)
            if "s_ch_low" in part and np.isfinite(part["s_ch_low"]).any():
                bars = np.abs(np.array([part["s_ch_low"], part["s_ch_high"]]) - part["s_ch"])
                interval = f"{100 * part.level:g} % interval"
                axes.errorbar(
                    places, part["s_ch"], bars, fmt="none", ecolor=colour, elinewidth=0.6, capsize=1.2, label=interval
                )
        axes.set(xlabel="number of the carbon in its chain", ylabel="order parameter $S_{CH}$")
        axes.set_title(f"Order of lipids' tails along {self.normal}")
        axes.axhline(0, color="grey", linewidth=0.8)
        draw_legend(axes, below=True, ncols=2)
        axes.grid(alpha=0.3)


def mean_order(sums, weights):
    """Return the column of means from sums and weights by blocks, (n_blocks, n) each."""
    total = weights.sum(axis=0)
    mean = np.where(total > 0, sums.sum(axis=0) / (ONE * np.maximum(total, 1)), np.nan)
    return himach.Column(mean, estimate=(sums / ONE, weights))
