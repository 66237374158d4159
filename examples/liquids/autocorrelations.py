"""How vectors such as velocities are correlated with themselves after some time, and the spectrum of that."""

import numpy as np
import numpy.typing as npt
from scipy.fft import dct, irfft, next_fast_len, rfft

from himach.examples.liquids.displacements import UNIT

__all__ = ["LIGHT", "block_products", "integral", "spectral_density", "windowed_products"]

Floats = npt.NDArray[np.float64]
#: Speed of light in cm/ps.
LIGHT = 0.0299792458


def windowed_products(vectors: Floats) -> Floats:
    """Return the mean over t of v(t + tau) v(t) for tau = 0 ... m - 1, float64 (..., m), for vectors (..., m, 3).

    Notes
    -----
    By a Fourier transform, after Wiener and Khinchin.
    """
    m = vectors.shape[-2]
    n = next_fast_len(2 * m, real=True)
    powers = 0.0
    for along in np.moveaxis(vectors, -1, 0):
        waves = rfft(along, n)
        powers = powers + waves.real**2 + waves.imag**2
    return np.asarray(irfft(powers, n)[..., :m] / (m - np.arange(m)))


def block_products(vectors: Floats, weights: Floats, n_blocks: int, n_lags: int) -> npt.NDArray[np.int64]:
    """Return what vectors (n, m, 3) of atoms with weights (n,) add to the mean product of each block of origins.

    Blocks are equally long, and contain all windows of their origins, as in
    `himach.examples.liquids.displacements.block_msd`.

    Returns
    -------
    int64 (n_blocks, n_lags), in units of `UNIT`, so that sums do not depend on the order of atoms.
    """
    m = vectors.shape[1]
    length = (m - n_lags + 1) // n_blocks
    span = length + n_lags - 1
    n = next_fast_len(span, real=True)
    powers = 0.0
    for along in np.moveaxis(vectors, -1, 0):
        windows = np.lib.stride_tricks.sliding_window_view(along, span, axis=-1)[:, ::length][:, :n_blocks]
        powers = powers + np.conj(rfft(windows[..., :length], n)) * rfft(windows, n)
    products = irfft(powers, n)[..., :n_lags] / length * weights[:, np.newaxis, np.newaxis]
    return np.asarray(np.rint(products / UNIT).astype(np.int64).sum(axis=0))


def integral(curve: Floats, dt: float) -> float:
    """Return the integral of a curve (n,) at times 0, dt, ..., by trapezoids."""
    return float(dt * (curve.sum() - (curve[0] + curve[-1]) / 2))


def spectral_density(curve: Floats, dt: float) -> tuple[Floats, Floats]:
    """Return the spectrum of an autocorrelation.

    Parameters
    ----------
    curve
        float64 (n,) at lags 0, dt, ..., n >= 2.
    dt
        Time between lags in ps.

    Returns
    -------
    wavenumbers
        float64 (n,) in 1/cm, from 0 to where a wave lasts two frames.
    density
        float64 (n,) in cm, of which the integral over wavenumbers, by trapezoids, is ``curve[0]``.

    Notes
    -----
    It is 4 times the integral of the curve times cos(2 pi f t) over lags, per frequency f. The curve is multiplied by a
    Hann window, which goes to 0 at the last lag: where a curve is cut off, the spectrum has waves that are not there.
    """
    n = len(curve)
    window = np.cos(np.pi / 2 * np.arange(n) / (n - 1)) ** 2
    density = 2 * LIGHT * dt * dct(curve * window, type=1)
    return np.arange(n) / (2 * (n - 1) * dt * LIGHT), density
