"""Secondary structure of proteins in time."""

import warnings
from dataclasses import replace
from typing import ClassVar

import numpy as np
from MDAnalysis.lib.distances import calc_bonds

import himach
from himach import kernels, uncertainty
from himach.examples.common import select
from himach.examples.drawing import draw_legend, panels, time_axis
from himach.examples.groups import name_columns, residue_labels

#: Columns of the tables, their letters in DSSP, and colours that the colour-blind tell apart.
COLUMNS = ["H", "B", "E", "G", "I", "T", "S", "P", "coil"]
LETTERS = b"HBEGITSP-"
COLORS = ["#D55E00", "#56B4E9", "#0072B2", "#E69F00", "#F0E442", "#009E73", "#CC79A7", "#444444", "#EEEEEE"]
#: Names of the atoms of the backbone; of several, the first that a residue has.
BACKBONE = [["N"], ["CA"], ["C"], ["O", "OT1", "O1", "OC1"]]
#: Longest distance in Å between C and N of successive residues of a chain.
LONGEST_BOND = 2.5
#: Frames in a plot, at most.
MOST_DRAWN = 2000


class SecondaryStructure(himach.Analysis):
    """Secondary structure of each residue of proteins, by the definitions of DSSP.

    States are H (alpha helix), B (single bridge), E (strand in a ladder), G (3-10 helix), I (pi helix), T (turn with a
    hydrogen bond), S (bend), P (polyproline helix) and coil (none of these), as those of mkdssp 4. Chains that the
    box cuts are made whole; those that are bonded to each other must lie beside each other.

    Parameters
    ----------
    selection
        Selection of the residues: those of which any atom is selected, but for residues that lack N, CA, C or O. Bonds
        to others do not count.
    """

    name: ClassVar[str] = "secondary-structure"
    methods: ClassVar[str] = (
        "The secondary structure of {selection} was assigned in each frame by the definitions of DSSP "
        "[10.1002/bip.360221211], with polyproline helices [10.1371/journal.pone.0018401] where three residues in "
        "succession have φ within 29° of -75° and ψ within 29° of 145°."
    )
    references: ClassVar[tuple[str, ...]] = ("10.1002/bip.360221211", "10.1371/journal.pone.0018401")
    caption: ClassVar[str] = (
        "Secondary structure of each residue of {selection} against time, and the share of residues in each state: "
        "H alpha helix, B bridge, E strand, G 3-10 helix, I pi helix, T turn, S bend, P polyproline helix."
    )

    selection: str = "protein"

    def setup(self, universe):
        residues = select(universe, self, "selection").residues
        indices = backbone_indices(residues)
        whole = (indices >= 0).all(axis=1)
        if not whole.any():
            raise himach.UsageError(f"{self.label()}: no residue of {self.selection!r} has atoms N, CA, C and O")
        residues, indices = residues[whole], indices[whole]
        self.labels, self.names, self.indices = residue_labels(residues), name_columns(residues), indices.ravel()
        self.prolines = residues.resnames == "PRO"
        self.chains = self.number_chains(universe, residues, indices)

    def number_chains(self, universe, residues, indices):
        """Return the chain number of each residue; a chain ends where the next nitrogen is too far to be bonded."""
        bond_atoms = [universe.atoms[indices[:-1, 2]].positions, universe.atoms[indices[1:, 0]].positions]
        is_far = calc_bonds(*bond_atoms, box=universe.dimensions) > LONGEST_BOND
        breaks = is_far | (np.diff(residues.segindices) != 0)
        if breaks.any() and (calc_bonds(*bond_atoms)[~breaks] > LONGEST_BOND).any():
            warnings.warn(
                f"{self.label()}: the box cuts chains at the first selected frame; each is made whole, but bonds to "
                "another one are missed where they do not lie beside each other; let molecules be whole",
                stacklevel=2,
            )
        return np.append(0, np.cumsum(breaks))

    def atoms(self, universe):
        return universe.atoms[self.indices]

    def map(self, frame):
        backbone = frame.positions[self.indices].reshape(-1, 4, 3)
        yield himach.Pairs([0], kernels.dssp(backbone, self.chains, self.prolines, frame.box)[np.newaxis])

    def reduce(self, key, series):
        return {"time_ps": series.times, "states": series.values}

    def finish(self, results):
        states = results[0]["states"]
        content = {"time_ps": himach.Column(results[0]["time_ps"], "ps")}
        residues = {"residue": self.labels}
        for column, letter in zip(COLUMNS, LETTERS, strict=True):
            is_state = states == letter
            content[column] = himach.Column(is_state.mean(axis=1), estimate=True, within=(0, 1))
            residues[column] = share_column(is_state)
        return {"content": himach.Table(content), "residues": himach.Table(residues | self.names), "states": states}

    def plot(self, outcome, axes):
        from matplotlib.colors import ListedColormap

        content, states = outcome["content"], outcome["states"]
        thin = slice(None, None, -(-len(states) // MOST_DRAWN))
        scale, label = time_axis(content["time_ps"], "time")
        times = scale * content["time_ps"][thin]
        half = (times[-1] - times[0]) / max(len(times) - 1, 1) / 2 or 0.5
        limits = times[0] - half, times[-1] + half
        colors = np.zeros(256, np.uint8)
        colors[list(LETTERS)] = np.arange(len(LETTERS))
        axes.set_title("Secondary structure")
        by_residue, in_all = panels(axes, [1.3, 1])
        style = {"cmap": ListedColormap(COLORS), "vmin": 0, "vmax": len(COLORS) - 1, "interpolation": "nearest"}
        resids = np.asarray(outcome["residues"].get("resid", [0, 0]))
        numbered = (np.diff(resids) == 1).all()
        first = resids[0] if numbered else 1
        rows = first - 0.5, first + states.shape[1] - 0.5
        by_residue.imshow(colors[states[thin].T], extent=(*limits, *rows), aspect="auto", origin="lower", **style)
        by_residue.set(xlabel=label, ylabel="residue" if numbered else "residue, by row")
        shares = [content[column][thin] for column in COLUMNS]
        in_all.stackplot(times, shares, colors=COLORS, labels=COLUMNS, linewidth=0)
        in_all.set(xlabel=label, ylabel="share of residues", xlim=limits, ylim=(0, 1))
        style = {"handlelength": 0.8, "handletextpad": 0.3, "columnspacing": 0.8}
        draw_legend(in_all, below=True, ncols=len(COLUMNS), **style)


def backbone_indices(residues):
    """Return the indices of N, CA, C and O of residues, int64 (n, 4), -1 for missing names."""
    atoms = residues.atoms
    row = np.searchsorted(residues.resindices, atoms.resindices)
    indices = np.full((len(residues), len(BACKBONE)), -1, dtype=np.int64)
    for column, names in enumerate(BACKBONE):
        for name in reversed(names):
            matches = np.flatnonzero(atoms.names == name)[::-1]  # of alternative places, the first is written last
            indices[row[matches], column] = atoms.indices[matches]
    return indices


def share_column(is_state):
    """Return the column of the fraction of frames, bool (n_frames, n), in a state, with bands by blocks."""
    block = uncertainty.fine_block(np.arange(len(is_state)), len(is_state))
    sums = np.add.reduceat(is_state, np.flatnonzero(np.diff(block, prepend=-1)), axis=0, dtype=np.int64)
    part = is_state.mean(axis=0)

    def limits(level):
        band = uncertainty.of_blocks(sums, np.bincount(block), level)
        varies = (part > 0) & (part < 1)  # the rarity of a state never seen is unknown
        low, high = np.where(varies, [np.maximum(band.low, 0), np.minimum(band.high, 1)], np.nan)
        return replace(band, value=part, low=low, high=high)

    return himach.Column(part, estimate=limits, within=(0, 1))
