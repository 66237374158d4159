"""Grids in space and layers of a box: which of them atoms are in; grids as OpenDX, and drawn."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

import himach
from himach.examples.common import select

if TYPE_CHECKING:
    from MDAnalysis import Universe

__all__ = ["Grid", "Layers", "draw_mean_along", "find_center", "fractional", "open_dx"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
#: A group spread too evenly around the box has no centre: least length of the mean unit vector of one that has.
EVEN = 0.05


class Grid:
    """A grid of cubic voxels around some positions.

    Parameters
    ----------
    positions
        float32 (n, 3), Å, n >= 1.
    spacing
        Side of a voxel in Å.
    padding
        How far the grid reaches beyond the positions, at least, Å.

    Attributes
    ----------
    shape
        Number of voxels along x, y and z.
    edges
        float64 (shape[i] + 1,) for each axis i, Å.

    Notes
    -----
    It is the grid of ``MDAnalysis.analysis.density.DensityAnalysis``, to the last bit.
    """

    def __init__(self, positions: npt.NDArray[np.float32], spacing: float, padding: float) -> None:
        self.spacing = spacing
        low = (positions.min(axis=0) - np.float32(padding)).astype(np.float64)
        high = (positions.max(axis=0) + np.float32(padding)).astype(np.float64)
        counts = np.ceil((high - low) / spacing)
        beyond = 0.5 * (counts * spacing - (high - low))
        self.shape: tuple[int, ...] = tuple(int(n) for n in counts)
        self.n_voxels = math.prod(self.shape)
        self._low, self._high = low - beyond, high + beyond

    @property
    def edges(self) -> list[Floats]:
        bounds = zip(self._low, self._high, self.shape, strict=True)
        return [np.linspace(low, high, n + 1) for low, high, n in bounds]

    def voxels(self, positions: npt.NDArray[np.floating]) -> Ints:
        """Return the voxel of each position (n, 3), int64 (n,) in C order; `n_voxels` for what lies outside."""
        voxels = np.zeros(len(positions), np.int64)
        outside = np.zeros(len(positions), bool)
        for along, low, edges in zip(positions.T, self._low, self.edges, strict=True):
            x = along.astype(np.float64)
            last = len(edges) - 2
            index = np.clip(((x - low) / self.spacing).astype(np.int64), 0, last)
            # A division may round to the next voxel: the edges decide.
            index -= (x < edges[index]) & (index > 0)
            index += (x >= edges[index + 1]) & (index < last)
            outside |= (x < edges[0]) | (x > edges[-1])
            voxels *= last + 1
            voxels += index
        voxels[outside] = self.n_voxels
        return voxels


def fractional(positions: npt.NDArray[np.float32], vectors: Floats, axis: int) -> Floats:
    """Return the places of positions (n, 3) along a box vector, in its lengths: float64 (n,), not wrapped.

    Parameters
    ----------
    positions
        float32 (n, 3), Å.
    vectors
        float64 (3, 3), Å: rows are box vectors, as of `himach.examples.common.box_vectors`.
    axis
        Index of the box vector.
    """
    fractions = np.zeros(len(positions))
    for i, factor in enumerate(np.linalg.inv(vectors)[:, axis]):
        if factor:
            fractions += positions[:, i].astype(np.float64) * factor
    return fractions


def find_center(fractions: Floats) -> float:
    """Return the centre of positions on a circle of circumference 1, independent of its origin; nan if there is none.

    Notes
    -----
    The direction of the mean unit vector gives it approximately (Bai and Breen, J. Graphics Tools 13, 53 (2008)); it
    is the mean of the images that are nearest to that.
    """
    angles = 2 * np.pi * fractions
    x, y = np.cos(angles).mean(), np.sin(angles).mean()
    if math.hypot(x, y) < EVEN:
        return math.nan
    direction = math.atan2(y, x) / (2 * math.pi)
    offsets = fractions - direction
    return direction + float((offsets - np.rint(offsets)).mean())


class Layers:
    """Places of atoms along box vectors, and layers across one, by the parameters `axis`, `bins` and `center`.

    Attributes
    ----------
    along
        Index of the box vector of `axis`.
    center
        int64 (m,): indices of the atoms whose centre is the zero of places; None: places are those in the box.
    """

    def __init__(self, universe: "Universe", analysis: Any) -> None:
        self.along = "xyz".index(analysis.axis)
        self.bins: int = analysis.bins
        self.selection: str | None = analysis.center
        self.center: Ints | None = None
        if self.selection is not None:
            self.center = select(universe, analysis, "center").indices

    @property
    def atoms(self) -> Ints:
        """Indices of the atoms that places need beside those to be placed."""
        return np.empty(0, np.int64) if self.center is None else self.center

    def fractions(
        self, points: npt.NDArray[np.floating], positions: npt.NDArray[np.float32], vectors: Floats, along: int
    ) -> Floats:
        """Return the places of points along a box vector, in its lengths, in a frame with these positions.

        Raises
        ------
        himach.UsageError
            If the atoms of the centre are all around the box.
        """
        fractions = fractional(points, vectors, along)
        if self.center is None:
            return fractions
        middle = find_center(fractional(positions[self.center], vectors, along))
        if math.isnan(middle):
            raise himach.UsageError(
                f"the atoms of center, {self.selection!r}, are all around the box: they have no centre"
            )
        return fractions - middle

    def layers(self, points: npt.NDArray[np.floating], positions: npt.NDArray[np.float32], vectors: Floats) -> Ints:
        """Return the layer of each point, int64 (n,), in a frame with these positions; the centre is in the middle."""
        fractions = self.fractions(points, positions, vectors, self.along) + (0 if self.center is None else 0.5)
        return np.asarray(((fractions - np.floor(fractions)) * self.bins).astype(np.int64) % self.bins)

    def height(self, vectors: Floats) -> float:
        """Return the distance in Å of the faces of the box between which layers lie."""
        return float(1 / np.linalg.norm(np.linalg.inv(vectors)[:, self.along]))

    def column(self, height: float) -> himach.Column:
        """Return the middles of layers as a column, Å, in a box of a mean height."""
        position = ((np.arange(self.bins) + 0.5) / self.bins - (0 if self.center is None else 0.5)) * height
        return himach.Column(position, "Å", role="x")


def open_dx(values: npt.NDArray[np.floating], edges: list[Floats], spacing: float) -> himach.TextFile:
    """Return values (nx, ny, nz) of a grid of cubic voxels in OpenDX, with the centres of voxels as points."""
    counts = " ".join(map(str, values.shape))
    origin = " ".join(f"{edge[0] + spacing / 2:.6f}" for edge in edges)
    flat = [f"{value:.7g}" for value in values.ravel().tolist()]
    lines = [
        f"object 1 class gridpositions counts {counts}",
        f"origin {origin}",
        f"delta {spacing:.6f} 0 0",
        f"delta 0 {spacing:.6f} 0",
        f"delta 0 0 {spacing:.6f}",
        f"object 2 class gridconnections counts {counts}",
        f"object 3 class array type double rank 0 items {len(flat)} data follows",
        *(" ".join(flat[first : first + 3]) for first in range(0, len(flat), 3)),
        'attribute "dep" string "positions"',
        'object "density" class field',
        'component "positions" value 1',
        'component "connections" value 2',
        'component "data" value 3',
    ]
    return himach.TextFile("\n".join(lines) + "\n", ".dx")


def draw_mean_along(
    axes: Any, values: npt.NDArray[np.floating], extent: himach.Table, axis: str, label: str, signed: bool
) -> None:
    """Draw the mean of a grid (nx, ny, nz) along x, y or z, in colours; `signed` values in two, white at 0.

    The grid's `extent` is a table of as many rows as axes, with columns ``from`` and ``to``.
    """
    along = "xyz".index(axis)
    first, second = (i for i in range(3) if i != along)
    mean = values.mean(axis=along).T
    reach = np.abs(mean).max()
    colours = {"cmap": "RdBu", "vmin": -reach, "vmax": reach} if signed else {"cmap": "viridis", "vmin": 0}
    limits = [extent[end][i] for i in (first, second) for end in ("from", "to")]
    image = axes.imshow(mean, extent=limits, origin="lower", **colours)
    axes.figure.colorbar(image, cax=axes.inset_axes([1.04, 0, 0.05, 1]), label=label)
    axes.set(xlabel=f"{'xyz'[first]} / Å", ylabel=f"{'xyz'[second]} / Å", title=f"Mean density along {axis}")
