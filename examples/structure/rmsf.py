"""How far atoms move about their mean positions."""

from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

import himach
from himach import uncertainty
from himach.examples.common import select
from himach.examples.drawing import draw_band, draw_legend
from himach.examples.groups import name_columns, residue_labels, residue_numbers
from himach.examples.molecules import warn_of_cut_molecules
from himach.examples.structure.fluctuations import Mobile, block_sums, fluctuation, mean_deviation
from himach.examples.superposition import Reference, Superposition, describe_fit, get_masses

#: Keys of sums over frames and of what fluctuates; others are numbers of blocks.
SUMS, MOBILE = -1, -2
#: Frames fitted to the mean structure by one rank.
IN_BLOCK = 256


class Mean(NamedTuple):
    """The mean structure, as `himach.kernels.deviation_sums` takes what is fixed, and what frames are fitted to."""

    moved: tuple[Any, ...]


class AroundMean(himach.Analysis):
    """Frames that are fitted to the mean structure: the second stage, which passes on what needs none."""

    name: ClassVar[str] = "rmsf"

    def reduce(self, key, series):
        if key < 0:
            return series.values[0]
        (mean,) = (value for value in series.values if isinstance(value, Mean))
        frames, positions = unpack_frames(np.concatenate([value for value in series.values if value is not mean]))
        return block_sums(positions, frames, uncertainty.block_level(self.frames), *mean.moved)

    def finish(self, results):
        mobile = results[MOBILE]
        blocks = uncertainty.add_blocks([rows for key, rows in results.items() if key != MOBILE])
        return {"rmsf": fluctuation(mobile, *uncertainty.split_blocks(blocks))}

    def plot(self, outcome, axes):
        table = outcome["rmsf"]
        column = next(iter(table))
        resids = np.asarray(table.get("resid", [0, 0]))
        numbered = column == "atom" and (np.diff(resids) > 0).all()  # an atom of each residue of one chain
        x = np.arange(table.rows) if column == "residue" else resids if numbered else np.asarray(table[column])
        axes.plot(x, table["rmsf"], linewidth=1)
        draw_band(axes, x, table, "rmsf", "C0")
        if column == "residue":
            every = max(1, -(-table.rows // 12))
            axes.set_xticks(x[::every], table[column][::every], rotation=45, ha="right", rotation_mode="anchor")
        axes.set(
            xlabel="residue" if column == "residue" or numbered else "index of atom", ylabel=table.label("rmsf", "RMSF")
        )
        axes.set_title("Fluctuation about the mean position")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        draw_legend(axes)


def pack_frames(frames, positions):
    """Pack frame numbers, int64 (m,), and their positions, float32 (m, n, 3), into one array, int32 (m, 3 n + 2)."""
    return np.hstack([frames[:, np.newaxis].view(np.int32), positions.reshape(len(frames), -1).view(np.int32)])


def unpack_frames(rows):
    """Return the arguments of `pack_frames`, in the order of frames."""
    frames = np.ascontiguousarray(rows[:, :2]).view(np.int64)[:, 0]
    order = np.argsort(frames)
    return frames[order], np.ascontiguousarray(rows[order, 2:]).view(np.float32).reshape(len(rows), -1, 3)


class Rmsf(himach.Analysis):
    """Root-mean-square fluctuation of atoms about their mean positions, and their B-factors.

    Frames are superposed first. In the end they lie over the mean structure of frames that were laid over the first,
    unless another `reference` is named. Molecules must be whole.

    Parameters
    ----------
    selection
        Selection of the atoms that fluctuate.
    fit
        Selection of the atoms that are superposed; ``selection``: those that fluctuate; ``none``: frames are taken as
        they are, without moving.
    weights
        Weights of atoms in the superposition, and in means over the atoms of a residue: ``none`` for equal ones, or
        ``mass``.
    by
        Whether each ``atom`` is a row of the table, or each ``residue``, by the mean square of its selected atoms.
    reference
        What frames are superposed on: ``mean``, the mean structure; ``first``, the first selected frame; or a file with
        a structure.
    """

    name: ClassVar[str] = "rmsf"
    references: ClassVar[tuple[str, ...]] = ("10.1107/S0108767305015266",)
    caption: ClassVar[str] = "Root-mean-square fluctuation of {selection} about the mean positions, for each {by}."
    then = AroundMean
    plot = AroundMean.plot

    selection: str = "protein and name CA"
    fit: str = "selection"
    weights: Literal["none", "mass"] = "none"
    by: Literal["atom", "residue"] = "atom"
    reference: str = "mean"

    @property
    def methods(self):
        """What a paper says of it, as the parameters are."""
        onto = {"mean": " on the mean structure", "first": " on the first selected frame"}
        onto = "" if self.fit == "none" else onto.get(self.reference, " on the structure {reference}")
        weights = ", with weights by mass" if self.weights == "mass" else ""
        return (
            "The root-mean-square fluctuation of {selection} about the mean positions was computed for each {by} "
            f"{describe_fit(self.fit, onto)}{weights}."
        )

    def setup(self, universe):
        self.level = uncertainty.block_level(self.frames)
        self.refits = self.reference == "mean" and self.fit != "none"
        reference = Reference(universe, self, None if self.reference in ("mean", "first") else self.reference)
        superposition = Superposition.make(universe, self, reference)
        fit, atoms = universe.atoms[superposition.indices], select(universe, self, "selection")
        warn_of_cut_molecules(self, atoms)
        moving = fit | atoms
        self.indices = moving.indices
        self.mobile = self.make_mobile(atoms)
        onto = (None, None, None)
        if self.fit != "none":
            is_all = np.array_equal(fit.indices, self.indices)
            fitted = None if is_all else np.searchsorted(self.indices, fit.indices)
            onto = superposition.reference, fitted, superposition.weights
        # Deviations are small from where the first selected frame is put.
        self.moved = superposition.move(fit.positions, moving.positions), *onto

    def make_mobile(self, atoms):
        """Return the rows of the table."""
        places = np.searchsorted(self.indices, atoms.indices)
        if self.by == "atom":
            numbers, labels = np.arange(len(atoms)), atoms.indices.tolist()
            return Mobile("atom", labels, name_columns(atoms), places, numbers, np.ones(len(atoms)))
        numbers, residues = residue_numbers(atoms)
        weights = get_masses(atoms, self) if self.weights == "mass" else np.ones(len(atoms))
        shares = weights / np.bincount(numbers, weights)[numbers]
        return Mobile("residue", residue_labels(residues), name_columns(residues), places, numbers, shares)

    def atoms(self, universe):
        return universe.atoms[self.indices]

    def map(self, frame):
        rows = pack_frames(np.array([frame.number]), frame.positions[self.indices][np.newaxis])
        yield himach.Pairs([SUMS], rows)
        if self.refits:
            yield himach.Pairs([frame.number // IN_BLOCK], rows)

    def combine(self, key, series):
        rows = np.vstack(list(series.values))
        if key != SUMS:
            return rows
        if rows.dtype == np.int64:
            return uncertainty.add_blocks(rows)
        numbers, positions = unpack_frames(rows)
        return block_sums(positions, numbers, self.level, *self.moved)

    def reduce(self, key, series):
        if key != SUMS:
            yield key, self.combine(key, series)
            return
        blocks = self.combine(key, series)
        yield MOBILE, self.mobile
        if not self.refits:
            yield SUMS, blocks
            return
        fixed, _, fitted, weights = self.moved
        positions = fixed + mean_deviation(*uncertainty.split_blocks(blocks))
        mean = Mean((positions, positions if fitted is None else positions[fitted], fitted, weights))
        for block in sorted({number // IN_BLOCK for number in self.frames}):
            yield block, mean
