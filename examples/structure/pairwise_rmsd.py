"""How much each two frames differ: the matrix of their root-mean-square deviations."""

from typing import ClassVar

import numpy as np

import himach
from himach import kernels
from himach.examples.drawing import time_axis
from himach.examples.structure.blocks import FramePairs, check_memory, pair_blocks
from himach.examples.superposition import describe_fit

#: Rows and columns of the matrix that a picture shows, at most.
SHOWN = 1000


class Matrix(himach.Analysis):
    """Tiles of the matrix, and all of it."""

    selection: str
    fit: str

    def reduce(self, key, series):
        if isinstance(key, int):  # a block of frames
            return series.values[0]["times"]
        first, second = (*series.values, None)[:2]
        return kernels.rmsd_matrix(first, second, superposition=self.fit == "selection").astype(np.float32)

    def finish(self, results):
        times = [block for key, block in results.items() if isinstance(key, int)]
        starts = np.cumsum([0, *map(len, times)])
        matrix = np.zeros((starts[-1], starts[-1]), np.float32)
        for key, tile in results.items():
            if isinstance(key, tuple):
                rows, columns = (slice(starts[i], starts[i + 1]) for i in key)
                matrix[rows, columns] = tile
                matrix[columns, rows] = tile.T
        mean = matrix.sum(axis=1, dtype=np.float64) / max(len(matrix) - 1, 1)
        columns = {"time_ps": himach.Column(np.concatenate(times), "ps"), "mean": himach.Column(mean, "Å")}
        return {"pairwise": himach.Table(columns), "matrix": matrix}

    def plot(self, outcome, axes):
        scale, label = time_axis(outcome["pairwise"]["time_ps"], "time")
        matrix, times = outcome["matrix"], scale * outcome["pairwise"]["time_ps"]
        every = -(-len(matrix) // SHOWN)
        image = axes.imshow(
            matrix[::every, ::every], origin="lower", cmap="viridis", vmin=0, extent=(times[0], times[-1]) * 2
        )
        axes.figure.colorbar(image, ax=axes, label="RMSD / Å")
        axes.set(xlabel=label, ylabel=label, title="Deviation of each two frames")


class Tiles(himach.Analysis):
    """Blocks of frames, and those which are to be compared."""

    then = Matrix

    selection: str
    fit: str

    def reduce(self, key, series):
        yield from pair_blocks(key, series)


class PairwiseRmsd(FramePairs):
    """Root-mean-square deviation of each two frames, and the mean deviation of each from all others.

    The frame with the least mean is the one most like all others. Atoms have equal weights; molecules must be whole.

    Parameters
    ----------
    selection
        Selection of the atoms that are compared.
    fit
        ``selection``: each two frames are superposed by the atoms that are compared. Selection of other atoms: each
        frame is superposed by these on the first selected frame, and compared where it then is; ``none``: frames are
        compared as they are, without moving.
    """

    name: ClassVar[str] = "pairwise-rmsd"
    references: ClassVar[tuple[str, ...]] = ("10.1107/S0108767305015266",)
    caption: ClassVar[str] = "Root-mean-square deviation of {selection} between each two frames."
    then = Tiles

    selection: str = "protein and backbone"
    fit: str = "selection"

    @property
    def methods(self):
        """What a paper says of it, as the parameters are."""
        return (
            "The root-mean-square deviation of {selection} between each two frames was computed "
            f"{describe_fit(self.fit)}."
        )

    def setup(self, universe):
        super().setup(universe)
        check_memory(self, 4)  # a float32
