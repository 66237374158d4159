"""Frames of a selection that are on any node: for datasets without an origin, whose frames may be partly gone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from himach.ranks.communicator import Words, World
from himach.selection import Selected
from himach.zazen.bitmaps import decode, popcount
from himach.zazen.node_frames import NOTHING, Cached, Positions, frame_bitmaps

MAX_NAMED_FRAMES = 5


@dataclass(frozen=True)
class Anywhere:
    """Available frames of a selection, the same on every rank."""

    n_cached: int  # frames on any node
    sample: tuple[int, ...]  # positions of the first, middle and last two of them, ascending
    missing: tuple[int, ...]  # positions of the first frames on no node


def mark_all(cached: Cached | None, frames: Selected) -> Words:
    """Return the bits of the `frames` that a store holds, native or alien, uint64 (n_words(len(frames)),)."""
    native, alien = frame_bitmaps(cached or NOTHING, frames)
    native |= alien
    return native


def find_anywhere(world: World, own: Words | None, n: int) -> Anywhere:
    """Return the available frames of a selection of `n` (collective over the world)."""
    described = None
    if world.leaders is not None:
        assert own is not None
        words = own
        if world.leaders.size > 1:
            words = np.empty_like(own)
            world.leaders.Allreduce(own, words, world.bor)
        described = describe(words, n)
    anywhere: Anywhere = world.node.bcast(described)
    return anywhere


def find_listed(world: World, own: Positions | None, n: int) -> tuple[Anywhere, Positions]:
    """Return the same from lists of positions, for few of `n` frames, and the positions present (collective)."""
    lists = [part for part in world.comm.allgather(own) if part is not None]
    present = np.unique(np.concatenate([np.empty(0, np.int64), *lists]))
    missing = np.setdiff1d(np.arange(min(n, len(present) + MAX_NAMED_FRAMES)), present)[:MAX_NAMED_FRAMES]
    return Anywhere(len(present), tuple(present[_sample(len(present))].tolist()), tuple(missing.tolist())), present


def _sample(n: int) -> list[int]:
    """Return the indices of the first, middle and last two of `n` items."""
    return sorted(i for i in {0, 1, n // 2 - 1, n // 2, n - 2, n - 1} if 0 <= i < n)


def describe(words: Words, n: int) -> Anywhere:
    """Return the available frames of a selection of `n`, given their bits."""
    n_cached = popcount(words)
    sample = [int(decode(words, 0, i, 1)[0]) for i in _sample(n_cached)]
    missing = decode(~words, 0, 0, MAX_NAMED_FRAMES).tolist()  # bits past the last frame are clear too
    return Anywhere(n_cached, tuple(sample), tuple(position for position in missing if position < n))
