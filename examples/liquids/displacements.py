"""Paths of atoms without periodic boundary, how far these have gone after some time, and how sure that is."""

import itertools
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.fft import irfft, next_fast_len, rfft

from himach import uncertainty
from himach.examples.common import box_vectors

__all__ = ["UNIT", "block_lags", "block_msd", "diffusion", "diffusion_limits", "msd_limits", "unwrap", "windowed_msd"]

Floats = npt.NDArray[np.float64]
#: cm²/s in Å²/ps.
CM2_S = 1e-4

#: Images of a box that touch it, in box vectors; itself first.
NEIGHBORS = np.array(sorted(itertools.product((-1.0, 0.0, 1.0), repeat=3), key=np.count_nonzero))
#: Frames of a path for each of its lags in blocks, at least: windows of longer ones are hardly ever independent.
FRAMES_PER_LAG = 8
#: Unit of sums of squared displacements divided by the number of paths, Å²: their mean may reach 8,000,000.
UNIT = 2.0**-40


def unwrap(positions: Floats, boxes: npt.ArrayLike) -> Floats:
    """Return paths of atoms without jumps through the periodic boundary.

    Parameters
    ----------
    positions
        float64 (..., m, 3), Å.
    boxes
        (m, 6): lengths in Å and angles in degrees.

    Notes
    -----
    Whole box vectors are removed from each step, so that it is the shortest in the box of its end. Their number times
    the present box, as in most tools, would add later changes of the box, and diffusion at constant pressure comes out
    too fast (von Bülow, Bullerjahn and Hummer, J. Chem. Phys. 153, 021101 (2020)).
    """
    vectors = box_vectors(boxes)
    a, b, c = np.moveaxis(vectors, 0, -1)  # of lower triangular matrices: a has x alone, b has x and y
    steps = np.diff(positions, axis=-2, prepend=positions[..., :1, :])
    x, y, z = np.moveaxis(steps, -1, 0)
    n_c = np.round(z / c[2])
    n_b = np.round((y - n_c * c[1]) / b[1])
    n_a = np.round((x - n_c * c[0] - n_b * b[0]) / a[0])
    jumps = np.stack([n_a * a[0] + n_b * b[0] + n_c * c[0], n_b * b[1] + n_c * c[1], n_c * c[2]], axis=-1)
    if np.any(boxes[:, 3:] != 90):
        steps -= jumps
        # A step longer than half the way from a box to the next may have a shorter image.
        far = np.nonzero((steps**2).sum(axis=-1) > (np.diagonal(vectors, axis1=1, axis2=2).min(axis=1) / 2) ** 2)
        images = NEIGHBORS @ vectors[far[-1]]
        nearest = ((steps[far][:, np.newaxis] - images) ** 2).sum(axis=-1).argmin(axis=-1)
        jumps[far] += images[np.arange(len(nearest)), nearest]
    return positions - np.cumsum(jumps, axis=-2)


def windowed_msd(positions: Floats) -> Floats:
    """Return the mean over t of |r(t + tau) - r(t)|² for tau = 0 ... m - 1, float64 (..., m), for paths (..., m, 3).

    Notes
    -----
    The square is r²(t + tau) + r²(t) - 2 r(t + tau) r(t): running sums give the first two terms, a Fourier transform
    the third (Calandrini et al., Collection SFN 12, 201 (2011)).
    """
    m = positions.shape[-2]
    n = next_fast_len(2 * m, real=True)
    squares, powers = 0.0, 0.0
    for along in np.moveaxis(positions, -1, 0):
        # Relative to its middle, to lose few digits; a mean's last bit would depend on the number of paths.
        path = along - along[..., m // 2, np.newaxis]
        waves = rfft(path, n)
        squares = squares + path**2
        powers = powers + waves.real**2 + waves.imag**2
    products = irfft(powers, n)[..., :m]
    sums = np.zeros((*squares.shape[:-1], m + 1))
    np.cumsum(squares, axis=-1, out=sums[..., 1:])
    tau = np.arange(m)
    msd = (sums[..., m, np.newaxis] - sums[..., tau] + sums[..., m - tau] - 2 * products) / (m - tau)
    msd[..., 0] = 0
    return msd


def block_lags(m: int, n_lags: int) -> tuple[int, int]:
    """Return the number of blocks of windows for paths of m frames (0: none), and of their lags from 0, of `n_lags`."""
    most = uncertainty.FINE_BLOCKS
    if m < most:
        return 0, 1
    lags = min(n_lags, m // FRAMES_PER_LAG)
    few = lags * most > 2 * m or m - lags + 1 < most  # more blocks of long lags would only cost time
    return most // 2 if few else most, lags


def block_msd(positions: Floats, n_blocks: int, n_lags: int, n_paths: int) -> npt.NDArray[np.int64]:
    """Return what paths (n, m, 3), of `n_paths` in all, add to the mean squared displacement of each block of origins.

    Blocks are equally long, and contain all windows of their origins: the last frames are no origins.

    Returns
    -------
    int64 (n_blocks, n_lags), in units of `UNIT`, so that sums do not depend on the order of paths.

    Notes
    -----
    Computed as in `windowed_msd`, by Fourier transforms of a block's origins, and of these and the frames that follow.
    """
    m = positions.shape[1]
    length = (m - n_lags + 1) // n_blocks
    span = length + n_lags - 1
    n = next_fast_len(span, real=True)
    squares, powers = 0.0, 0.0
    for along in np.moveaxis(positions, -1, 0):
        path = along - along[..., m // 2, np.newaxis]
        windows = np.lib.stride_tricks.sliding_window_view(path, span, axis=-1)[:, ::length][:, :n_blocks]
        squares = squares + path**2
        powers = powers + np.conj(rfft(windows[..., :length], n)) * rfft(windows, n)
    sums = np.zeros((len(positions), m + 1))
    np.cumsum(squares, axis=-1, out=sums[:, 1:])
    first = length * np.arange(n_blocks)[:, np.newaxis] + np.arange(n_lags)
    after = sums[:, first + length] - sums[:, first]
    msd = (after + after[..., :1] - 2 * irfft(powers, n)[..., :n_lags]) / length
    msd[..., 0] = 0
    return np.rint(msd / (n_paths * UNIT)).astype(np.int64).sum(axis=0)


def msd_limits(msd: Floats, block_values: Floats, level: float) -> uncertainty.Estimate[Floats]:
    """Return the band of a mean squared displacement from those of blocks of windows, which may have fewer lags.

    The correlation of windows depends on their length: lags from a power of two to the next make a curve each.
    """
    low, high = np.full((2, len(msd)), np.nan)
    low[0] = high[0] = 0
    band = uncertainty.of_blocks(block_values[:1], None, level)  # not converged
    first, n_lags = 1, block_values.shape[1]
    while first < n_lags:
        lags = slice(first, min(2 * first, n_lags))
        band = uncertainty.of_blocks(block_values[:, lags], None, level)
        low[lags], high[lags] = msd[lags] - (band.value - band.low), msd[lags] + (band.high - band.value)
        first *= 2
    return replace(band, value=msd, low=low, high=high)  # the last is the least certain


def diffusion_limits(
    d: float, tau: Floats, block_values: Floats, level: float, n_axes: int = 3
) -> uncertainty.Estimate[Any]:
    """Return the interval of a diffusion coefficient from blocks at the lags that are fitted."""
    band = uncertainty.of_blocks(block_values, None, level, of=partial(diffusion, tau, n_axes=n_axes))
    return replace(band, value=d, low=d - (band.value - band.low), high=d + (band.high - band.value))


def diffusion(tau: Floats, msd: Floats, n_axes: int = 3) -> float:
    """Return a diffusion coefficient in cm²/s from the slope of the displacement along some axes, Å², over lags, ps."""
    deviations = tau - tau.mean()
    return float(CM2_S / (2 * n_axes) * (deviations @ msd) / (deviations @ deviations))
