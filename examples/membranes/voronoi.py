"""Areas of points in a periodic plane: Voronoi cells."""

import numpy as np
import numpy.typing as npt

__all__ = ["voronoi_areas"]

Floats = npt.NDArray[np.float64]
#: Width of the first margin of images, in mean distances of points.
MARGIN = 3.0


def voronoi_areas(points: npt.ArrayLike, vectors: npt.ArrayLike) -> Floats:
    """Return the area of the plane that is nearer to each point, or an image of it, than to all others.

    Parameters
    ----------
    points
        (n, 2): at least one. Those at one place share its area.
    vectors
        (2, 2): the periods of the plane, (a, 0) and (b, c).

    Returns
    -------
    float64 (n,). They add up to the area of a period.

    Examples
    --------
    >>> voronoi_areas([[1, 1], [4, 1]], [[6, 0], [0, 5]])
    array([15., 15.])
    """
    periods = np.asarray(vectors, dtype=np.float64)
    folded = fold(np.asarray(points, dtype=np.float64), periods)
    places, numbers, counts = np.unique(folded, axis=0, return_inverse=True, return_counts=True)
    numbers = numbers.reshape(-1)
    area = abs(np.linalg.det(periods))
    margin = MARGIN * np.sqrt(area / len(places))
    while True:
        cells, reach = cells_with_margin(places, periods, margin)
        if 2 * reach <= margin:  # the circles about corners of cells contain no missing images
            return np.asarray((cells / counts)[numbers])
        margin = min(2 * reach, 2 * margin)


def fold(points: Floats, periods: Floats) -> Floats:
    """Move points into the parallelogram of the periods by whole periods."""
    along = points @ np.linalg.inv(periods)
    return np.asarray(points - np.floor(along) @ periods)


def cells_with_margin(places: Floats, periods: Floats, margin: float) -> tuple[Floats, float]:
    """Return the areas of cells among their images within a margin, and how far their corners are from their points."""
    from scipy.spatial import Voronoi

    widths = abs(np.linalg.det(periods)) / np.linalg.norm(periods[::-1], axis=1)
    reach = np.ceil(margin / widths).astype(np.int64)
    shifts = np.stack(np.meshgrid(*(np.arange(-n, n + 1) for n in reach), indexing="ij"), axis=-1).reshape(-1, 2)
    shifts = shifts[np.argsort((shifts != 0).any(axis=1), kind="stable")]  # the points themselves come first
    images = (places + (shifts @ periods)[:, np.newaxis]).reshape(-1, 2)
    along = images @ np.linalg.inv(periods)
    is_near = ((along >= -margin / widths) & (along <= 1 + margin / widths)).all(axis=1)
    is_near[: len(places)] = True
    images = images[is_near]
    if len(images) < 4:
        return np.zeros(len(places)), np.inf
    diagram = Voronoi(images)
    ridges, vertices = diagram.ridge_points, np.array(diagram.ridge_vertices, dtype=np.int64)
    is_inner = (ridges < len(places)).any(axis=1)
    ridges, vertices = ridges[is_inner], vertices[is_inner]
    if (vertices < 0).any():
        return np.zeros(len(places)), np.inf
    # A cell consists of triangles on its ridges, whose height is half the distance of the two points.
    corners = diagram.vertices[vertices]
    lengths = np.linalg.norm(corners[:, 1] - corners[:, 0], axis=1)
    distances = np.linalg.norm(images[ridges[:, 1]] - images[ridges[:, 0]], axis=1)
    cells = np.zeros(len(images))
    for side in (0, 1):
        cells += np.bincount(ridges[:, side], lengths * distances / 4, len(images))
    farthest = np.linalg.norm(corners - images[ridges[:, :1]], axis=2).max()
    return cells[: len(places)], float(farthest)
