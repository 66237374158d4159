"""Tables of rows after a pass, in memory if they are short, else on the disk: `gather_tables()`."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from himach.analysis import TIME
from himach.engine.rows import RowChunk, RowStore
from himach.engine.shuffle.spill import Scratch
from himach.errors import UsageError
from himach.output.table import Column, Table
from himach.ranks.collective import meet, on_first_rank
from himach.ranks.communicator import Communicator, World
from himach.rows.layout import Layout, chunk_cells, table_layout

T = TypeVar("T")

#: Most bytes of the cells of a table in memory, if longer tables can be written to files.
GATHERED_BYTES = 1 << 26
#: Of columns in a file.
ALIGNMENT = 16


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

    Numbers of a `long` table are on the disk of that rank's node.
    """
    counts, *columns = zip(*comm.allgather((store.counts, store.names, store.kinds)), strict=True)
    layout = table_layout(zip(*columns, strict=True))
    cells: dict[str, Any] = {}
    row, failed = 0, None
    for key, owner in sorted((key, rank) for rank, keys in enumerate(counts) for key in keys):
        chunks = comm.gather(_chunk(store, key) if comm.rank == owner else None)
        try:
            if chunks is not None and failed is None:
                if isinstance(chunks[owner], Exception):
                    raise chunks[owner]
                if not cells:
                    cells = _columns(layout, sum(map(sum, map(dict.values, counts))), store.memory.directory, long)
                for name, own in chunk_cells(chunks[owner], layout).items():
                    cells[name][row : row + len(own)] = own  # which makes a list longer
                row += len(chunks[owner])
        except Exception as error:  # continue: the other ranks still send their chunks
            failed = error
    store.close()  # frees its disk space

    def table() -> Table:
        if failed is not None:
            raise failed
        made = cells or _columns(layout, 0, store.memory.directory, False)
        return Table({**made, TIME: Column(made[TIME], "ps")})

    return table


def _columns(layout: Layout, rows: int, directory: Path, long: bool) -> dict[str, Any]:
    """Return columns to be filled: lists of objects, and arrays, of a long table in a file without a name."""
    if not long:
        return {name: [] if dtype is None else np.empty(rows, dtype) for name, dtype in layout.items()}
    sizes = {name: 0 if dtype is None else rows * dtype.itemsize for name, dtype in layout.items()}
    stops = np.cumsum([-(-size // ALIGNMENT) * ALIGNMENT for size in sizes.values()]).tolist()
    scratch = Scratch(directory, "columns of a table")
    memory = scratch.map(stops[-1])
    scratch.close()
    columns: dict[str, Any] = {}
    for (name, dtype), size, start in zip(layout.items(), sizes.values(), [0, *stops], strict=False):
        columns[name] = [] if dtype is None else memory[start : start + size].view(dtype)
    return columns


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
