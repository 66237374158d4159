"""How sure a figure is: estimates with intervals, from correlated values, blocks of frames, runs, counts and stays.

`estimate` has `Estimate`, a value with its interval, and shared helpers. `block_mean` is for series in time order,
`blocks` for curves by blocks of frames, `replicas` for independent runs, and `events` for counts, proportions and stays
that the end of a run may cut off.

The functions take numbers alone: no frames, no files, no ranks. Equal values give equal bits. Values that are nan or
infinite, have another shape or lie out of range raise UsageError, which names the argument.
"""

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
from himach.uncertainty.replicas import Difference, Replicas, difference, holm, replicas

__all__ = [
    "FINE_BLOCKS", "Difference", "Estimate", "Replicas", "Stays", "add_blocks", "block_level", "block_row", "count",
    "difference", "equilibration", "fine_block", "halves", "holm", "inefficiency", "mean", "mean_stay", "of_blocks",
    "proportion", "replicas", "split_blocks", "stays",
]  # fmt: skip
