"""Survival probability from runs of presence: how long what is here stays here.

With N(t) the number that is present at frame t, and N(t, tau) the number of these present at every frame of
[t, t + tau], the survival probability at tau is the mean of N(t, tau) / N(t) over the frames t with N(t) > 0: the
definition of ``waterdynamics.SurvivalProbability`` (after Liu, Harder and Berne, J. Phys. Chem. B 108, 6595 (2004)).
It counts each frame of a stay, so that long stays count often. How long stays last is told by those that begin while
they are watched (`stay_tables`).

What is present is described by its runs, first frame and length, so that memory grows with comings and goings and not
with frames. `find_runs` makes them (`find_runs_of_many` those of many), `survival` and `stay_tables` count over them,
`plot_survival` draws. Runs are the bytes of int64 pairs: of thousands of small results, bytes travel and are joined in
a tenth of the time that arrays take.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

import himach
from himach import uncertainty
from himach.examples.drawing import draw_band, draw_legend, in_words, time_axis

__all__ = [
    "find_runs",
    "find_runs_of_many",
    "mean_stays",
    "occupancy",
    "plot_stays",
    "plot_survival",
    "stay_tables",
    "survival",
]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
#: Blocks of time for the correlation of presence, at most.
MOST_PARTS = 4096


def find_runs(steps: Ints, intermittency: int = 0) -> bytes:
    """Return the runs of presence of one atom.

    Parameters
    ----------
    steps
        int64 (m,): the frames in which it is present, as positions in the selection, ascending or (where the selection
        runs backwards) descending; twice is once.
    intermittency
        Absences of up to so many frames between two presences do not end a run.

    Returns
    -------
    The bytes of int64 (n_runs, 2): first frame and length in frames.

    Examples
    --------
    >>> np.frombuffer(find_runs(np.array([0, 1, 2, 5, 6])), np.int64)
    array([0, 3, 5, 2])
    >>> np.frombuffer(find_runs(np.array([0, 1, 2, 5, 6]), intermittency=2), np.int64)
    array([0, 7])
    """
    if steps[0] > steps[-1]:
        steps = steps[::-1]
    last = np.flatnonzero(np.diff(steps) > intermittency + 1)
    first = steps[np.append(0, last + 1)]
    return np.column_stack([first, steps[np.append(last, -1)] - first + 1]).tobytes()


def find_runs_of_many(steps: Ints, offsets: Ints, intermittency: int = 0) -> list[bytes]:
    """Return what `find_runs` returns, for many atoms at once.

    Parameters
    ----------
    steps
        int64 (m,): the frames of all atoms, one atom behind the other.
    offsets
        int64 (n_atoms + 1,): those of atom i are ``steps[offsets[i]:offsets[i + 1]]``, at least one.
    intermittency
        As in `find_runs`.
    """
    if (steps[offsets[:-1]] > steps[offsets[1:] - 1]).any():
        return find_runs_of_many(steps[::-1], len(steps) - offsets[::-1], intermittency)[::-1]
    is_start = np.empty(len(steps), dtype=bool)
    is_start[1:] = np.diff(steps) > intermittency + 1
    is_start[offsets[:-1]] = True
    first = np.flatnonzero(is_start)
    last = np.append(first[1:], len(steps)) - 1
    runs = np.column_stack([steps[first], steps[last] - steps[first] + 1]).tobytes()
    bounds = 2 * steps.itemsize * np.searchsorted(first, offsets)
    return [runs[start:stop] for start, stop in pairwise(bounds.tolist())]


def survival(runs: Iterable[bytes], n_frames: int, tau_max: int) -> himach.Column:
    """Return the survival probability at tau = 0 ... tau_max, NaN if nothing is ever present.

    Parameters
    ----------
    runs
        Runs of every atom, from `find_runs`.
    n_frames
        Number of selected frames.
    tau_max
        Longest lag in frames, less than n_frames.

    Returns
    -------
    Column of tau_max + 1 values, whose band is by blocks of the frames t.

    Examples
    --------
    >>> survival([find_runs(np.array([0, 1, 2])), find_runs(np.array([0]))], n_frames=3, tau_max=2)
    Column(array([1.  , 0.75, 0.5 ]), unit='')
    """
    first, length = np.ascontiguousarray(np.frombuffer(b"".join(runs), dtype=np.int64).reshape(-1, 2).T)
    present = _count(first, length, n_frames)
    block = uncertainty.fine_block(np.arange(n_frames), n_frames)
    sums = np.zeros((min(n_frames, uncertainty.FINE_BLOCKS), tau_max + 1))
    weights = np.zeros(sums.shape)
    probability = np.full(tau_max + 1, np.nan)
    for tau in range(tau_max + 1):
        # A run that holds all of [t, t + tau] begins at t or before, and its last tau frames are no such t.
        longer = length > tau
        first, length = first[longer], length[longer]  # most runs are short
        n_present = present[: n_frames - tau]
        origins = np.flatnonzero(n_present)
        ratios = _count(first, length - tau, n_frames)[origins] / n_present[origins]
        if len(ratios):
            probability[tau] = ratios.mean()
            sums[:, tau] = np.bincount(block[origins], ratios, len(sums))
            weights[:, tau] = np.bincount(block[origins], minlength=len(sums))
    return himach.Column(probability, estimate=(sums, weights), within=(0, 1))


def stay_tables(
    runs: Iterable[bytes], n_frames: int, dt: float, intermittency: int = 0
) -> tuple[himach.Table, himach.Table]:
    """Return how long stays last that began after the first frame, by Kaplan and Meier, and their mean.

    A stay lasts from its first frame to the first in which it is over. Those that last beyond the last frame count with
    the time that they were seen.

    Parameters
    ----------
    runs
        Runs of every atom, from `find_runs`.
    n_frames
        Number of selected frames.
    dt
        Time between selected frames in ps.
    intermittency
        As in `find_runs`: so many frames of absence are no end, nor a beginning.

    Returns
    -------
    stays
        Table of ``time_ps`` and ``lasting``, the part of stays that last longer.
    mean
        Table of one row: how many ``stays`` there are, how many of them ``ended``, and ``mean_ps``, if they end at the
        same rate however long they have lasted; inf where none ended, nan where there are none.

    Examples
    --------
    >>> stays, mean = stay_tables([find_runs(np.array([1, 2, 6, 7]))], n_frames=8, dt=10.0)
    >>> stays
    time_ps  lasting
    -------  -------
        0.0      1.0
       20.0      0.0
    [2 rows]
    >>> mean
    stays  ended  mean_ps
    -----  -----  -------
        2      1     30.0
    [1 row]
    """
    lasted, ended, _ = _collect_stays([runs], n_frames, dt, intermittency)
    times, part, mean = np.zeros(1), np.ones(1), math.nan
    stays = _Stays(lasted, ended) if lasted.any() else None
    if stays is not None:
        result = stays()
        times, part, mean = result.times, result.survival, result.mean.value
    curve = himach.Column(part, estimate=partial(_curve_limits, stays), within=(0, 1))
    mean_column = himach.Column(np.array([mean]), "ps", estimate=partial(_mean_limits, stays))
    return (
        himach.Table({"time_ps": himach.Column(times, "ps", role="label"), "lasting": curve}),
        himach.Table({"stays": [len(ended)], "ended": [int(ended.sum())], "mean_ps": mean_column}),
    )


def mean_stays(
    runs: Sequence[Iterable[bytes]], n_frames: int, dt: float, intermittency: int = 0
) -> tuple[Ints, himach.Column]:
    """Return how many stays of each of many things begin after the first frame, and the mean that `stay_tables` gives.

    Parameters
    ----------
    runs
        Of each thing the runs of what it is made of, from `find_runs`.
    n_frames, dt, intermittency
        As in `stay_tables`.

    Returns
    -------
    stays
        int64 (n,).
    mean
        Column of as many means in ps; inf where no stay ended, nan where there are none.

    Examples
    --------
    >>> mean_stays([[find_runs(np.array([1, 2, 4, 7]))], [find_runs(np.array([0]))]], n_frames=8, dt=10.0)
    (array([3, 0]), Column(array([15., nan]), unit='ps'))
    """
    lasted, ended, owners = _collect_stays(runs, n_frames, dt, intermittency)
    counts = np.bincount(owners, minlength=len(runs))
    total, ends = (np.bincount(owners, weights, len(runs)) for weights in (lasted, ended))
    if not runs:
        return counts, himach.Column(total, "ps", estimate=partial(_empty_limits, total))
    mean = uncertainty.mean_stay(total, ends).value
    return counts, himach.Column(mean, "ps", estimate=partial(uncertainty.mean_stay, total, ends))


def _collect_stays(
    runs: Sequence[Iterable[bytes]], n_frames: int, dt: float, intermittency: int
) -> tuple[Floats, npt.NDArray[np.bool_], Ints]:
    """Return the durations of stays that began after the first frame, whether they ended, and the owner of each.

    If a stay has not ended, frames after the last one at which its end could have been seen do not count.
    """
    joined = [b"".join(item) for item in runs]
    first, length = np.ascontiguousarray(np.frombuffer(b"".join(joined), dtype=np.int64).reshape(-1, 2).T)
    owners = np.repeat(np.arange(len(joined)), [len(item) // 16 for item in joined])
    entered = first > intermittency
    first, length, owners = first[entered], length[entered], owners[entered]
    ended = first + length + intermittency < n_frames
    return dt * np.where(ended, length, np.maximum(0, n_frames - 1 - intermittency - first)), ended, owners


def occupancy(runs: Sequence[Iterable[bytes]], n_frames: int) -> himach.Column:
    """Return in which part of the frames things are present, each by its runs.

    Parameters
    ----------
    runs
        Of each thing the runs of what it is made of, from `find_runs`: it is present where any of these is.
    n_frames
        Number of selected frames.

    Returns
    -------
    Column of as many values, whose limits are those of proportions (`himach.uncertainty.proportion`), by as many
    independent frames as the frames are worth. What is always present has none: nobody saw how long it is away.

    Examples
    --------
    >>> occupancy([[find_runs(np.array([0, 1])), find_runs(np.array([1, 2]))]], n_frames=4)
    Column(array([0.75]), unit='')
    """
    counts = np.array([_frames_before(np.array([n_frames]), item)[0] for item in runs], dtype=np.int64)
    part = counts / n_frames
    return himach.Column(part, estimate=partial(_occupancy_limits, part, runs, n_frames), absent=0, within=(0, 1))


def _frames_before(edges: Ints, runs: Iterable[bytes]) -> Ints:
    """Return the number of frames with presence before each of the edges, int64."""
    first, length = np.frombuffer(b"".join(runs), dtype=np.int64).reshape(-1, 2).T
    order = np.argsort(first, kind="stable")
    starts, stops = first[order], np.maximum.accumulate((first + length)[order])
    starts = np.maximum(starts, np.append(0, stops[:-1]))  # of overlapping runs, what earlier ones lack
    before = np.append(0, np.cumsum(stops - starts))
    index = np.searchsorted(starts, edges, side="right")
    beyond = np.where(index > 0, np.maximum(stops[index - 1] - edges, 0), 0)
    return np.asarray(before[index] - beyond)


def _occupancy_limits(
    part: Floats, runs: Sequence[Iterable[bytes]], n_frames: int, level: float
) -> uncertainty.Estimate[Any]:
    edges = np.linspace(0, n_frames, min(n_frames, MOST_PARTS) + 1).astype(np.int64)
    estimates = []
    for p, item in zip(part, runs, strict=True):
        in_part = np.diff(_frames_before(edges, item)) / np.diff(edges)
        # `n_eff` independent frames would have the variance of the blocks of time; without variance it is 1.
        variance = in_part.var() * uncertainty.inefficiency(in_part) / len(in_part)
        n_eff = min(p * (1 - p) / variance, float(n_frames)) if variance > 0 else 1.0
        estimates.append(uncertainty.proportion(p * n_eff, n_eff, level))
    if not estimates:
        return replace(_unknown(math.nan, level), value=part, low=part, high=part)
    least = min(estimates, key=lambda item: item.n_eff)
    low, high = (np.array(limits) for limits in zip(*((item.low, item.high) for item in estimates), strict=True))
    return replace(least, value=part, low=low, high=high)


class _Stays:
    """How long stays last, with limits of a level: found once for each, whoever asks."""

    def __init__(self, lasted: Floats, ended: npt.NDArray[np.bool_]) -> None:
        self._stays = lasted, ended
        self._results: dict[float, uncertainty.Stays] = {}

    def __call__(self, level: float = 0.95) -> uncertainty.Stays:
        if level not in self._results:
            self._results[level] = uncertainty.stays(*self._stays, level)
        return self._results[level]


def _curve_limits(stays: _Stays | None, level: float) -> uncertainty.Estimate[Any]:
    if stays is None:
        return _unknown(1, level)
    result = stays(level)
    return replace(
        result.mean, value=result.survival, low=result.low, high=result.high, method="Kaplan-Meier, log-log limits"
    )


def _mean_limits(stays: _Stays | None, level: float) -> uncertainty.Estimate[Any]:
    return _unknown(math.nan, level) if stays is None else stays(level).mean


def _empty_limits(empty: Floats, level: float) -> uncertainty.Estimate[Any]:
    return replace(_unknown(math.nan, level), value=empty, low=empty, high=empty)


def _unknown(value: float, level: float) -> uncertainty.Estimate[Any]:
    """Return the estimate if no stay began and was seen twice."""
    nan = math.nan
    return uncertainty.Estimate(
        value=value, low=nan, high=nan, level=level, error=nan, n_eff=0, method="none: no stays", converged=False
    )


def _count(first: Ints, length: Ints, n_frames: int) -> Ints:
    """Return the number of runs that contain each frame, int64 (n_frames,)."""
    starts = np.bincount(first, minlength=n_frames + 1)
    stops = np.bincount(first + length, minlength=n_frames + 1)
    return np.cumsum(starts - stops)[:n_frames]


def plot_survival(table: Any, axes: Any, title: str) -> float:
    """Draw a table of tau_ps and survival; return the factor of times in ps for the axis."""
    scale, label = time_axis(table["tau_ps"], "lag time τ")
    tau = scale * table["tau_ps"]
    axes.plot(tau, table["survival"], "o-", color="C0", markersize=2, label="survival of all, from any frame on")
    draw_band(axes, tau, table, "survival", "C0")
    axes.set(xlabel=label, ylabel="survival probability", title=title, ylim=(0, 1.03))
    axes.set_xlim(0, tau[-1] or None)
    axes.grid(alpha=0.3)
    return scale


def plot_stays(stays: Any, mean: Any, axes: Any, scale: float) -> None:
    """Draw the result of `stay_tables` beside that of `plot_survival`, with the scale that the latter returns."""
    text = f", {in_words(mean, 'mean_ps', 'mean')}" if mean["ended"][0] else ""
    time = scale * stays["time_ps"]
    axes.step(time, stays["lasting"], where="post", color="C1", lw=1, label=f"stays that began{text}")
    if "lasting_low" in stays:
        limits, label = (stays["lasting_low"], stays["lasting_high"]), f"{100 * stays.level:g} % interval"
        axes.fill_between(time, *limits, step="post", color="C1", alpha=0.25, linewidth=0, label=label)
    draw_legend(axes, below=True)
