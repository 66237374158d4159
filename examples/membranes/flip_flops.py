"""Lipids that change sides: events in the sequence of leaflets that a lipid is in."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from himach.examples.membranes.leaflets import BETWEEN

__all__ = ["FlipFlop", "build_states", "find_flip_flops"]

Ints = npt.NDArray[np.int64]


class FlipFlop(NamedTuple):
    """One lipid leaves its leaflet.

    Attributes
    ----------
    left
        The last frame in the leaflet that it leaves.
    arrived
        The first frame of its next stay in a leaflet; the last frame of all where it has none.
    origin, target
        These leaflets; the target of one that has not arrived is where it is in the last frame.
    outcome
        ``success`` where the leaflet is the other one, ``fail`` where it is the same, ``ongoing`` where there is none.
    """

    left: int
    arrived: int
    origin: int
    target: int
    outcome: str


def find_flip_flops(states: npt.ArrayLike, stay: int = 1) -> list[FlipFlop]:
    """Return the flip-flops of one lipid, as ``lipyphilic.FlipFlop`` finds them.

    Parameters
    ----------
    states
        (n_frames,): its leaflet in each frame, LOWER, BETWEEN or UPPER.
    stay
        It has left a leaflet, and it has arrived in one, after so many frames on end.

    Examples
    --------
    >>> find_flip_flops([-1, -1, 0, 0, 1, 1, 0, 1])
    [FlipFlop(left=1, arrived=4, origin=-1, target=1, outcome='success'),
     FlipFlop(left=5, arrived=7, origin=1, target=1, outcome='fail')]
    """
    sequence = np.asarray(states, dtype=np.int64)
    starts = np.flatnonzero(np.diff(sequence, prepend=sequence[0] + 1))
    stops = np.append(starts[1:], len(sequence))
    state = sequence[starts]
    inside = np.flatnonzero(state != BETWEEN)
    long = inside[(stops - starts)[inside] >= stay]  # stays in which a lipid arrives
    events: list[FlipFlop] = []
    at = 0 if not len(inside) else int(inside[0])
    while len(inside):
        home = int(state[at])
        stays = np.flatnonzero(state == home)
        stays = stays[stays >= at]  # absences are between these
        absent = np.append(starts[stays[1:]], len(sequence)) - stops[stays]
        departures = np.flatnonzero(absent >= stay)
        if not len(departures) or stops[stays[departures[0]]] == len(sequence):
            break
        last = int(stays[departures[0]])
        next_stay = long[long > last]
        if not len(next_stay):
            events.append(FlipFlop(int(stops[last]) - 1, len(sequence) - 1, home, int(state[-1]), "ongoing"))
            break
        at = int(next_stay[0])
        outcome = "fail" if state[at] == home else "success"
        events.append(FlipFlop(int(stops[last]) - 1, int(starts[at]), home, int(state[at]), outcome))
    return events


def build_states(runs: Sequence[tuple[int, bytes]], n_frames: int, otherwise: int) -> npt.NDArray[np.int8]:
    """Return the sequence of states, int8 (n_frames,), from the runs of each state.

    Parameters
    ----------
    runs
        States and their runs, as `himach.examples.interactions.survival.find_runs` gives them.
    n_frames
        Number of frames.
    otherwise
        State of frames without a run.
    """
    states = np.full(n_frames, otherwise, dtype=np.int8)
    for state, state_runs in runs:
        for first, length in np.frombuffer(state_runs, np.int64).reshape(-1, 2).tolist():
            states[first : first + length] = state
    return states
