"""`Snapshot`: checks that map() leaves the state of setup() unchanged, because each rank maps only some frames.

It compares digests of all that map() can reach (see `himach.map_state`), rarely enough to cost little time, and after
the last frame.
"""

import random
from time import perf_counter
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from himach.analysis import Analysis
from himach.errors import StateError
from himach.map_state import Reached, own_classes, reachable_values
from himach.state_hash import StateHasher

if TYPE_CHECKING:
    from MDAnalysis import Universe

#: Upper bound of the fraction of time spent on comparing.
PART = 1 / 200
#: Advice in error messages.
YIELD = "yield the value instead, as in `yield key, value`, and reduce() gets it in time order"
OF_FRAME = "make what differs from frame to frame of the frame itself"
RANDOM = f"{OF_FRAME}, as in `np.random.default_rng((seed, frame.number))`"
_RANDOM = (np.random.Generator, np.random.RandomState, random.Random)


class Snapshot:
    """Digests of all state that map() can reach and must not change."""

    def __init__(self, analysis: Analysis, universe: "Universe | None") -> None:
        self._analysis = analysis
        self._universe = universe
        self._digests: dict[str, str | None] = {}
        self._computed: set[str] = set()
        start, hasher = perf_counter(), self._hasher()
        for item in reachable_values(analysis, universe, hasher):
            self._digests[item.label] = self._digest(hasher, item)
            if item.kind == "computed":
                self._computed.add(item.label)
            if self._digests[item.label] is None:
                raise _incomparable(item)
        self._schedule_next(start)

    @property
    def due(self) -> bool:
        """Whether the next check is due."""
        return perf_counter() >= self._next

    def change(self) -> StateError | None:
        """Return an error that names the change and its remedy, or None."""
        start, hasher, labels = perf_counter(), self._hasher(), set()
        for item in reachable_values(self._analysis, self._universe, hasher):
            labels.add(item.label)
            digest = self._digest(hasher, item)
            if item.label in self._digests:
                if digest != self._digests[item.label]:
                    return self._error(item) if self._digest(hasher, item) == digest else _incomparable(item)
            elif item.kind in ("computed", "process"):  # exists only once it is read
                self._digests[item.label] = digest
                if item.kind == "computed":
                    self._computed.add(item.label)
                    if digest is None:
                        return _incomparable(item)
                    if not hasher.identities:  # another frame computes the same value again
                        vars(self._analysis).pop(item.name)
            elif not isinstance(item.value, ModuleType):
                return self._error(item)
        deleted = {label for label in self._digests.keys() - labels if label.startswith(("self.", "universe."))}
        for label in sorted(deleted - self._computed):
            return StateError(f"it deletes {label}, which setup() left; map() keeps nothing")
        self._schedule_next(start)
        return None

    def _hasher(self) -> StateHasher:
        named: list[tuple[str, Any]] = [("self", self._analysis)]
        if self._universe is not None:
            trajectory = self._universe.trajectory
            named += [("universe", self._universe), ("trajectory", trajectory), ("ts", trajectory.ts)]
        homes = [cls.__module__ for cls in own_classes(self._analysis)]
        return StateHasher(named, homes=homes, here=True)

    @staticmethod
    def _digest(hasher: StateHasher, item: Reached) -> str | None:
        """Return the digest of a value; None if it has none."""
        hasher.identities = 0
        try:
            return hasher.digest(item.value)
        except Exception:  # a user's class may raise anything
            return None

    def _schedule_next(self, start: float) -> None:
        """Schedule the next check so that checks take at most `PART` of the time; `start` is when this one began."""
        now = perf_counter()
        self._next = now + (now - start) / PART

    def _error(self, item: Reached) -> StateError:
        instead = YIELD
        if isinstance(item.value, _RANDOM):
            instead = RANDOM
        elif hasattr(type(item.value), "__next__"):
            instead = OF_FRAME
        changed = f"it changes {_label(item)} that setup() left"
        if item.kind == "computed":
            changed = f"{_label(item)}, a cached property, comes to something else at another frame, or is changed"
        return StateError(
            f"{changed}; map() keeps nothing, because each rank sees some frames "
            f"only: {instead}. A buffer or cache on which no result depends is named in the class: "
            f"caches = ({item.name!r},)"
        )


def _incomparable(item: Reached) -> StateError:
    return StateError(
        f"{_label(item)}, cannot be compared with what it was, so that nobody could see what map() changes in it: make "
        f"it in map(), or {OF_FRAME}. What no result depends on is named in the class: caches = ({item.name!r},)"
    )


def _label(item: Reached) -> str:
    kind = type(item.value)
    if isinstance(item.value, np.ndarray):
        name = "array"
    elif isinstance(item.value, _RANDOM):
        name = "random generator"
    elif hasattr(kind, "__next__"):
        name = "iterator"
    else:
        name = kind.__name__
    return f"{item.label}, {'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
