"""How stiff chains are: how far apart their ends are, and over which length their direction persists."""

import warnings
from typing import ClassVar

import numpy as np
from scipy.optimize import OptimizeWarning, curve_fit

import himach
from himach import kernels, uncertainty
from himach.examples.common import check_positive, select
from himach.examples.drawing import draw_band, draw_legend, draw_series, in_words, panels, time_axis
from himach.examples.molecules import numbers_by


class PersistenceLength(himach.Analysis):
    """End-to-end distance of chains, and their persistence length, by the directions of their bonds.

    The cosine of the angle between two bonds of a chain falls with the number n of bonds between them as exp(-n b / l),
    with b the mean length of a bond and l the persistence length. Atoms next to each other in a chain are put next to
    each other through the periodic boundary.

    Parameters
    ----------
    selection
        Selection of an atom of each unit of the chains, such as alpha carbons, in the order of the chain. Atoms of one
        molecule are a chain; without bonds in the topology, those of one segment.
    longest
        Number of bonds up to which the exponential is fitted; None: the whole chain.
    """

    name: ClassVar[str] = "persistence-length"
    methods: ClassVar[str] = (
        "End-to-end distances of the chains of {selection} were averaged over chains. The persistence length was "
        "computed by a fit of an exponential to the mean cosine of the angle between bonds against their distance "
        "along the chain."
    )
    caption: ClassVar[str] = (
        "End-to-end distance of the chains against time, and correlation of their bonds' directions."
    )

    selection: str = "name CA"
    longest: int | None = None

    def setup(self, universe):
        if self.longest is not None:
            check_positive(self, "longest")
        atoms = select(universe, self, "selection")
        bonded = hasattr(universe, "bonds")
        chains = numbers_by(universe, self, "molecule")[atoms.indices] if bonded else atoms.segindices
        order = np.argsort(chains, kind="stable")
        self.indices = atoms.indices[order]
        sizes = np.unique(chains, return_counts=True)[1]
        if sizes.min() < 3:
            raise himach.UsageError(
                f"{self.label()}: selection={self.selection!r} selects {sizes.min()} atoms of a chain, and 2 bonds "
                "need 3; select atoms of long chains alone"
            )
        self.first = np.cumsum([0, *sizes[:-1]])
        self.last = self.first + sizes - 1
        self.links = np.column_stack([np.arange(len(order) - 1), np.arange(1, len(order))])
        self.links = np.delete(self.links, self.last[:-1], axis=0)
        number = np.repeat(np.arange(len(sizes)), sizes - 1)  # of the chain of each bond
        self.places = number, self.links[:, 0] - self.first[number]
        self.lags = int(sizes.max()) - 1
        self.pairs = np.clip(sizes[:, np.newaxis] - 1 - np.arange(self.lags), 0, None).sum(axis=0)

    def atoms(self, universe):
        return universe.atoms[self.indices]

    def map(self, frame):
        positions = frame.positions[self.indices]
        if frame.box is not None:
            positions = kernels.unwrap(positions, self.links, frame.box)
        bonds = np.diff(positions[self.links].astype(np.float64), axis=1)[:, 0]
        lengths = np.linalg.norm(bonds, axis=1)
        directions = np.zeros((len(self.first), 2 * self.lags, 3))  # of bonds by chains, and as many zeros
        directions[self.places] = bonds / lengths[:, np.newaxis]
        spectrum = np.fft.rfft(directions, axis=1)
        power = (spectrum.real**2 + spectrum.imag**2).sum(axis=(0, 2))
        cosines = np.fft.irfft(power, 2 * self.lags)[: self.lags] / self.pairs
        ends = np.linalg.norm((positions[self.last] - positions[self.first]).astype(np.float64), axis=1)
        yield himach.Row(end_to_end=float(ends.mean()), bond=float(lengths.mean()))
        yield himach.Pairs(np.arange(self.lags), cosines)

    def reduce(self, key, series):
        n = len(self.frames)
        block = uncertainty.fine_block(series.steps, n)
        return np.bincount(block), np.bincount(block, series.values)

    def finish(self, results):
        rows = results.rows
        sums = np.column_stack([results[lag][1] for lag in range(self.lags)])
        in_block, bond = results[0][0], float(rows["bond"].mean())
        cosines, lags = sums.sum(axis=0) / in_block.sum(), np.arange(self.lags)
        fitted = min(self.longest or self.lags, self.lags - 1) + 1
        persists = cosines[1] > 0
        if not persists:
            warnings.warn(
                f"{self.label()}: the persistence length is nan, because a bond and the next one have a mean cosine of "
                f"{cosines[1]:.2f}; let selection={self.selection!r} be one atom of each unit of the chains",
                stacklevel=2,
            )

        def length(means):
            if not persists:
                return np.array([np.nan])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", OptimizeWarning)  # the fit's covariance is not used
                try:
                    (number,), _ = curve_fit(lambda n, p: np.exp(-n / p), lags[:fitted], means[:fitted], p0=[5.0])
                except RuntimeError:  # the cosine does not fall
                    number = np.nan
            return np.array([bond * number])

        def limits(level):
            return uncertainty.of_blocks(sums, in_block, level, of=length)

        fit = himach.Column(length(cosines), "Å", estimate=limits)
        end_to_end = himach.Column(rows["end_to_end"], "Å", estimate=True)
        weights = np.broadcast_to(in_block[:, np.newaxis], sums.shape)
        return {
            "end_to_end": himach.Table({"time_ps": himach.Column(rows["time_ps"], "ps"), "end_to_end": end_to_end}),
            "bonds": himach.Table(
                {
                    "distance": himach.Column(lags * bond, "Å", role="x"),
                    "cosine": himach.Column(cosines, estimate=(sums, weights)),
                }
            ),
            "persistence": himach.Table({"length": fit, "bond": himach.Column([bond], "Å", role="label")}),
        }

    def plot(self, outcome, axes):
        ends, bonds, fit = outcome["end_to_end"], outcome["bonds"], outcome["persistence"]
        axes.set_title("Chains")
        above, below = panels(axes, [1, 1.2])
        scale, label = time_axis(ends["time_ps"], "time")
        draw_series(above, scale * ends["time_ps"], ends["end_to_end"], lw=0.8)
        above.set(xlabel=label, ylabel=ends.label("end_to_end", "end to end"))
        above.margins(x=0)
        (line,) = below.plot(bonds["distance"], bonds["cosine"])
        draw_band(below, bonds["distance"], bonds, "cosine", line.get_color())
        text = in_words(fit, "length", "l")
        below.plot(
            bonds["distance"], np.exp(-np.asarray(bonds["distance"]) / fit["length"][0]), "k--", lw=0.8, label=text
        )
        below.set(xlabel=bonds.label("distance", "distance along the chain"), ylabel="cosine between bonds")
        below.axhline(0, color="grey", linewidth=0.8)
        draw_legend(below)
        for panel in (above, below):
            panel.grid(alpha=0.3)
