"""Survival probability from runs of presence: how long what is here stays here.

With N(t) the number that is present at frame t, and N(t, tau) the number of these present at every frame of
[t, t + tau], the survival probability at tau is the mean of N(t, tau) / N(t) over the frames t with N(t) > 0: the
definition of ``waterdynamics.SurvivalProbability`` (after Liu, Harder and Berne, J. Phys. Chem. B 108, 6595 (2004)).

One that is present is described by its runs, first frame and length, so that memory grows with comings and goings and
not with frames. `find_runs` makes them (`find_runs_of_many` those of many), `survival` counts over them,
`plot_survival` draws. Runs are the bytes of int64 pairs: of thousands of small results, bytes travel and are joined in
a tenth of the time that arrays take.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

import himach
from himach import uncertainty
from himach.examples.common import draw_band, time_axis

__all__ = ["find_runs", "find_runs_of_many", "plot_survival", "survival"]

Ints = npt.NDArray[np.int64]


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
    begins = np.empty(len(steps), dtype=bool)
    begins[1:] = np.diff(steps) > intermittency + 1
    begins[offsets[:-1]] = True
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(steps)) - 1
    runs = np.column_stack([steps[first], steps[last] - steps[first] + 1]).tobytes()
    ends = 2 * steps.itemsize * np.searchsorted(first, offsets)
    return [runs[begin:end] for begin, end in pairwise(ends.tolist())]


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
        here = present[: n_frames - tau]
        origins = np.flatnonzero(here)
        ratios = _count(first, length - tau, n_frames)[origins] / here[origins]
        if len(ratios):
            probability[tau] = ratios.mean()
            sums[:, tau] = np.bincount(block[origins], ratios, len(sums))
            weights[:, tau] = np.bincount(block[origins], minlength=len(sums))
    return himach.Column(probability, estimate=(sums, weights))


def _count(first: Ints, length: Ints, n_frames: int) -> Ints:
    """Return how many runs each frame lies in, int64 (n_frames,)."""
    begins = np.bincount(first, minlength=n_frames + 1)
    ends = np.bincount(first + length, minlength=n_frames + 1)
    return np.cumsum(begins - ends)[:n_frames]


def plot_survival(table: Any, axes: Any, what: str) -> None:
    """Draw a table of tau_ps and survival."""
    scale, label = time_axis(table["tau_ps"], "lag time τ")
    tau = scale * table["tau_ps"]
    (line,) = axes.plot(tau, table["survival"], marker="o", markersize=3)
    if "survival_low" in table:
        draw_band(axes, tau, table, "survival", line.get_color())
        axes.legend()
    axes.set(xlabel=label, ylabel="survival probability", title=what, ylim=(0, 1.03))
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)
