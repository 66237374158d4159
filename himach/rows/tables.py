"""Tables of rows after a pass, in memory if they are short, else in pieces: `gather_tables()`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from himach.analysis import TIME
from himach.engine.rows import RowChunk, RowStore
from himach.errors import UsageError
from himach.output.cells import Cells, LongCells
from himach.output.table import Column, Table
from himach.ranks.collective import meet, on_first_rank
from himach.ranks.communicator import Communicator, World
from himach.rows.column import RowFile
from himach.rows.layout import chunk_cells, join_cells, table_layout

T = TypeVar("T")

#: Most bytes of the cells of a table in memory, if longer tables can be written to files.
GATHERED_BYTES = 1 << 26


def gather_tables(
    world: World, labels: Sequence[str], rows: Sequence[RowStore | None], files: bool, memory: int
) -> list[Table | None]:
    """Return the table of each analysis, on the first rank (collective)."""
    tables: list[Table | None] = []
    for label, store in zip(labels, rows, strict=True):
        if store is None:
            tables.append(None)
            continue
        nbytes, count = world.total(np.array([store.nbytes, sum(store.counts.values())], np.int64)).tolist()
        long = files and nbytes > GATHERED_BYTES
        if nbytes > memory and not long:
            raise UsageError(
                f"{label}: its table has {count:,} rows, {nbytes / 1e9:.1f} GB, and {memory / 1e9:.1f} GB may be "
                "taken: name a directory for it (--out), into which its rows are written, or select fewer frames"
            )
        tables.append(on_first_rank(world.comm, gather(world.comm, store, long)))
    return tables


def gather(comm: Communicator, store: RowStore, long: bool) -> Callable[[], Table]:
    """Move all ranks' rows to the first one (collective); return a function that returns their table there, or raises.

    A `long` table is on the disk of that rank's node.
    """
    counts, *columns = zip(*comm.allgather((list(store.counts), store.names, store.kinds)), strict=True)
    layout = table_layout(zip(*columns, strict=True))
    rows: list[dict[str, Cells]] | RowFile = []
    failed: Exception | None = None
    for key, owner in sorted((key, rank) for rank, keys in enumerate(counts) for key in keys):
        chunks = comm.gather(_chunk(store, key) if comm.rank == owner else None)
        try:
            if chunks is not None and failed is None:
                if isinstance(chunks[owner], Exception):
                    raise chunks[owner]
                if long and isinstance(rows, list):
                    rows = RowFile(store.memory.directory, layout)
                rows.append(chunk_cells(chunks[owner], layout))
        except Exception as error:  # continue: the other ranks still send their chunks
            failed = error
    store.close()  # frees its disk space

    def table() -> Table:
        if failed is not None:
            raise failed
        if isinstance(rows, RowFile):
            return rows.table()
        cells = {name: join_cells([chunk[name] for chunk in rows], dtype) for name, dtype in layout.items()}
        return Table({**cells, TIME: Column(cells[TIME], "ps")})

    return table


def _chunk(store: RowStore, key: int) -> RowChunk | Exception:
    try:
        return store.chunk(key)
    except Exception as error:  # sent to the first rank, which waits for the chunk
        return error


def lead(comm: Communicator, function: Callable[[], T]) -> T:
    """Call `function` on the first rank, while the others wait without using CPU time (collective)."""

    def first() -> T:
        try:
            return function()
        finally:
            meet(comm)

    if comm.rank:
        meet(comm)
    return on_first_rank(comm, first)


def relocate_columns(outcomes: Sequence[Any], staged: Path, out: Path) -> None:
    """Tell long columns of outcomes, written below `staged`, that their files move to `out`."""
    for outcome in outcomes:
        for cells in _long_cells(outcome):
            cells.detach(staged, out)


def _long_cells(value: Any) -> Iterator[LongCells]:
    if isinstance(value, LongCells):
        yield value
    elif isinstance(value, Column):
        yield from _long_cells(value.values)
    elif isinstance(value, Table):  # its columns are all long, or none is
        yield from value.values() if value.long is not None else ()
    elif isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _long_cells(part)
