"""Principal components of displacements: sums over blocks of frames, what they tell of all, free energies."""

import math
import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg

import himach
from himach import uncertainty

__all__ = ["Components", "check_memory", "compute_components", "free_energy", "moments"]

Floats = npt.NDArray[np.float64]
#: Cells visited less often have at least the limits of independent events.
FEW = 20


@dataclass(frozen=True)
class Components:
    """The principal components of displacements of n atoms.

    Attributes
    ----------
    mean
        float64 (3 n,), Å: the mean displacement.
    components
        float64 (k, 3 n): the components, of unit length, the largest variance first. The number in a component that is
        farthest from zero is positive.
    variances
        float64 (k,), Å²: the variance along each.
    total
        Å²: the variance along all there are.
    correlation
        float64 (n, n): of the displacements of each two atoms from their means, between -1 and 1; 0 of an atom that
        does not move.
    """

    mean: Floats
    components: Floats
    variances: Floats
    total: float
    correlation: Floats


def moments(displacements: npt.ArrayLike) -> Floats:
    """Return sums over frames, which can be added up.

    Parameters
    ----------
    displacements
        (frames, m), Å: m coordinates.

    Returns
    -------
    float64 (1 + m + m (m + 1) / 2,): the number of frames; the sums; of each coordinate its products with itself and
    with those that follow it.
    """
    x = np.array(displacements, np.float64)
    products = x.T @ x
    return np.concatenate([[len(x)], x.sum(axis=0), *(row[i:] for i, row in enumerate(products))])


def compute_components(sums: Floats, components: int) -> Components:
    """Return the components from the `moments` of all frames, divided by one less than their number.

    There are at most as many components as coordinates, and fewer than frames.
    """
    n = (math.isqrt(8 * len(sums) + 1) - 3) // 2
    n_frames = int(sums[0])
    mean = sums[1 : 1 + n] / n_frames
    covariance = np.empty((n, n))
    start = 1 + n
    for i in range(n):
        row = (sums[start : start + n - i] - sums[1 + i] * mean[i:]) / (n_frames - 1)
        covariance[i, i:] = covariance[i:, i] = row
        start += n - i
    count = min(components, n, n_frames - 1)
    values, vectors = scipy.linalg.eigh(covariance, subset_by_index=[n - count, n - 1], check_finite=False)
    rows = vectors.T[::-1]
    largest = np.take_along_axis(rows, np.abs(rows).argmax(axis=1)[:, np.newaxis], axis=1)
    atom_covariance = np.einsum("iaja->ij", covariance.reshape(n // 3, 3, n // 3, 3))
    deviation = np.sqrt(np.diagonal(atom_covariance))
    scale = np.outer(deviation, deviation)
    return Components(
        mean=mean,
        components=np.ascontiguousarray(rows * np.sign(largest)),
        variances=np.maximum(values[::-1], 0),
        total=float(np.trace(covariance)),
        correlation=np.divide(atom_covariance, scale, out=np.zeros_like(scale), where=scale > 0),
    )


def free_energy(x: Floats, y: Floats, bins: int) -> himach.Table:
    """Return the free energy of the visited cells of a grid, relative to the one visited most.

    Parameters
    ----------
    x, y
        float64 (frames,), Å, in the order of time.
    bins
        Number of cells along each, from the least to the greatest value.

    Returns
    -------
    Table of ``pc1``, ``pc2``, the middles of cells, and ``free_energy`` in kT, with limits by blocks of frames.
    """
    cells, edges = [], []
    for values in (x, y):
        limits = np.linspace(values.min(), values.max(), bins + 1)
        cells.append(np.clip(np.searchsorted(limits, values, side="right") - 1, 0, bins - 1))
        edges.append((limits[1:] + limits[:-1]) / 2)
    visited, cell = np.unique(cells[0] * bins + cells[1], return_inverse=True)
    counts = np.bincount(cell)
    energy = np.log(counts.max() / counts)
    block = uncertainty.fine_block(np.arange(len(x)), len(x))
    n_blocks = int(block[-1]) + 1
    sums = np.bincount(block * len(visited) + cell, minlength=n_blocks * len(visited)).reshape(n_blocks, -1)

    def interval(level: float) -> uncertainty.Estimate[Any]:
        band = uncertainty.of_blocks(sums, np.bincount(block), level)
        half = (band.high - band.value) / band.value
        count_limits = uncertainty.count(counts, level)
        rare = counts < FEW
        low = np.where(rare, np.minimum(energy - half, energy - np.log(count_limits.high / counts)), energy - half)
        high = np.where(rare, np.maximum(energy + half, energy - np.log(count_limits.low / counts)), energy + half)
        return replace(band, value=energy, low=low, high=high)

    return himach.Table(
        {
            "pc1": himach.Column(edges[0][visited // bins], "Å", role="label"),
            "pc2": himach.Column(edges[1][visited % bins], "Å", role="label"),
            "free_energy": himach.Column(energy, "kT", estimate=interval, role="label"),
        }
    )


def check_memory(analysis: himach.Analysis, n_atoms: int, blocks: int) -> None:
    """Raise UsageError if the products of all coordinates exceed the memory of this machine."""
    needed, memory = 4 * (3 * n_atoms) ** 2 * (2 * blocks + 6), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > memory:
        raise himach.UsageError(
            f"{analysis.label()}: the covariance of {n_atoms:,} atoms needs {needed / 1e9:.3g} GB on one rank, and "
            f"this machine has {memory / 1e9:.3g} GB; select fewer atoms, such as 'name CA'"
        )
