"""`Clock`: how long the phases of a pass took on this rank."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter


class Clock:
    """Adds up seconds by phase.

    Attributes
    ----------
    seconds
        Seconds by phase: "map", "shuffle" and "reduce".
    """

    def __init__(self) -> None:
        self.seconds = {"map": 0.0, "shuffle": 0.0, "reduce": 0.0}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Count what runs inside as `phase`."""
        start = perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] += perf_counter() - start
