"""Clusters by the bits of all pairs: `gromos()`, and `assemble_bits()` that puts tiles of such bits together."""

import numpy as np
import numpy.typing as npt

__all__ = ["assemble_bits", "gromos"]

Bits = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]


def assemble_bits(tiles: dict[tuple[int, int], Bits], starts: Ints) -> Bits:
    """Return the bits of all pairs of frames, uint8 (n, (n + 7) // 8), from the tiles on and above the diagonal.

    Each frame is its own neighbour. All blocks but the last have a multiple of eight frames.
    """
    n = int(starts[-1])
    bits = np.zeros((n, (n + 7) // 8), np.uint8)
    for (i, j), tile in tiles.items():
        rows, columns = slice(starts[i], starts[i + 1]), slice(starts[j], starts[j + 1])
        bits[rows, columns.start // 8 : columns.start // 8 + tile.shape[1]] = tile
        if i < j:
            count = columns.stop - columns.start
            transposed = np.packbits(
                np.unpackbits(tile, axis=1, count=count, bitorder="little").T, axis=1, bitorder="little"
            )
            bits[columns, rows.start // 8 : rows.start // 8 + transposed.shape[1]] = transposed
    return bits


def gromos(bits: Bits) -> tuple[Ints, Ints]:
    """Return the cluster of each frame, from 1, and the frame in the middle of each cluster, the largest first.

    Parameters
    ----------
    bits
        uint8 (n, (n + 7) // 8): whether each two of n frames are neighbours, the lowest bit first.

    Examples
    --------
    >>> gromos(np.array([[0b0011], [0b0111], [0b0110], [0b1000]], np.uint8))
    (array([1, 1, 1, 2]), array([1, 3]))
    """
    n = len(bits)
    # Number of neighbours of each frame among those in no cluster yet; 0 for other frames.
    counts = np.bitwise_count(bits).sum(axis=1, dtype=np.int64)
    cluster, centers = np.zeros(n, np.int64), []
    while counts.any():
        center = int(counts.argmax())
        is_near = np.unpackbits(bits[center], count=n, bitorder="little").astype(bool)
        members = np.flatnonzero(is_near & (cluster == 0))
        centers.append(center)
        cluster[members] = len(centers)
        for chunk in np.array_split(members, -(-len(members) // 256)):
            counts -= np.unpackbits(bits[chunk], axis=1, count=n, bitorder="little").sum(axis=0, dtype=np.int64)
        counts[cluster > 0] = 0
    return cluster, np.array(centers, np.int64)
