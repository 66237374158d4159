"""Which frames of a selection lie on any node at all: for datasets that have no origin, of which a part may be gone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from himach.parallel.communicator import Words, World
from himach.selection import Selected
from himach.zazen.bitmaps import decode, popcount
from himach.zazen.node_frames import NOTHING, Cached, Positions, frame_bitmaps

MAX_NAMED_FRAMES = 5


@dataclass(frozen=True)
class Anywhere:
    """What is there of a selection, the same on every rank."""

    n_cached: int  # frames that lie on some node
    sample: tuple[int, ...]  # positions of the first two of them, the two in the middle, and the last two, ascending
    missing: tuple[int, ...]  # positions of the first frames that lie nowhere


def mark_all(cached: Cached | None, frames: Selected) -> Words:
    """Return the bits of the `frames` that a store holds in any way, uint64 (n_words(len(frames)),)."""
    native, alien = frame_bitmaps(cached or NOTHING, frames)
    native |= alien
    return native


def find_anywhere(world: World, own: Words | None, n: int) -> Anywhere:
    """Return what is there of a selection of `n` frames (collective over the world)."""
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
    """Return the same where few of `n` frames are there, and the positions of these (collective)."""
    lists = [part for part in world.comm.allgather(own) if part is not None]
    present = np.unique(np.concatenate([np.empty(0, np.int64), *lists]))
    missing = np.setdiff1d(np.arange(min(n, len(present) + MAX_NAMED_FRAMES)), present)[:MAX_NAMED_FRAMES]
    return Anywhere(len(present), tuple(present[_sample(len(present))].tolist()), tuple(missing.tolist())), present


def _sample(n: int) -> list[int]:
    """Return where the first two of `n` are, the two in the middle, and the last two."""
    return sorted(i for i in {0, 1, n // 2 - 1, n // 2, n - 2, n - 1} if 0 <= i < n)


def describe(words: Words, n: int) -> Anywhere:
    """Return what is there of a selection of `n` frames, by the bits of those that are."""
    n_cached = popcount(words)
    sample = [int(decode(words, 0, i, 1)[0]) for i in _sample(n_cached)]
    missing = decode(~words, 0, 0, MAX_NAMED_FRAMES).tolist()  # behind the last frame there is nothing either
    return Anywhere(n_cached, tuple(sample), tuple(position for position in missing if position < n))
