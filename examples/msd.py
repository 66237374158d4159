"""How far atoms have gone after some time."""

from __future__ import annotations

import warnings
from functools import partial
from typing import ClassVar

import numpy as np

import himach
from himach.examples.common import WATER, draw_band, in_words, lag_times, select, time_axis
from himach.examples.displacements import (
    UNIT,
    block_lags,
    block_msd,
    diffusion,
    limits_of_diffusion,
    limits_of_msd,
    unwrap,
    windowed_msd,
)

#: Positions that are worked on at a time: as many as stay in a core's own cache.
AT_ONCE = 1 << 15
#: What is fitted by default, as `gmx msd` does: of the longest lag.
FIT = 0.1, 0.9
CHANGING_BOX = (
    "msd: the box changes, and most tools unwrap such trajectories so that diffusion is too fast; leave unwrap=True "
    "and give the trajectory as the simulation wrote it"
)


class Msd(himach.Analysis):
    """Mean squared displacement over all time origins and selected atoms, in three dimensions; diffusion coefficient.

    The slope at long times is six times the diffusion coefficient, D. Lags of more than an eighth of the trajectory
    have no interval, for they have too few windows that know nothing of each other; nor has D where the fit reaches so
    far. In a rectangular box that stays, the displacement is equal to ``MDAnalysis.analysis.msd.EinsteinMSD`` after the
    transformation ``NoJump``; in one that changes, steps are added up as they are in the box of each moment, where
    ``NoJump`` makes diffusion faster with the length of the trajectory.

    Parameters
    ----------
    selection
        Selection of the atoms that move.
    tau_max
        Longest lag, in selected frames.
    unwrap
        Whether to follow atoms through the periodic boundary; right as long as none moves by more than half a box from
        one selected frame to the next. False for trajectories that are unwrapped, or have no box.
    fit
        Lags in ps between which a line is fitted to find D, such as ``10-50``. None: from 10 % to 90 % of the longest.
    loglog
        Whether both axes of the plot are logarithmic, beside a line of slope 1, which diffusion has.
    """

    name: ClassVar[str] = "msd"

    selection: str = WATER
    tau_max: int = 100
    unwrap: bool = True
    fit: str | None = None
    loglog: bool = False

    def setup(self, universe):
        if self.unwrap and universe.dimensions is None:
            raise himach.UsageError("msd: the trajectory has no box to unwrap by; set unwrap=False")
        self.indices = select(universe, self, "selection").indices
        self.tau_ps = lag_times(self, self.tau_max)
        self.fitted = self.lags_to_fit()
        self.n_blocks, self.n_lags = block_lags(len(self.frames), len(self.tau_ps))

    def lags_to_fit(self):
        """Return the lags that a line is fitted to, a slice."""
        tau = self.tau_ps
        if self.fit is None:
            first, last = FIT[0] * tau[-1], FIT[1] * tau[-1]
        else:
            try:
                first, last = map(float, self.fit.split("-"))
            except ValueError:
                raise himach.UsageError(f"msd: fit {self.fit!r}: give two lags in ps, such as 10-50") from None
        some = slice(
            *np.searchsorted(tau, [first * (1 - 1e-6), last * (1 + 1e-6)])
        )  # 50 ps are 49.99999 in many a file
        if self.fit is not None and len(tau[some]) < 2:
            raise himach.UsageError(
                f"msd: fit {self.fit!r}: there are not two lags; they reach from 0 to {tau[-1]:g} ps, by tau_max"
            )
        return some

    def atoms(self, universe):
        return universe.atoms[self.indices]

    def map(self, frame):
        if self.unwrap and frame.box is None:
            raise himach.UsageError("the frame has no box to unwrap by; set unwrap=False, or select frames with a box")
        yield himach.Pairs(self.indices, frame.positions[self.indices])

    def reduce(self, key, series):
        return windowed_msd(self.paths(series.values, series.boxes))[: len(self.tau_ps)].copy()

    def reduce_many(self, keys, series):
        m = len(self.frames)
        if np.any(np.diff(series.offsets) != m):  # an analysis derived from this one may leave frames out
            return [self.reduce(key, one) for key, one in zip(keys, series, strict=True)]
        positions, boxes = series.values.reshape(-1, m, 3), series[0].boxes
        some, found, blocks = max(1, AT_ONCE // m), [], 0
        for first in range(0, len(positions), some):
            paths = self.paths(positions[first : first + some], boxes)
            found += [*windowed_msd(paths)[:, : len(self.tau_ps)].copy()]
            if self.n_blocks:
                blocks = blocks + block_msd(paths, self.n_blocks, self.n_lags, len(self.indices))
        if self.n_blocks:
            found[0] = found[0], blocks, len(positions)  # what all these paths add to the blocks goes with the first
        return found

    def paths(self, positions, boxes):
        """Return paths (..., m, 3) that are not broken by the periodic boundary."""
        if not self.unwrap and boxes is not None and np.ptp(boxes[:, :3], axis=0).any():
            warnings.warn(CHANGING_BOX, stacklevel=2)
        positions = positions.astype(np.float64)
        return unwrap(positions, boxes) if self.unwrap else positions

    def finish(self, results):
        msd, n_whole, blocks = np.zeros(len(self.tau_ps)), 0, np.zeros((self.n_blocks or 1, self.n_lags), np.int64)
        for result in results.values():
            if isinstance(result, tuple):
                of_atom, of_block, n_paths = result
                blocks += of_block
                n_whole += n_paths
            else:
                of_atom = result
            msd += of_atom
        msd /= len(results)
        of_block = blocks * UNIT if n_whole == len(results) else np.zeros((1, self.n_lags))
        mean = himach.Column(msd, "Å²", estimate=partial(limits_of_msd, msd, of_block))
        outcome = {"msd": himach.Table({"tau_ps": himach.Column(self.tau_ps, "ps"), "msd": mean})}
        tau, d = self.tau_ps[self.fitted], np.nan
        if len(tau) > 1:
            d = diffusion(tau, msd[self.fitted])
        known = len(tau) > 1 and self.fitted.stop <= self.n_lags
        of_block = of_block[:, self.fitted] if known else np.zeros((1, 2))
        limits = partial(limits_of_diffusion, d, tau if known else np.arange(2.0), of_block)
        from_ps, to_ps = (
            himach.Column(tau[end] if len(tau) else [np.nan], "ps") for end in (slice(1), slice(-1, None))
        )
        d = himach.Column(np.array([d]), "cm²/s", estimate=limits)
        outcome["diffusion"] = himach.Table({"from_ps": from_ps, "to_ps": to_ps, "d_cm2_s": d})
        return outcome

    def plot(self, outcome, axes):
        table = outcome["msd"]
        scale, label = time_axis(table["tau_ps"], "lag time τ")
        tau, msd = scale * table["tau_ps"], table["msd"]
        axes.set(xlabel=label, ylabel=table.label("msd", "MSD"), title="Mean squared displacement")
        axes.grid(alpha=0.3)
        if self.loglog:
            axes.loglog(tau[1:], msd[1:])
            axes.loglog(
                tau[1:], msd[-1:] / tau[-1:] * tau[1:], color="grey", lw=0.8, ls="--", label="slope 1: diffusion"
            )
        else:
            axes.plot(tau, msd)
            axes.set(xlim=(0, None), ylim=(0, None))
        draw_band(axes, tau, table, "msd", "C0")
        d = outcome["diffusion"]
        if np.isfinite(d["d_cm2_s"][0]):
            some = (table["tau_ps"] >= d["from_ps"][0]) & (table["tau_ps"] <= d["to_ps"][0])
            line = np.polynomial.Polynomial.fit(tau[some], msd[some], 1)
            axes.plot(tau[some], line(tau[some]), color="black", lw=0.8, label=in_words(d, "d_cm2_s", "D"))
        axes.legend()
