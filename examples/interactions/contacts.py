"""Which residues touch, how often, and for how long."""

import re
import warnings
from textwrap import shorten
from typing import ClassVar, Literal

import numpy as np

import himach
from himach import kernels
from himach.examples.common import check_not_negative, check_positive, select, warn_of_nm
from himach.examples.drawing import draw_legend, draw_mean, draw_series, panels, time_axis
from himach.examples.groups import heavy_atoms, residue_labels
from himach.examples.interactions.survival import find_runs, find_runs_of_many, mean_stays, occupancy

#: Offset of places in different chains: larger than any distance within a chain.
CHAIN = 1 << 32
#: Residues named along an axis, at most.
MOST_LABELS = 8
#: Cells of the map along an axis, at most; with more residues a cell shows the greatest frequency of several.
MOST_CELLS = 600


class Contacts(himach.Analysis):
    """Residues of two selections, or of one, that are in contact: how often each pair is, how many are in time.

    Two residues are in contact where the least distance of their atoms is at most `cutoff`, by the minimum image: the
    distance of ``mdtraj.compute_contacts``. Beside them, of each pair how many contacts form after the first frame, and
    how long these last by Kaplan and Meier's account of those that outlast the trajectory, if contacts break at the
    same rate however old they are.

    Parameters
    ----------
    a
        Selection of atoms whose residues are looked at.
    b
        Selection of the atoms that they may touch; None for contacts within `a`, each pair once.
    cutoff
        Largest distance in Å. For alpha carbons (scheme `ca`) 8 is usual.
    scheme
        Of which atoms the distance is taken: `closest-heavy` of all but hydrogens, `ca` of alpha carbons, `closest` of
        all.
    exclude
        Residues of one chain that are nearer in sequence than this are not counted; a chain is what of a segment is
        protein or nucleic acid. 3 leaves out neighbours and those next to them, 1 nothing but a residue with itself.
    intermittency
        A contact that is broken for up to so many frames lasts; `frequency` counts it as there.
    """

    name: ClassVar[str] = "contacts"
    references: ClassVar[tuple[str, ...]] = ("10.1016/j.bpj.2015.08.015", "10.1080/01621459.1958.10501452")
    caption: ClassVar[str] = (
        "Number of residues in contact, within {cutoff} Å of each other, against time, and the part of the frames in "
        "which each pair of residues is in contact."
    )

    a: str = "protein"
    b: str | None = None
    cutoff: float = 4.5
    scheme: Literal["closest-heavy", "ca", "closest"] = "closest-heavy"
    exclude: int = 3
    intermittency: int = 0

    @property
    def methods(self):
        """What a paper says of it, as the parameters are."""
        kinds = {
            "closest-heavy": "the least of any two of their atoms but hydrogens",
            "ca": "that of their alpha carbons",
            "closest": "the least of any two of their atoms",
        }
        pairs = "within {a}" if self.b is None else "of {a} and {b}"
        near = " Residues of one chain nearer than {exclude} in sequence were left out." if self.exclude > 1 else ""
        gaps = (
            " Contacts that were broken for up to {intermittency} selected frames lasted." if self.intermittency else ""
        )
        return (
            f"Residues {pairs} were in contact where their distance, {kinds[self.scheme]}, was at most {{cutoff}} Å "
            f"[10.1016/j.bpj.2015.08.015].{near}{gaps} How long contacts last that form after the first frame was "
            "estimated by the method of Kaplan and Meier [10.1080/01621459.1958.10501452]."
        )

    def setup(self, universe):
        check_positive(self, "cutoff")
        check_not_negative(self, "exclude", "intermittency")
        if self.dt is None and len(self.frames) > 1:
            warnings.warn(
                f"{self.label()}: the selected frames are not evenly spaced in time, mean_ps is nan", stacklevel=2
            )
        a = self.select_by_scheme(universe, "a")
        b = a if self.b is None else self.select_by_scheme(universe, "b")
        self.within = np.array_equal(a.indices, b.indices)
        residues = (a | b).residues
        self.a_atoms, self.b_atoms = a.indices, b.indices
        self.a_residues, self.b_residues = (np.searchsorted(residues.ix, group.resindices) for group in (a, b))
        self.labels, self.place = residue_labels(residues), self.sequence_positions(universe, residues)
        # For residues whose atoms are all in both selections, contact is symmetric.
        self.in_both = np.full(len(residues), True)
        self.in_both[np.isin(residues.ix, (a ^ b).resindices)] = False

    def select_by_scheme(self, universe, parameter):
        """Return the atoms of a selection that the scheme uses."""
        atoms = select(universe, self, parameter)
        if self.scheme == "closest":
            return atoms
        selected = heavy_atoms(atoms)
        if self.scheme == "ca":  # excludes calcium
            selected = selected.select_atoms("name CA and not resname CA CAL")
        if not selected:
            kind = "alpha carbon" if self.scheme == "ca" else "atom but hydrogens"
            raise himach.UsageError(
                f"{self.label()}: parameter {parameter}: {getattr(self, parameter)!r} selects no {kind}; "
                "choose other atoms or another scheme"
            )
        return selected

    def sequence_positions(self, universe, residues):
        """Return the places of residues in sequence, int64 (n,); those of one chain are consecutive."""
        all_residues = universe.residues
        in_chain = np.full(len(all_residues), True)
        if hasattr(all_residues, "resnames"):
            in_chain[universe.select_atoms("not (protein or nucleic)").residues.ix] = False
        chain = np.where(in_chain, all_residues.segindices, len(all_residues) + all_residues.ix)
        order = np.argsort(chain, kind="stable")
        place = np.empty(len(all_residues), np.int64)
        place[order] = np.arange(len(all_residues)) + CHAIN * chain[order]
        return place[residues.ix]

    def atoms(self, universe):
        return universe.atoms[self.a_atoms], universe.atoms[self.b_atoms]

    def map(self, frame):
        a, b = (frame.positions[self.a_atoms], self.a_residues), (None, None)
        if not self.within:
            b = frame.positions[self.b_atoms], self.b_residues
        pairs = kernels.contacts(*a, *b, self.cutoff, frame.box, return_distances=False)
        first, second = pairs.T
        is_distant = np.abs(self.place[first] - self.place[second]) >= max(self.exclude, 1)
        if not self.within:
            is_distant &= (first < second) | ~(self.in_both[first] & self.in_both[second])
        pairs = pairs[is_distant]
        yield himach.Pairs(pairs)
        yield himach.Row(contacts=len(pairs))

    def reduce(self, key, series):
        return find_runs(series.steps, self.intermittency)

    def reduce_many(self, keys, series):
        return find_runs_of_many(series.steps, series.offsets, self.intermittency)

    def finish(self, results):
        counts, n_frames = results.rows, len(self.frames)
        pairs = list(results)
        warn_of_nm(self, "cutoff", bool(pairs))
        runs = [[results[pair]] for pair in pairs]
        names = {side: [self.labels[pair[i]] for pair in pairs] for i, side in enumerate("ab")}
        stays, mean = mean_stays(runs, n_frames, abs(self.dt or 0), self.intermittency)
        times, contacts = himach.Column(counts["time_ps"], "ps"), himach.Column(counts["contacts"], estimate=True)
        return {
            "frequency": himach.Table({**names, "frequency": occupancy(runs, n_frames)}),
            "counts": himach.Table({"time_ps": times, "contacts": contacts}),
            "lifetimes": himach.Table({**names, "stays": himach.Column(stays, estimate="count"), "mean_ps": mean}),
        }

    def plot(self, outcome, axes):
        axes.set_title(shorten(f"Residues within {self.cutoff:g} Å of each other", 60))
        in_time, in_map = panels(axes, [1, 1.7])
        counts = outcome["counts"]
        scale, label = time_axis(counts["time_ps"], "time")
        draw_series(in_time, scale * counts["time_ps"], counts["contacts"], linewidth=0.8)
        draw_mean(in_time, counts, "contacts")
        in_time.margins(x=0)
        in_time.set(xlabel=label, ylabel="contacts", ylim=(0, None))
        draw_legend(in_time, loc="lower left")
        in_time.grid(alpha=0.3)
        self.draw_map(outcome["frequency"], in_map)

    def draw_map(self, table, axes):
        """Draw a map of contact frequencies, residues in order along both axes."""
        a, b = set(table["a"]), set(table["b"])
        a, b = (a | b, a | b) if self.b is None else (a, b)
        a, b = sorted(a, key=sequence_key), sorted(b, key=sequence_key)
        places = [{label: i for i, label in enumerate(labels)} for labels in (a, b)]
        coarse = [-(-len(labels) // MOST_CELLS) for labels in (a, b)]  # residues per cell
        frequency = np.zeros([-(-len(labels) // n) for labels, n in zip((a, b), coarse, strict=True)])
        cells = [
            np.array([place[label] for label in table[side]], np.int64) // n
            for side, place, n in zip("ab", places, coarse, strict=True)
        ]
        np.maximum.at(frequency, tuple(cells), table["frequency"])
        if self.b is None:
            frequency = np.maximum(frequency, frequency.T)
        image = axes.imshow(frequency.T, origin="lower", cmap="Blues", vmin=0, vmax=1, aspect="auto")
        axes.figure.colorbar(image, ax=axes, label="part of the frames")
        for labels, n, axis in zip((a, b), coarse, (axes.xaxis, axes.yaxis), strict=True):
            ticks = range(0, len(labels), max(1, -(-len(labels) // MOST_LABELS)))
            axis.set_ticks([i // n for i in ticks], [labels[i] for i in ticks])
        axes.tick_params(axis="x", rotation=90)
        names = ("residue", "residue") if self.b is None else ("residue of a", "residue of b")
        axes.set(xlabel=names[0], ylabel=names[1])


def sequence_key(label):
    """Return the sort key of labels such as ``A:ALA12``: segment, number, and the whole."""
    segment, _, residue = label.rpartition(":")
    number = re.search(r"-?\d+(?=\D*$)", residue)
    return segment, int(number[0]) if number else 0, label
