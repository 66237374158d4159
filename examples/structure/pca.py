"""Which way a structure moves most: principal components of positions."""

import functools
import warnings
from dataclasses import replace
from typing import ClassVar

import numpy as np
from MDAnalysis.analysis.pca import cosine_content

import himach
from himach import uncertainty
from himach.examples.common import check_positive, select
from himach.examples.drawing import draw_series, time_axis
from himach.examples.molecules import warn_of_cut_molecules
from himach.examples.structure.blocks import block_length, join_block, part_number, split
from himach.examples.structure.modes import check_memory, compute_components, free_energy, moments
from himach.examples.superposition import Reference, Superposition, describe_fit

#: Key of results of all frames; integers are the keys of blocks.
ALL = "all"


class Projections(himach.Analysis):
    """Each block of frames along the components, and what is told of all."""

    selection: str
    bins: int

    def setup(self, universe):
        self.first = select(universe, self, "selection").positions

    def reduce(self, key, series):
        if key == ALL:
            return series.values[0]
        # Both have the stamp of a first frame; which comes first is no matter.
        block, modes = sorted(series.values, key=lambda value: not isinstance(value, dict))
        mean, components = modes[0], modes[1:]
        return block["times"], (block["values"].astype(np.float64) - mean) @ components.T

    def finish(self, results):
        blocks, modes = [block for key, block in results.items() if key != ALL], results[ALL]
        times, along = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
        names = [f"pc{i + 1}" for i in range(along.shape[1])]
        cosine = [cosine_content(along, i) if variance > 0 else 0.0 for i, variance in enumerate(modes.variances)]
        # Mean squares by blocks of frames, as the mean is zero.
        block = uncertainty.fine_block(np.arange(len(along)), len(along))
        first = np.flatnonzero(np.diff(block, prepend=-1))
        squares = np.add.reduceat(along**2, first) * len(along) / (len(along) - 1)

        def limits(level):
            # Of the logarithm, as no variance is below zero.
            band = uncertainty.of_blocks(squares, np.bincount(block), level, of=logarithm)
            width = np.exp(band.high - band.value)
            return replace(band, value=modes.variances, low=modes.variances / width, high=modes.variances * width)

        outcome = {
            "variance": himach.Table(
                {
                    "component": himach.Column(np.arange(1, len(names) + 1), role="x"),
                    "variance": himach.Column(modes.variances, "Å²", estimate=limits),
                    "share": himach.Column(modes.variances / modes.total, within=(0, 1)),
                    "cosine": himach.Column(np.array(cosine), within=(0, 1)),
                }
            ),
            "projections": himach.Table(
                {
                    "time_ps": himach.Column(times, "ps"),
                    **{
                        name: himach.Column(along[:, i], "Å", estimate=True, role="label")
                        for i, name in enumerate(names)
                    },
                }
            ),
            "components": modes.components.reshape(len(names), -1, 3),
            "mean": self.first + modes.mean.reshape(-1, 3),
            "cross_correlation": modes.correlation,
        }
        if len(names) > 1:
            outcome["surface"] = free_energy(along[:, 0], along[:, 1], self.bins)
        return outcome

    def plot(self, outcome, axes):
        variance, table = outcome["variance"], outcome["projections"]
        labels = [
            f"component {i + 1} ({100 * variance['share'][i]:.3g} %, cosine {variance['cosine'][i]:.2f})"
            for i in range(len(variance["share"]))
        ]
        if "surface" not in outcome:
            scale, label = time_axis(table["time_ps"], "time")
            draw_series(axes, scale * table["time_ps"], table["pc1"])
            axes.set(xlabel=label, ylabel=table.label("pc1", labels[0]), title="Principal component")
            return
        counts, x, y = np.histogram2d(table["pc1"], table["pc2"], self.bins)
        with np.errstate(divide="ignore"):
            energy = np.ma.masked_invalid(-np.log(counts / counts.max()))
        mesh = axes.pcolormesh(x, y, energy.T, cmap="viridis", rasterized=True)
        axes.figure.colorbar(mesh, ax=axes, label="free energy / kT")
        axes.set(xlabel=table.label("pc1", labels[0]), ylabel=table.label("pc2", labels[1]))
        axes.set_title("Free energy along two principal components")
        axes.grid(alpha=0.3)


def logarithm(variances):
    """Return logarithms; for zero, that of the least number there is."""
    return np.log(np.maximum(variances, np.finfo(np.float64).tiny))


class Modes(himach.Analysis):
    """The components of the covariance over all frames, for each block of them."""

    then = Projections

    selection: str
    components: int
    bins: int

    def reduce(self, key, series):
        if key != ALL:
            yield key, series.values[0]
            return
        # In the order of frames, independent of ranks.
        modes = compute_components(functools.reduce(np.add, series.values), self.components)
        yield ALL, modes
        for block in range(len(series)):
            yield block, np.vstack([modes.mean, modes.components])


class Covariance(himach.Analysis):
    """Blocks of frames, and the sums over each."""

    then = Modes

    selection: str
    components: int
    bins: int

    def reduce(self, key, series):
        block = join_block(series)
        yield key[0], block
        yield ALL, moments(block["values"])


class Pca(himach.Analysis):
    """Principal components of positions: the directions in which a structure varies most, and how it moves along them.

    Each frame is superposed on the first selected one. Atoms have equal weights, as in ``MDAnalysis.analysis.pca.PCA``
    with ``align=True``. Molecules must be whole.

    Parameters
    ----------
    selection
        Selection of the atoms whose positions vary.
    fit
        Selection of the atoms that are superposed on the first selected frame; ``selection``: those that vary;
        ``none``: frames are taken as they are, without moving.
    components
        Number of components that are kept.
    bins
        Cells along each of the first two components in which the free energy is told.
    """

    name: ClassVar[str] = "pca"
    references: ClassVar[tuple[str, ...]] = (
        "10.1002/prot.340170408",
        "10.1103/PhysRevE.65.031910",
        "10.1107/S0108767305015266",
    )
    caption: ClassVar[str] = (
        "Free energy of {selection} along the first two principal components, or the projection on the first against "
        "time. Axes say which part of the variance a component has, and its cosine content."
    )
    then = Covariance
    #: Least number of frames in a block, and greatest number of blocks; of each there is a covariance.
    sizes: ClassVar[tuple[int, int]] = (256, 8)

    selection: str = "protein and name CA"
    fit: str = "selection"
    components: int = 10
    bins: int = 25

    @property
    def methods(self):
        """What a paper says of it, as the parameters are."""
        how = describe_fit(self.fit, " on the first selected frame")
        return (
            f"Principal components of the positions of {{selection}}, {how}, are the eigenvectors of their "
            "covariance [10.1002/prot.340170408]; cosine contents are those of Hess [10.1103/PhysRevE.65.031910]."
        )

    def setup(self, universe):
        check_positive(self, "components", "bins")
        n = len(self.frames)
        if n < 2:
            raise himach.UsageError(f"{self.label()}: one frame does not vary; select two or more")
        selected = select(universe, self, "selection")
        warn_of_cut_molecules(self, selected)
        self.selected, self.first = selected.indices, selected.positions
        if self.components > (most := min(3 * len(selected), n - 1)):
            warnings.warn(
                f"{self.label()}: components={self.components} is cut to {most}, {len(selected)} atoms in {n} frames "
                "have no more",
                stacklevel=2,
            )
        self.superposition = Superposition.make(universe, self, Reference(universe, self, None))
        check_memory(self, len(selected), -(-n // block_length(n, *self.sizes)))

    def atoms(self, universe):
        return universe.atoms[self.selected], universe.atoms[self.superposition.indices]

    def map(self, frame):
        fitted = frame.positions[self.superposition.indices]
        moved = self.superposition.move(fitted, frame.positions[self.selected])
        # Relative to the first frame, so that single precision suffices.
        yield himach.Pairs([part_number(frame)], (moved - self.first).astype(np.float32).reshape(1, -1))

    def reduce(self, part, series):
        yield from split(series, self.frames, block_length(len(self.frames), *self.sizes))
