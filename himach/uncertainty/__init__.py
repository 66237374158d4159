"""How sure a figure is: estimates with intervals, from correlated values, blocks of frames, runs, counts and stays.

From below: `estimate` has `Estimate`, a value with its interval, and what all share; `block_mean` is about a series in
time order, `blocks` about curves by blocks of frames, `runs` about independent runs, and `events` about counts,
proportions and stays that the end of a run cuts off.

The functions know numbers alone: no frames, no files, no ranks. They give the same bits for the same values.
"""

from __future__ import annotations

from himach.uncertainty.block_mean import equilibration, halves, inefficiency, mean
from himach.uncertainty.blocks import (
    FINE_BLOCKS,
    add_blocks,
    block_level,
    block_row,
    fine_block,
    of_blocks,
    split_blocks,
)
from himach.uncertainty.estimate import Estimate
from himach.uncertainty.events import Stays, count, mean_stay, proportion, stays
from himach.uncertainty.runs import Difference, Replicas, difference, holm, replicas

__all__ = [
    "FINE_BLOCKS", "Difference", "Estimate", "Replicas", "Stays", "add_blocks", "block_level", "block_row", "count",
    "difference", "equilibration", "fine_block", "halves", "holm", "inefficiency", "mean", "mean_stay", "of_blocks",
    "proportion", "replicas", "split_blocks", "stays",
]  # fmt: skip
