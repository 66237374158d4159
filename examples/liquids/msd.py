"""How far atoms have gone after some time."""

import warnings
from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal, NamedTuple

import numpy as np

import himach
from himach.examples.common import WATER, box_vectors, check_positive, lag_times, select
from himach.examples.drawing import draw_band, draw_legend, in_words, time_axis
from himach.examples.liquids.displacements import (
    UNIT,
    block_lags,
    block_msd,
    diffusion,
    diffusion_limits,
    msd_limits,
    unwrap,
    windowed_msd,
)
from himach.examples.liquids.finite_size import yeh_hummer
from himach.examples.molecules import make_points

#: Positions processed at a time: as many as stay in a core's own cache.
AT_ONCE = 1 << 15
#: Default fit, as in `gmx msd`, in parts of the longest lag.
FIT = 0.1, 0.9
CHANGING_BOX = (
    "msd: the box changes, and most tools unwrap such trajectories so that diffusion is too fast; leave unwrap=True "
    "and give the trajectory as the simulation wrote it"
)


class Path(NamedTuple):
    """What reduce() finds of a path; the first of many that are reduced at once has what all of these add to blocks."""

    msd: np.ndarray
    box: np.ndarray | None = None
    blocks: np.ndarray | int = 0
    n_paths: int = 0


class Msd(himach.Analysis):
    """Mean squared displacement over all time origins and selected atoms, or molecules; diffusion coefficient.

    Its slope at long times is twice the number of directions times the diffusion coefficient, D. Lags of more than an
    eighth of the trajectory have no interval, for they have too few windows that know nothing of each other; nor has D
    where the fit reaches so far. In a rectangular box that stays, the displacement is equal to
    ``MDAnalysis.analysis.msd.EinsteinMSD`` after the transformation ``NoJump``; in one that changes, steps are added up
    as they are in the box of each moment, where ``NoJump`` makes diffusion faster with the length of the trajectory.

    Parameters
    ----------
    selection
        Selection of the atoms that move.
    molecules
        Whether it is molecules that move: their centres of mass, of the selected atoms. A molecule is what bonds join,
        or a residue where the topology has no bonds. They are made whole first.
    directions
        Directions along which displacements are counted, such as ``xy`` for lateral diffusion in a membrane.
    tau_max
        Longest lag, in selected frames.
    unwrap
        Whether to follow atoms through the periodic boundary; right as long as none moves by more than half a box from
        one selected frame to the next. False for trajectories that are unwrapped, with molecules whole, or have no box.
    fit
        Lags in ps between which a line is fitted to find D, such as ``10-50``. None: from 10 % to 90 % of the longest.
    viscosity
        Shear viscosity of the liquid in mPa s, for D in a box without end (Yeh and Hummer 2004). That of the water
        model, not of water, such as 0.31 of TIP3P and 0.73 of SPC/E at 298 K.
    temperature
        Temperature in K, for the same.
    loglog
        Whether both axes of the plot are logarithmic, beside a line of slope 1, which diffusion has.
    """

    name: ClassVar[str] = "msd"
    references: ClassVar[tuple[str, ...]] = ("10.1051/sfn/201112010", "10.1063/5.0008316", "10.1021/jp0477147")
    caption: ClassVar[str] = (
        "Mean squared displacement of {selection} along {directions} against the lag time, and the line whose slope is "
        "the diffusion coefficient."
    )

    selection: str = WATER
    molecules: bool = False
    directions: Literal["xyz", "xy", "xz", "yz", "x", "y", "z"] = "xyz"
    tau_max: int = 100
    unwrap: bool = True
    fit: str | None = None
    viscosity: float | None = None
    temperature: float | None = None
    loglog: bool = False

    @property
    def methods(self):
        """What a paper says of it, as the parameters are."""
        subject = "{selection} (centres of mass of molecules)" if self.molecules else "{selection}"
        paths = (
            ", from paths in which each step is the shortest in the periodic box of its end [10.1063/5.0008316]"
            if self.unwrap
            else ""
        )
        lags = "from 10 % to 90 % of the longest lag" if self.fit is None else "for lags of {fit} ps"
        endless = (
            " It was corrected for the finite size of the box, with a viscosity of {viscosity} mPa s at "
            "{temperature} K [10.1021/jp0477147]."
        )
        return (
            f"The mean squared displacement of {subject} along {{directions}} was averaged over all time origins by "
            f"Fourier transform [10.1051/sfn/201112010]{paths}. The diffusion coefficient is the slope of a line "
            f"fitted to it {lags}; its interval is by blocks of time origins, not by the error of the "
            f"fit.{endless if self.viscosity is not None else ''}"
        )

    def setup(self, universe):
        self.corrects = self.viscosity is not None
        if self.corrects != (self.temperature is not None):
            raise himach.UsageError("msd: viscosity and temperature go together; give both, or neither")
        if self.corrects:
            check_positive(self, "viscosity", "temperature")
        if universe.dimensions is None and (self.unwrap or self.corrects):
            raise himach.UsageError(f"msd: the trajectory has no box {self.needs_box()}")
        atoms = select(universe, self, "selection")
        self.moving = make_points(atoms, self, "molecule" if self.molecules else "atom", whole=self.unwrap)
        self.tau_ps = lag_times(self, self.tau_max)
        self.fitted = self.lags_to_fit()
        self.n_blocks, self.n_lags = block_lags(len(self.frames), len(self.tau_ps))

    @property
    def axes(self):
        """The directions as numbers from 0 to 2."""
        return ["xyz".index(direction) for direction in self.directions]

    def needs_box(self):
        """Return the reason for a box, and the way out."""
        return "to unwrap by; set unwrap=False" if self.unwrap else "that viscosity is for; leave viscosity out"

    def lags_to_fit(self):
        """Return the slice of the lags that a line is fitted to."""
        tau = self.tau_ps
        if self.fit is None:
            first, last = FIT[0] * tau[-1], FIT[1] * tau[-1]
        else:
            try:
                first, last = map(float, self.fit.split("-"))
            except ValueError:
                raise himach.UsageError(f"msd: fit {self.fit!r}: give two lags in ps, such as 10-50") from None
        fitted = slice(
            *np.searchsorted(tau, [first * (1 - 1e-6), last * (1 + 1e-6)])
        )  # 50 ps are 49.99999 in many files
        if self.fit is not None and len(tau[fitted]) < 2:
            raise himach.UsageError(
                f"msd: fit {self.fit!r}: there are not two lags; they reach from 0 to {tau[-1]:g} ps, by tau_max"
            )
        return fitted

    def atoms(self, universe):
        return universe.atoms[self.moving.indices]

    def map(self, frame):
        if frame.box is None and (self.unwrap or self.corrects):
            raise himach.UsageError(f"the frame has no box {self.needs_box()}, or select frames with a box")
        yield himach.Pairs(self.moving.numbers, self.moving.locate(frame).astype(np.float32, copy=False))

    def reduce(self, key, series):
        msd = windowed_msd(self.paths(series.values, series.boxes))[: len(self.tau_ps)].copy()
        return Path(msd, self.mean_box(series.boxes))

    def reduce_many(self, keys, series):
        m = len(self.frames)
        if np.any(np.diff(series.offsets) != m):  # a derived analysis may leave frames out
            return [self.reduce(key, member) for key, member in zip(keys, series, strict=True)]
        positions, boxes = series.values.reshape(-1, m, 3), series[0].boxes
        batch, results, blocks = max(1, AT_ONCE // m), [], 0
        for first in range(0, len(positions), batch):
            paths = self.paths(positions[first : first + batch], boxes)
            results += map(Path, windowed_msd(paths)[:, : len(self.tau_ps)].copy())
            if self.n_blocks:
                blocks = blocks + block_msd(paths, self.n_blocks, self.n_lags, len(self.moving.numbers))
        results[0] = Path(results[0].msd, self.mean_box(boxes), blocks, len(positions) if self.n_blocks else 0)
        return results

    def paths(self, positions, boxes):
        """Return paths (..., m, k) along the directions, without jumps through the periodic boundary."""
        if not self.unwrap and boxes is not None and np.ptp(boxes[:, :3], axis=0).any():
            warnings.warn(CHANGING_BOX, stacklevel=2)
        positions = positions.astype(np.float64)
        if self.unwrap:
            positions = unwrap(positions, boxes)
        return positions if len(self.axes) == 3 else positions[..., self.axes]

    def mean_box(self, boxes):
        """Return the mean box vectors over all frames, (3, 3) in Å; None if they are not needed."""
        return box_vectors(boxes).mean(axis=0) if self.corrects else None

    def finish(self, results):
        paths = list(results.values())
        msd = sum(path.msd for path in paths) / len(paths)
        is_complete = self.n_blocks and sum(path.n_paths for path in paths) == len(paths)
        block_values = sum(path.blocks for path in paths) * UNIT if is_complete else np.zeros((1, self.n_lags))
        mean = himach.Column(msd, "Å²", estimate=partial(msd_limits, msd, block_values))
        outcome = {"msd": himach.Table({"tau_ps": himach.Column(self.tau_ps, "ps", role="x"), "msd": mean})}
        tau, d = self.tau_ps[self.fitted], np.nan
        if len(tau) > 1:
            d = diffusion(tau, msd[self.fitted], len(self.axes))
        covered = len(tau) > 1 and self.fitted.stop <= self.n_lags
        block_values = block_values[:, self.fitted] if covered else np.zeros((1, 2))
        limits = partial(diffusion_limits, d, tau if covered else np.arange(2.0), block_values, n_axes=len(self.axes))
        columns = {
            f"{name}_ps": himach.Column(tau[end] if len(tau) else [np.nan], "ps", role="x")
            for name, end in (("from", slice(1)), ("to", slice(-1, None)))
        }
        columns["d_cm2_s"] = himach.Column(np.array([d]), "cm²/s", estimate=limits)
        if self.corrects:
            box = next(path.box for path in paths if path.box is not None)
            correction = yeh_hummer(box, self.viscosity, self.temperature, self.axes)
            endless = partial(shift_limits, limits, correction)
            columns["yeh_hummer_cm2_s"] = himach.Column(np.array([d + correction]), "cm²/s", estimate=endless)
        outcome["diffusion"] = himach.Table(columns)
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
            is_fitted = (table["tau_ps"] >= d["from_ps"][0]) & (table["tau_ps"] <= d["to_ps"][0])
            line = np.polynomial.Polynomial.fit(tau[is_fitted], msd[is_fitted], 1)
            axes.plot(tau[is_fitted], line(tau[is_fitted]), color="black", lw=0.8, label=in_words(d, "d_cm2_s", "D"))
            if "yeh_hummer_cm2_s" in d:
                axes.plot([], [], " ", label=in_words(d, "yeh_hummer_cm2_s", "Yeh-Hummer D₀"))
        draw_legend(axes, below=True)


def shift_limits(limits, shift, level):
    """Return the estimate of limits(), with `shift` added to its value and its limits."""
    estimate = limits(level)
    return replace(estimate, value=estimate.value + shift, low=estimate.low + shift, high=estimate.high + shift)
