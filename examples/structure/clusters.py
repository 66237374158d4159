"""Which structures are alike: clusters of frames by the deviation of each two of them."""

import warnings
from dataclasses import replace
from io import StringIO
from typing import ClassVar, Literal

import MDAnalysis
import numpy as np
from MDAnalysis.coordinates.PDB import PDBWriter
from MDAnalysis.lib.util import NamedStream

import himach
from himach import kernels
from himach.examples.common import check_not_negative, check_positive, select
from himach.examples.drawing import time_axis
from himach.examples.interactions.survival import find_runs, occupancy
from himach.examples.structure.blocks import FramePairs, check_memory, pair_blocks
from himach.examples.structure.gromos import assemble_bits, gromos
from himach.examples.superposition import describe_fit

#: Clusters that a plot shows.
SHOWN = 12


class Neighbours(himach.Analysis):
    """Tiles of pairs of frames, and the clusters of all."""

    selection: str
    fit: str
    cutoff: float
    centers: int

    def setup(self, universe):
        self.selected = select(universe, self, "selection")

    def reduce(self, key, series):
        if isinstance(key, int):  # a block of frames
            return series.values[0]
        first, second = (*series.values, None)[:2]
        return kernels.rmsd_matrix(first, second, self.cutoff, superposition=self.fit == "selection")

    def finish(self, results):
        blocks = [block for key, block in results.items() if isinstance(key, int)]
        frames, times = (np.concatenate([block[name] for block in blocks]) for name in ("frames", "times"))
        starts = np.cumsum([0, *(len(block["frames"]) for block in blocks)])
        tiles = {key: tile for key, tile in results.items() if isinstance(key, tuple)}
        cluster, centers = gromos(assemble_bits(tiles, starts))
        size = np.bincount(cluster)[1:]
        # Wilson's limits of the fraction of time in a cluster.
        part = occupancy([[find_runs(np.flatnonzero(cluster == n))] for n in range(1, len(size) + 1)], len(frames))

        def limits(level):
            proportion = part.estimate(level)
            return replace(proportion, value=size, low=len(frames) * proportion.low, high=len(frames) * proportion.high)

        outcome = {
            "clusters": himach.Table(
                {
                    "cluster": himach.Column(np.arange(1, len(size) + 1), role="label"),
                    "size": himach.Column(size, estimate=limits),
                    "center_frame": frames[centers],
                }
            ),
            "membership": himach.Table(
                {"time_ps": himach.Column(times, "ps"), "cluster": himach.Column(cluster, role="label")}
            ),
        }
        structures = [find_positions(blocks, starts, center) for center in centers[: self.centers]]
        copy = MDAnalysis.Merge(self.selected)
        for number, (center, positions) in enumerate(zip(centers, structures, strict=False), 1):
            rotation, shift = kernels.superposition(positions, structures[0])
            copy.atoms.positions = positions @ rotation.T + shift
            title = f"CENTER OF CLUSTER {number}: FRAME {frames[center]}, {times[center]:g} PS"
            outcome[f"center_{number}"] = structure(copy, title)
        return outcome

    def plot(self, outcome, axes):
        clusters, table = outcome["clusters"], outcome["membership"]
        scale, label = time_axis(table["time_ps"], "time")
        is_shown = table["cluster"] <= SHOWN
        times, cluster = scale * table["time_ps"][is_shown], table["cluster"][is_shown]
        rows = min(len(clusters["size"]), SHOWN)
        axes.scatter(times, cluster, s=60, c=cluster, vmin=1, vmax=rows + 1, cmap="viridis", marker="|", linewidths=0.8)
        parts = 100 * clusters["size"] / clusters["size"].sum()
        axes.set_yticks(range(1, rows + 1), [f"{i + 1}: {parts[i]:.3g} %" for i in range(rows)])
        remainder = f"; {len(parts) - rows} more have {parts[rows:].sum():.3g} %" if len(parts) > rows else ""
        axes.set(xlabel=label, ylabel="cluster: part of the frames", title=f"{len(parts)} clusters{remainder}")
        axes.set_ylim(rows + 0.7, 0.3)
        axes.grid(alpha=0.3)


class Tiles(himach.Analysis):
    """Blocks of frames, and those which are to be compared."""

    then = Neighbours

    selection: str
    fit: str
    cutoff: float
    centers: int

    def reduce(self, key, series):
        yield from pair_blocks(key, series)


class Clusters(FramePairs):
    """Clusters of frames by the deviation of each two of them: the method of Daura and others (GROMOS).

    The frame that has the most others within a cutoff is the center of the first cluster, and these are its members.
    They are put aside, and the next cluster is found among the rest, until none is left. Of frames that have as many
    others, the earliest is taken. Deviations are those of the selected atoms, with equal weights; molecules must be
    whole.

    Parameters
    ----------
    selection
        Selection of the atoms that are compared.
    fit
        ``selection``: each two frames are superposed by the atoms that are compared. Selection of other atoms: each
        frame is superposed by these on the first selected frame, and compared where it then is; ``none``: frames are
        compared as they are, without moving.
    cutoff
        Deviation in Å up to which two frames are neighbours.
    method
        How clusters are made of neighbours.
    centers
        Of how many clusters, the largest ones, the center is written as a PDB file.
    """

    name: ClassVar[str] = "clusters"
    references: ClassVar[tuple[str, ...]] = (
        "10.1002/(SICI)1521-3773(19990115)38:1/2<236::AID-ANIE236>3.0.CO;2-M",
        "10.1107/S0108767305015266",
    )
    caption: ClassVar[str] = (
        "In which cluster each frame is, with the part of the frames that each cluster has; frames of a cluster are "
        "within {cutoff} Å of its center in the root-mean-square deviation of {selection}."
    )
    then = Tiles

    selection: str = "protein and backbone"
    fit: str = "selection"
    cutoff: float = 2.0
    method: Literal["gromos"] = "gromos"
    centers: int = 100

    @property
    def methods(self):
        """What a paper says of it, as the parameters are."""
        return (
            "Frames were clustered by the algorithm of Daura et al. "
            "[10.1002/(SICI)1521-3773(19990115)38:1/2<236::AID-ANIE236>3.0.CO;2-M], with a cutoff of {cutoff} Å in the "
            f"root-mean-square deviation of {{selection}} between each two frames, computed {describe_fit(self.fit)}."
        )

    def setup(self, universe):
        check_positive(self, "cutoff")
        check_not_negative(self, "centers")
        super().setup(universe)
        check_memory(self, 3 / 16)


def find_positions(blocks, starts, frame):
    """Return the positions of a frame, by its place among all."""
    block = int(np.searchsorted(starts, frame, side="right")) - 1
    return blocks[block]["values"][frame - starts[block]]


def structure(universe: MDAnalysis.Universe, title: str) -> himach.TextFile:
    """Return a Universe as a PDB file, or as a GRO file where its coordinates are too large for that."""
    text, limits, positions = StringIO(), PDBWriter.pdb_coor_limits, universe.atoms.positions
    suffix = ".pdb" if limits["min"] < positions.min() and positions.max() < limits["max"] else ".gro"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # names that a topology lacks have defaults in the file
        stream = NamedStream(text, f"center{suffix}")
        with MDAnalysis.Writer(stream, multiframe=False, bonds=None, remarks=title) as writer:
            writer.write(universe.atoms)
        return himach.TextFile(text.getvalue(), suffix)
