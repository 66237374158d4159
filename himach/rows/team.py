"""Ranks that do what the first one asks while it draws up outcomes: `Team`, for tables whose rows they have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from himach.output.cells import EDGE_CELLS
from himach.output.figures.envelope import BINS
from himach.parallel.collective import heard_from_first, on_first_rank
from himach.parallel.communicator import World
from himach.rows.shared_file import write_array, write_table
from himach.rows.spread import Counts, Spread, Summary

__all__ = ["Team"]

T = TypeVar("T")

#: What writes files, by the name by which it is asked for.
WRITING: dict[str, Callable[..., Any]] = {"write_table": write_table, "write_array": write_array}


class Team:
    """All ranks, and the tables whose rows they have, by number."""

    def __init__(self, world: World, spreads: Mapping[int, Spread]) -> None:
        self._comm = world.comm
        self._apart = len(world.nodes) > 1
        self._spreads = spreads
        self._led = False
        self._summaries: dict[int, dict[str, Summary]] = {}

    def lead(self, function: Callable[[], T]) -> T:
        """Call `function` on the first rank, which may `ask`; raise its error on all ranks (collective)."""
        if self._comm.rank:
            while (asked := heard_from_first(self._comm)) is not None:
                number, method, arguments = asked
                self._do(number, method, arguments)
            return on_first_rank(self._comm, function)
        return on_first_rank(self._comm, lambda: self._leading(function))

    def _leading(self, function: Callable[[], T]) -> T:
        self._led = True
        try:
            return function()
        finally:
            self._led = False
            heard_from_first(self._comm)

    def ask(self, number: int, method: str, *arguments: Any) -> Any:
        """Have all ranks call a method of a table's `Spread`; return what it returns here."""
        if not self._led:
            raise AssertionError("ranks do other things")
        heard_from_first(self._comm, (number, method, arguments))
        return self._do(number, method, arguments)

    def _do(self, number: int, method: str, arguments: tuple[Any, ...]) -> Any:
        spread = self._spreads[number]
        if method in WRITING:
            return WRITING[method](spread, *arguments, apart=self._apart)
        return getattr(spread, method)(*arguments)

    def summary(self, number: int) -> dict[str, Summary]:
        """Return what is known of the columns of a table without their cells; asked for once."""
        if number not in self._summaries:
            self._summaries[number] = self.ask(number, "summary", BINS, EDGE_CELLS)
        return self._summaries[number]

    def starts(self, number: int) -> Counts:
        """Return the first row of each chunk of a table, int64 (chunks + 1,)."""
        return self._spreads[number].starts

    def close(self) -> None:
        """Forget all rows."""
        for spread in self._spreads.values():
            spread.store.close()
