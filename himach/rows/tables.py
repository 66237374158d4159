"""Tables of rows after a pass: whole on the first rank while they are short, else on all ranks: `tables_of()`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from himach.engine.rows import RowStore
from himach.errors import UsageError
from himach.output.cells import LongCells
from himach.output.table import Column, Table
from himach.parallel.collective import on_first_rank
from himach.parallel.communicator import World
from himach.rows.column import table_of
from himach.rows.spread import Spread
from himach.rows.team import Team

__all__ = ["settle", "tables_of"]

#: Bytes of the cells of a table that the first rank has whole, at most, where there are files for the others.
GATHERED_BYTES = 1 << 26


def tables_of(
    world: World, labels: Sequence[str], rows: Sequence[RowStore | None], files: bool, memory: int
) -> tuple[Team, list[Table | None]]:
    """Return the ranks, which have long tables, and on the first one the table of each analysis (collective).

    Parameters
    ----------
    labels, rows
        Of each analysis its name, and the rows of this rank.
    files
        Whether outcomes are written: if not, all tables are whole on the first rank.
    memory
        Bytes that these may take.

    Raises
    ------
    UsageError
        If a table does not fit there.
    """
    spreads: dict[int, Spread] = {}
    tables: list[Table | None] = []
    team = Team(world, spreads)
    for number, (label, store) in enumerate(zip(labels, rows, strict=True)):
        if store is None:
            tables.append(None)
            continue
        spread = Spread.of(world.comm, store)
        if files and spread.nbytes > GATHERED_BYTES:
            spreads[number] = spread
            tables.append(table_of(team, number, spread) if world.comm.rank == 0 else None)
            continue
        if spread.nbytes > memory:
            raise UsageError(
                f"{label}: its table has {spread.rows:,} rows, {spread.nbytes / 1e9:.1f} GB, and {memory / 1e9:.1f} GB "
                "may be taken: name a directory for it (--out), into which all ranks write their part, or select fewer "
                "frames"
            )
        tables.append(_whole(world, spread))
        store.close()
    return team, tables


def _whole(world: World, spread: Spread) -> Table | None:
    table, failed = None, None
    try:
        table = spread.table()
    except Exception as error:
        failed = error

    def check() -> None:
        if failed is not None:
            raise failed

    on_first_rank(world.comm, check)
    return table


def settle(outcomes: Sequence[Any], staged: Path, out: Path) -> None:
    """Let long columns of outcomes, which were written below `staged`, know where they are when they are in `out`."""
    for outcome in outcomes:
        for cells in _long_cells(outcome):
            cells.settle(staged, out)


def _long_cells(thing: Any) -> Iterator[LongCells]:
    if isinstance(thing, LongCells):
        yield thing
    elif isinstance(thing, Column):
        yield from _long_cells(thing.values)
    elif isinstance(thing, Table):  # of which all columns are long, or none
        yield from thing.values() if thing.long is not None else ()
    elif isinstance(thing, Mapping | list | tuple):
        for part in thing.values() if isinstance(thing, Mapping) else thing:
            yield from _long_cells(part)
