"""How far atoms have gone after some time."""

from __future__ import annotations

import itertools
import warnings
from typing import ClassVar

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft

import himach
from himach.examples.common import WATER, box_vectors, lag_times, select, time_axis

#: Positions that are worked on at a time: as many as stay in a core's own cache.
AT_ONCE = 1 << 15
#: Images of a box that touch it, in box vectors; itself first.
NEIGHBORS = np.array(sorted(itertools.product((-1.0, 0.0, 1.0), repeat=3), key=np.count_nonzero))
CHANGING_BOX = (
    "msd: the box changes, and most tools unwrap such trajectories so that diffusion is too fast; leave unwrap=True "
    "and give the trajectory as the simulation wrote it"
)


class Msd(himach.Analysis):
    """Mean squared displacement over all time origins and selected atoms, in three dimensions.

    The slope at long times is six times the diffusion coefficient. In a rectangular box that stays, equal to
    ``MDAnalysis.analysis.msd.EinsteinMSD`` after the transformation ``NoJump``; in one that changes, steps are added up
    as they are in the box of each moment, where ``NoJump`` makes diffusion faster with the length of the trajectory.

    Parameters
    ----------
    selection
        Selection of the atoms that move.
    tau_max
        Longest lag, in selected frames.
    unwrap
        Whether to follow atoms through the periodic boundary; right as long as none moves by more than half a box from
        one selected frame to the next. False for trajectories that are unwrapped, or have no box.
    loglog
        Whether both axes of the plot are logarithmic, beside a line of slope 1, which diffusion has.
    """

    name: ClassVar[str] = "msd"

    selection: str = WATER
    tau_max: int = 100
    unwrap: bool = True
    loglog: bool = False

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
        if not self.unwrap and boxes is not None and np.ptp(boxes[:, :3], axis=0).any():
            warnings.warn(CHANGING_BOX, stacklevel=2)
        return windowed_msd(unwrap(paths, boxes) if self.unwrap else paths)[..., : len(self.tau_ps)]

    def finish(self, results):
        msd = np.zeros(len(self.tau_ps))
        for of_atom in results.values():
            msd += of_atom
        taus, mean = himach.Column(self.tau_ps, "ps"), himach.Column(msd / len(results), "Å²")
        return {"msd": himach.Table({"tau_ps": taus, "msd": mean})}

    def plot(self, outcome, axes):
        table = outcome["msd"]
        scale, label = time_axis(table["tau_ps"], "lag time τ")
        tau, msd = scale * table["tau_ps"], table["msd"]
        axes.set(xlabel=label, ylabel=table.label("msd", "MSD"), title="Mean squared displacement")
        axes.grid(alpha=0.3)
        if self.loglog:
            tau, msd = tau[1:], msd[1:]
            axes.loglog(tau, msd)
            axes.loglog(tau, msd[-1:] / tau[-1:] * tau, color="grey", lw=0.8, ls="--", label="slope 1: diffusion")
            axes.legend()
        else:
            axes.plot(tau, msd)
            axes.set(xlim=(0, None), ylim=(0, None))


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
    Each step is the shortest in the box of its end: box vectors by which it is longer are taken off there. Their number
    times the present box, as in most tools, would add what the box has changed since, and diffusion at constant
    pressure comes out too fast (von Bülow, Bullerjahn and Hummer, J. Chem. Phys. 153, 021101 (2020)).
    """
    vectors = box_vectors(boxes)
    a, b, c = np.moveaxis(vectors, 0, -1)  # of lower triangular matrices: a has x alone, b has x and y
    steps = np.diff(positions, axis=-2, prepend=positions[..., :1, :])
    x, y, z = np.moveaxis(steps, -1, 0)
    of_c = np.round(z / c[2])
    of_b = np.round((y - of_c * c[1]) / b[1])
    of_a = np.round((x - of_c * c[0] - of_b * b[0]) / a[0])
    jumps = np.stack([of_a * a[0] + of_b * b[0] + of_c * c[0], of_b * b[1] + of_c * c[1], of_c * c[2]], axis=-1)
    if np.any(boxes[:, 3:] != 90):
        steps -= jumps
        # The shortest may be a neighbour of what is left, if that is longer than half the way from a box to the next.
        far = np.nonzero((steps**2).sum(axis=-1) > (np.diagonal(vectors, axis1=1, axis2=2).min(axis=1) / 2) ** 2)
        images = NEIGHBORS @ vectors[far[-1]]
        nearest = ((steps[far][:, np.newaxis] - images) ** 2).sum(axis=-1).argmin(axis=-1)
        jumps[far] += images[np.arange(len(nearest)), nearest]
    return positions - np.cumsum(jumps, axis=-2)


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
