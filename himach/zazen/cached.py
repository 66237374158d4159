"""What a node tells the protocol of its cache: two sets of frame numbers.

`Cached` is the interface that a store implements; `InMemory` holds two given sets; `NOTHING` is an empty cache.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

import pyroaring

__all__ = ["NOTHING", "Cached", "FrameSet", "InMemory"]

FrameSet = pyroaring.BitMap | pyroaring.BitMap64


class Cached(Protocol):
    """Which frames of a dataset a node's store holds."""

    @property
    def native(self) -> FrameSet:
        """Numbers of the frames that a writer pushed to this node."""

    @property
    def alien(self) -> FrameSet:
        """Numbers of the frames that a read miss brought to this node."""

    @property
    def identity(self) -> str | None:
        """What tells this store from others; nodes that give the same one see one directory. None: not shared."""


@dataclass(frozen=True)
class InMemory:
    """A cache whose frames are given.

    Attributes
    ----------
    native, alien
        Frame numbers.
    identity
        See `Cached.identity`.
    """

    native: FrameSet = field(default_factory=pyroaring.BitMap64)
    alien: FrameSet = field(default_factory=pyroaring.BitMap64)
    identity: str | None = None

    @classmethod
    def of(cls, native: Iterable[int] = (), alien: Iterable[int] = (), identity: str | None = None) -> InMemory:
        """Return a cache of frames given as integers."""
        return cls(pyroaring.BitMap64(native), pyroaring.BitMap64(alien), identity)


NOTHING = InMemory()
