"""What setup() left must be found unchanged, for map() sees some of the frames on each rank: `Snapshot`.

All that map() can reach has a digest (see `himach.map_state`), which is compared now and then, so that comparing takes
no time to speak of, and at the end of all frames. Arrays of what has changed are made read-only: numpy then tells the
line that writes to them next.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable
from time import perf_counter
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from himach.analysis import Analysis
from himach.digests.values import ValueDigests
from himach.errors import StateError
from himach.map_state import Reached, reached, skipped, used
from himach.user_code import is_own

if TYPE_CHECKING:
    from MDAnalysis import Universe

__all__ = ["Snapshot"]

#: Comparing takes at most this part of the time.
PART = 1 / 200
#: What is said to do instead.
YIELD = "yield the value instead, as in `yield key, value`, and reduce() gets it in time order"
OF_FRAME = "make what differs from frame to frame of the frame itself"
RANDOM = f"{OF_FRAME}, as in `np.random.default_rng((seed, frame.number))`"
_RANDOM = (np.random.Generator, np.random.RandomState, random.Random)


class Snapshot:
    """Digests of all that map() can reach, which must leave it as it is.

    Parameters
    ----------
    analysis
        After setup().
    universe
        Its own, if it has one.

    Raises
    ------
    StateError
        If map() mentions something that cannot be compared, such as an open file.
    """

    def __init__(self, analysis: Analysis, universe: Universe | None) -> None:
        self._analysis = analysis
        self._universe = universe
        self._frozen: list[npt.NDArray[Any]] = []
        self._owned = is_own
        begun = perf_counter()
        values = self._values()
        found = [
            (one, self._digest(values, one), values.codes, values.arrays) for one in reached(analysis, universe, values)
        ]
        self._computed = {one.label for one, *_ in found if one.kind == "computed"}
        self._digests: dict[str, set[str | None]] = {}  # things of one label may be several
        for one, digest, _, _ in found:
            self._digests.setdefault(one.label, set()).add(digest)
        self._arrays = {one.label: arrays for one, _, _, arrays in found if arrays}
        # What else is imported meanwhile is none of what was left.
        known = {*values.modules}
        self._owned = lambda module: is_own(module) and (module in known or module not in sys.modules)
        _, come = used((one, codes) for one, _, codes, _ in found)
        for one, _ in come:
            if None in self._digests[one.label] and one.kind != "library":
                raise _incomparable(one)
        self._rest(begun)

    @property
    def due(self) -> bool:
        """Whether it is time to look again."""
        return perf_counter() >= self._next

    def change(self) -> StateError | None:
        """Return what tells the user what has changed, and what to do instead; None if nothing has.

        Arrays of what has changed are read-only from then on.
        """
        begun = perf_counter()
        values, seen = self._values(), set()
        for one in reached(self._analysis, self._universe, values):
            seen.add(one.label)
            digest = self._digest(values, one)
            before = self._digests.get(one.label)
            if before is None and one.kind in ("computed", "process"):  # not before it was asked for
                self._digests[one.label] = {digest}
                if one.kind == "computed":
                    self._computed.add(one.label)
                    if digest is None:
                        return _incomparable(one)
                    if not values.identities:  # another frame computes it, too, and comes to the same
                        vars(self._analysis).pop(one.name)
            elif digest not in (before or ()) and (before or not isinstance(one.value, ModuleType)):
                self._freeze(self._arrays.get(one.label, ()))
                return self._error(one) if self._digest(values, one) == digest else _incomparable(one)
        gone = {label for label in self._digests.keys() - seen if label.startswith(("self.", "universe."))}
        for label in sorted(gone - self._computed):
            return StateError(f"it deletes {label}, which setup() left; map() keeps nothing")
        self._rest(begun)
        return None

    @property
    def frozen(self) -> bool:
        """Whether numpy will tell who writes to an array that has changed."""
        return bool(self._frozen)

    def release(self) -> None:
        """Let arrays be written to again: those first of which others are views."""
        for array in sorted(self._frozen, key=_depth):
            array.flags.writeable = True
        self._frozen.clear()

    def _values(self) -> ValueDigests:
        known: list[tuple[str, Any]] = [("self", self._analysis)]
        if self._universe is not None:
            trajectory = self._universe.trajectory
            known += [("universe", self._universe), ("trajectory", trajectory), ("ts", trajectory.ts)]
        return ValueDigests(known, skipped, owned=self._owned, here=True)

    @staticmethod
    def _digest(values: ValueDigests, one: Reached) -> str | None:
        """Return the digest of what can be reached; None if it has none."""
        values.codes, values.arrays, values.identities = [], [], 0
        try:
            return values.digest(one.value)
        except Exception:  # whatever somebody's class raises
            return None

    def _freeze(self, arrays: Iterable[npt.NDArray[Any]]) -> None:
        for array in arrays:
            each: Any = array
            while isinstance(each, np.ndarray):
                if each.flags.writeable:
                    each.flags.writeable = False
                    self._frozen.append(each)
                each = each.base

    def _rest(self, begun: float) -> None:
        """Wait as long as what began then was worth."""
        now = perf_counter()
        self._next = now + (now - begun) / PART

    def _error(self, one: Reached) -> StateError:
        instead = YIELD
        if isinstance(one.value, _RANDOM):
            instead = RANDOM
        elif hasattr(type(one.value), "__next__"):
            instead = OF_FRAME
        changed = f"it changes {_shown(one)} that setup() left"
        if one.kind == "computed":
            changed = f"{_shown(one)}, a cached property, comes to something else at another frame, or is changed"
        return StateError(
            f"{changed}; map() keeps nothing, because each rank sees some frames "
            f"only: {instead}. A buffer or cache on which no result depends is named in the class: "
            f"caches = ({one.name!r},)"
        )


def _incomparable(one: Reached) -> StateError:
    return StateError(
        f"{_shown(one)}, cannot be compared with what it was, so that nobody could see what map() changes in it: make "
        f"it in map(), or {OF_FRAME}. What no result depends on is named in the class: caches = ({one.name!r},)"
    )


def _shown(one: Reached) -> str:
    """Return a value's name, and what it is."""
    kind = type(one.value)
    if isinstance(one.value, np.ndarray):
        name = "array"
    elif isinstance(one.value, _RANDOM):
        name = "random generator"
    elif hasattr(kind, "__next__"):
        name = "iterator"
    else:
        name = kind.__name__
    return f"{one.label}, {'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def _depth(array: Any) -> int:
    """Return how many arrays an array is a view of."""
    return 1 + _depth(array.base) if isinstance(array.base, np.ndarray) else 0
