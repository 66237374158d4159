"""How far atoms have gone after some time."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft

import himach
from himach.examples.common import WATER, box_vectors, lag_times, select

#: Positions that are worked on at a time: as many as stay in a core's own cache.
AT_ONCE = 1 << 15


class Msd(himach.Analysis):
    """Mean squared displacement over all time origins and selected atoms, in three dimensions.

    Equal to ``MDAnalysis.analysis.msd.EinsteinMSD`` after the transformation ``NoJump``. The slope at long times is six
    times the diffusion coefficient.

    Parameters
    ----------
    selection
        Selection of the atoms that move.
    tau_max
        Longest lag, in selected frames.
    unwrap
        Whether to follow atoms through the periodic boundary; right as long as none moves by more than half a box from
        one selected frame to the next. False for trajectories that are unwrapped, or have no box.
    """

    name: ClassVar[str] = "msd"

    selection: str = WATER
    tau_max: int = 100
    unwrap: bool = True

    def setup(self, universe):
        if self.unwrap and universe.dimensions is None:
            raise himach.UsageError("msd: the trajectory has no box to unwrap by; set unwrap=False")
        self.indices = select(universe, self, "selection").indices
        self.tau_ps = lag_times(self, self.tau_max)

    def atoms(self, universe):
        return universe.atoms[self.indices]

    def map(self, frame):
        if self.unwrap and frame.box is None:
            raise himach.UsageError("the frame has no box to unwrap by; set unwrap=False, or select frames with a box")
        yield himach.Pairs(self.indices, frame.positions[self.indices])

    def reduce(self, key, series):
        return self.lags(series.values, series.boxes)

    def reduce_many(self, keys, series):
        m = len(self.frames)
        if np.any(np.diff(series.offsets) != m):  # an analysis derived from this one may leave frames out
            return [self.reduce(key, one) for key, one in zip(keys, series, strict=True)]
        paths, boxes = series.values.reshape(-1, m, 3), series[0].boxes
        some = max(1, AT_ONCE // m)
        return [msd for first in range(0, len(paths), some) for msd in self.lags(paths[first : first + some], boxes)]

    def lags(self, positions, boxes):
        """Return the mean squared displacements of paths (..., m, 3) up to the longest lag."""
        paths = positions.astype(np.float64)
        return windowed_msd(unwrap(paths, boxes) if self.unwrap else paths)[..., : len(self.tau_ps)]

    def finish(self, results):
        msd = np.zeros(len(self.tau_ps))
        for of_atom in results.values():
            msd += of_atom
        taus, mean = himach.Column(self.tau_ps, "ps"), himach.Column(msd / len(results), "Å²")
        return {"msd": himach.Table({"tau_ps": taus, "msd": mean})}

    def plot(self, outcome, axes):
        table = outcome["msd"]
        axes.plot(table["tau_ps"], table["msd"])
        axes.set(xlabel=table.label("tau_ps", "lag time τ"), ylabel=table.label("msd", "MSD"))
        axes.set_title("Mean squared displacement")
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)


def unwrap(positions, boxes):
    """Return paths of atoms as if there were no periodic boundary.

    Parameters
    ----------
    positions
        float64 (..., m, 3), Å.
    boxes
        (m, 6): lengths in Å and angles in degrees.

    Notes
    -----
    In units of the box vectors, a step of more than a half was a jump by a whole number (von Bülow, Bullerjahn and
    Hummer, J. Chem. Phys. 153, 021101 (2020)); the numbers add up along the path.
    """
    a, b, c = np.moveaxis(box_vectors(boxes), 0, -1)  # of lower triangular matrices: a has x alone, b has x and y
    x, y, z = np.moveaxis(positions, -1, 0)
    along_c = z / c[2]
    along_b = (y - along_c * c[1]) / b[1]
    along_a = (x - along_c * c[0] - along_b * b[0]) / a[0]
    jumps_a, jumps_b, jumps_c = (
        np.cumsum(np.round(np.diff(steps, axis=-1, prepend=steps[..., :1])), axis=-1)
        for steps in (along_a, along_b, along_c)
    )
    whole_x = x - (jumps_a * a[0] + jumps_b * b[0] + jumps_c * c[0])
    return np.stack([whole_x, y - (jumps_b * b[1] + jumps_c * c[1]), z - jumps_c * c[2]], axis=-1)


def windowed_msd(positions):
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
        # Near its middle, so that few digits are lost; a mean's last bit would depend on how many paths there are.
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
