"""How far atoms have gone after some time."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

import himach
from himach.examples.common import WATER, box_vectors, lag_times, select


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
        yield himach.Pairs(self.indices, frame.positions[self.indices])

    def reduce(self, key, series):
        positions = series.values.astype(np.float64)
        if self.unwrap:
            positions = unwrap(positions, series.boxes)
        return windowed_msd(positions)[: len(self.tau_ps)]

    def finish(self, results):
        msd = np.zeros(len(self.tau_ps))
        for of_atom in results.values():
            msd += of_atom
        return {"msd": {"tau_ps": self.tau_ps, "msd": msd / len(results)}}

    def plot(self, outcome, axes):
        table = outcome["msd"]
        axes.plot(table["tau_ps"], table["msd"])
        axes.set(xlabel="lag time τ / ps", ylabel="MSD / Å²", title="Mean squared displacement")
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)


def unwrap(positions, boxes):
    """Return the path of one atom as if there were no periodic boundary.

    Parameters
    ----------
    positions
        float64 (m, 3), Å.
    boxes
        (m, 6): lengths in Å and angles in degrees.

    Notes
    -----
    In units of the box vectors, a step of more than a half was a jump by a whole number (von Bülow, Bullerjahn and
    Hummer, J. Chem. Phys. 153, 021101 (2020)); the numbers add up along the path.
    """
    vectors = box_vectors(boxes)
    scaled = np.empty_like(positions)  # solves scaled @ vectors = positions for lower triangular matrices
    scaled[:, 2] = positions[:, 2] / vectors[:, 2, 2]
    scaled[:, 1] = (positions[:, 1] - scaled[:, 2] * vectors[:, 2, 1]) / vectors[:, 1, 1]
    rest = positions[:, 0] - scaled[:, 2] * vectors[:, 2, 0] - scaled[:, 1] * vectors[:, 1, 0]
    scaled[:, 0] = rest / vectors[:, 0, 0]
    jumps = np.cumsum(np.round(np.diff(scaled, axis=0)), axis=0)
    shifts = np.vstack([np.zeros(3), jumps])
    return positions - np.einsum("mi,mij->mj", shifts, vectors)


def windowed_msd(positions):
    """Return the mean over t of |r(t + tau) - r(t)|² for tau = 0 ... m - 1, float64 (m,), for positions (m, 3).

    Notes
    -----
    The square is r²(t + tau) + r²(t) - 2 r(t + tau) r(t): running sums give the first two terms, a Fourier transform
    the third (Calandrini et al., Collection SFN 12, 201 (2011)).
    """
    m = len(positions)
    centred = positions - positions.mean(axis=0)
    waves = np.fft.rfft(centred, 2 * m, axis=0)
    products = np.fft.irfft((waves * waves.conj()).sum(axis=1).real, 2 * m)[:m]
    sums = np.append(0, np.cumsum((centred**2).sum(axis=1)))
    tau = np.arange(m)
    squares = (sums[m] - sums[tau]) + sums[m - tau]
    msd = (squares - 2 * products) / (m - tau)
    msd[0] = 0
    return msd
