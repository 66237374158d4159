"""Frames in blocks that a later stage compares or adds up: as many frames in each as are needed of what is selected.

map() does not know what else is selected, so that its pairs serve other selections, too. It yields the frame under
`part_number`. reduce() of the first stage yields `split`, and the next stage has each block by `join_block`. Blocks do
not depend on ranks.
"""

import os
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

import himach
from himach.examples.common import select
from himach.examples.molecules import warn_of_cut_molecules
from himach.examples.superposition import Reference, Superposition

__all__ = ["FramePairs", "block_length", "check_memory", "join_block", "pair_blocks", "part_number", "split"]

#: Frames that are sent together at first.
PART = 64


def block_length(n_frames: int, least: int, most: int) -> int:
    """Return how many frames a block has: a multiple of eight, at least `least`, and enough for `most` blocks or fewer.

    Examples
    --------
    >>> block_length(10_000, 1024, 32), block_length(100_000, 1024, 32)
    (1024, 3128)
    """
    length = max(least, -(-n_frames // most))
    return -(-length // 8) * 8


def part_number(frame: Any) -> int:
    """Return the key under which map() yields a frame."""
    return int(frame.number) // PART


def split(series: Any, frames: Sequence[int], length: int) -> Iterator[tuple[tuple[int, int], dict[str, Any]]]:
    """Yield for each block the frames of a part that it contains: their ``frames``, ``times`` and ``values``.

    The key is the number of the block, and how many blocks there are.

    Parameters
    ----------
    series
        Series of a part, whose values are an array.
    frames
        The selected frames, `Analysis.frames`.
    length
        Frames of a block.
    """
    steps, count = series.steps, -(-len(frames) // length)
    blocks = (steps if frames[0] <= frames[-1] else len(frames) - 1 - steps) // length
    for block in np.unique(blocks).tolist():
        rows = blocks == block
        yield (
            (block, count),
            {"frames": series.frames[rows], "times": series.times[rows], "values": series.values[rows]},
        )


def join_block(series: Any) -> dict[str, Any]:
    """Join what `split` gave for a block, in the order of frames."""
    return {name: np.concatenate([part[name] for part in series.values]) for name in ("frames", "times", "values")}


def pair_blocks(key: tuple[int, int], series: Any) -> Iterator[tuple[Any, Any]]:
    """Yield a block by its number, and its values for each block with which they are compared.

    Parameters
    ----------
    key
        That of `split`: the number of the block, and how many there are.
    series
        What `split` gave for it.
    """
    (block, blocks), content = key, join_block(series)
    yield block, content
    for other in range(blocks):
        yield (min(block, other), max(block, other)), content["values"]


def check_memory(analysis: himach.Analysis, pair_bytes: float) -> None:
    """Raise UsageError if so many bytes for each two selected frames exceed the memory of this machine."""
    n = len(analysis.frames)
    needed, memory = pair_bytes * n * n, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > memory:
        raise himach.UsageError(
            f"{analysis.label()}: {n:,} frames need {needed / 1e9:.3g} GB on one rank, {pair_bytes:g} bytes for each "
            f"two of them, and this machine has {memory / 1e9:.3g} GB; select fewer, as by step"
        )


class FramePairs(himach.Analysis):
    """The first stage of an analysis that compares each two frames: blocks of the positions of selected atoms.

    A subclass has the parameters `selection` and `fit`.
    """

    #: Least number of frames in a block, and greatest number of blocks; each block is copied for every other one.
    sizes: ClassVar[tuple[int, int]] = (1024, 16)

    def setup(self, universe):
        selected = select(universe, self, "selection")
        warn_of_cut_molecules(self, selected)
        self.selected = selected.indices
        # Each two frames are superposed later, if by the atoms that are compared.
        late = self.fit == "selection"
        self.laid = Superposition(None) if late else Superposition.make(universe, self, Reference(universe, self, None))

    def atoms(self, universe):
        return universe.atoms[self.selected], universe.atoms[self.laid.indices]

    def map(self, frame):
        positions = frame.positions[self.selected]
        if len(self.laid.indices):
            positions = self.laid.move(frame.positions[self.laid.indices], positions).astype(np.float32)
        yield himach.Pairs([part_number(frame)], positions[np.newaxis])

    def reduce(self, part, series):
        yield from split(series, self.frames, block_length(len(self.frames), *self.sizes))
