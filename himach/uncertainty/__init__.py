"""How sure a figure is: estimates with intervals, from correlated values, blocks of frames, runs, counts and stays.

From below: `estimate` has `Estimate`, a value with its interval; `arguments` checks what is given; `quantiles` has the
distributions. `correlation` tells how many values are worth one independent value, and `transient` where a run is
equilibrated. `block_mean` and `block_curve` give intervals by blocks, and `block_sums` adds up what these take;
`stationarity` compares the halves of one run, `runs` gives intervals over independent runs, `comparison` tells how two
groups of runs differ, `events` gives those of counts and proportions, `lifetimes` those of stays that the end of a run
cuts off.

The functions know numbers alone: no frames, no files, no ranks. They give the same bits for the same values.
"""

from __future__ import annotations

from himach.uncertainty.block_curve import FINE_BLOCKS, fine_block, of_blocks
from himach.uncertainty.block_mean import mean
from himach.uncertainty.block_sums import add_blocks, block_level, block_row, split_blocks
from himach.uncertainty.comparison import Difference, difference, holm
from himach.uncertainty.correlation import inefficiency
from himach.uncertainty.estimate import Estimate
from himach.uncertainty.events import count, proportion
from himach.uncertainty.lifetimes import Stays, mean_stay, stays
from himach.uncertainty.runs import Replicas, replicas
from himach.uncertainty.stationarity import halves
from himach.uncertainty.transient import equilibration

__all__ = [
    "FINE_BLOCKS",
    "Difference",
    "Estimate",
    "Replicas",
    "Stays",
    "add_blocks",
    "block_level",
    "block_row",
    "count",
    "difference",
    "equilibration",
    "fine_block",
    "halves",
    "holm",
    "inefficiency",
    "mean",
    "mean_stay",
    "of_blocks",
    "proportion",
    "replicas",
    "split_blocks",
    "stays",
]
