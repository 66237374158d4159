"""Which slices belong together: `SliceKind`, by the generation of a rank's dataset (as in ``net/pushing/slices.c``)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from himach.io.store.bodhi import SLICES_SUFFIX
from himach.io.store.store import Store

__all__ = ["SUFFIX", "SliceKind", "names_with_slices", "told_by"]

SUFFIX = SLICES_SUFFIX

_GENERATION = re.compile(rb"slices of rank (\d{1,18}), (\d{1,10}) atoms, launch ([0-9a-f]{16})\n", re.ASCII)


@dataclass(frozen=True, order=True)
class SliceKind:
    """Frames that slices make: the generation of their dataset, their atoms, and the launch that has pushed them."""

    generation: bytes
    n_atoms: int
    launch: bytes

    def alike(self, other: SliceKind) -> bool:
        """Tell whether the other's frames are those of this one's dataset, whoever launched them."""
        return (self.generation, self.n_atoms) == (other.generation, other.n_atoms)


def told_by(generation: bytes) -> tuple[int, SliceKind] | None:
    """Return the rank and the kind of slices by the generation of their dataset; None: it is none of slices."""
    told = _GENERATION.match(generation)
    if told is None or not 0 < int(told[2]) < 1 << 32:
        return None
    return int(told[1]), SliceKind(generation[told.end() :], int(told[2]), told[3])


def names_with_slices(store: Store, names: Sequence[str]) -> list[str]:
    """Return those of some datasets' names of which a store has slices."""
    return [name for name in names if store.generations(name + SUFFIX)]
