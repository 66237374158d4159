"""Files that all ranks write together: each its own chunks, at the places where one rank would have written them.

What a rank writes is bounded, for it goes in rounds, each of some chunks in the order of frames: ranks tell how long
theirs are, and so know where they go. A rank that does not see the file has the first one write for it.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from himach.errors import HimachError
from himach.files import write_all
from himach.output.table_files.csv_text import encoded, rows_of, rows_text
from himach.parallel.communicator import Communicator
from himach.rows.spread import Spread

__all__ = ["write_array", "write_table"]

#: Rows that a rank writes in a round, and bytes of their cells, at most, about.
ROUND_ROWS, ROUND_BYTES = 1 << 17, 1 << 24
#: Bytes by which the ranks know that a file is the same.
TOKEN_BYTES = 32

Starts = npt.NDArray[np.int64]


def write_table(spread: Spread, path: Path, header: list[str], columns: Mapping[str, str], apart: bool) -> Starts:
    """Write columns as CSV (collective): of each its name in the table, where it counts as a time, and that of rows.

    Parameters
    ----------
    apart
        Whether ranks are on several nodes.

    Returns
    -------
    int64 (chunks + 1,)
        Where the rows of each chunk begin in the file.

    Raises
    ------
    HimachError
        If it cannot be written, on the first rank alone.
    """
    names = list(dict.fromkeys(columns.values()))

    def text(quoted: bool, place: int) -> bytes:
        cells = spread.cells(place, names)
        found = rows_text(rows_of({name: cells[own] for name, own in columns.items()}), quoted)
        if "\r" in found and not quoted:
            raise _CarriageReturn
        return encoded(found)

    if "\r" not in "".join(header):
        try:
            return _write(spread, path, encoded(rows_text([header])), partial(text, False), apart, names)
        except _CarriageReturn:
            pass
    return _write(spread, path, encoded(rows_text([header], quoted=True)), partial(text, True), apart, names)


def write_array(spread: Spread, path: Path, name: str, apart: bool) -> Starts:
    """Write a column of numbers as .npy (collective), as `write_table` does."""
    from io import BytesIO

    kind, head = spread.layout[name], BytesIO()
    assert kind is not None
    described = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": (spread.rows,)}
    np.lib.format.write_array_header_1_0(head, described)

    def data(place: int) -> bytes:
        return np.asarray(spread.cells(place, [name])[name]).tobytes()

    return _write(spread, path, head.getvalue(), data, apart, [name])


class _CarriageReturn(Exception):  # noqa: N818 - no error
    """There is one in a text; raised on all ranks."""


def _write(
    spread: Spread, path: Path, head: bytes, encode: Callable[[int], bytes], apart: bool, names: Sequence[str]
) -> Starts:
    comm = spread.comm
    rows = min(ROUND_ROWS, ROUND_BYTES // spread.row_bytes(names)) * comm.size
    starts = np.zeros(len(spread.keys) + 1, np.int64)
    starts[0] = len(head)
    with ExitStack() as stack:
        file, problem, seen = _opened(comm, path, apart, stack)
        if comm.rank == 0 and problem is None:
            problem = _attempted(partial(os.ftruncate, file, 0)) or _attempted(partial(write_all, file, head, 0))
        for window in spread.windows(0, len(spread.keys), rows):
            made: dict[int, bytes] = {}
            if problem is None:
                problem = _attempted(partial(_encode, spread.own(window), encode, made))
            told = comm.allgather((problem, {place: len(data) for place, data in made.items()}))
            if any(error is not None for error, _ in told):
                break
            sizes = {place: size for _, own in told for place, size in own.items()}
            ends = starts[window.start] + np.cumsum([sizes[place] for place in window])
            starts[window.start + 1 : window.stop + 1] = ends
            parts = [(int(starts[place]), data) for place, data in made.items()]
            if not all(seen):
                others = comm.gather([] if seen[comm.rank] else parts) or []
                parts = [*(parts if seen[comm.rank] else []), *(part for own in others for part in own)]
            if seen[comm.rank]:
                problem = _attempted(partial(_put, file, parts))
        problems = [error for error in comm.allgather(problem) if error is not None]
        if problems and comm.rank == 0:
            _attempted(partial(os.ftruncate, file, 0))  # what others write next needs the room
    if any(isinstance(error, _CarriageReturn) for error in problems):
        raise _CarriageReturn
    if problems and comm.rank == 0:
        if isinstance(problems[0], OSError):
            raise HimachError(f"{path} cannot be written ({problems[0].strerror})") from None
        raise problems[0]
    return starts


def _opened(comm: Communicator, path: Path, apart: bool, stack: ExitStack) -> tuple[int, Exception | None, list[bool]]:
    """Open the file on all ranks that see the one of the first rank; return it, why that one cannot, and which do."""
    # Clients of a network's file system may write back whole pages of what others have written to; of a file that is
    # written through they do not.
    flags = os.O_RDWR | os.O_CLOEXEC | (os.O_DSYNC if apart else 0)
    token, file, problem = secrets.token_bytes(TOKEN_BYTES), -1, None
    try:
        if comm.rank == 0:
            file = os.open(path, flags | os.O_CREAT | os.O_TRUNC, 0o666)
            stack.callback(os.close, file)
            write_all(file, token, 0)
    except OSError as error:
        problem = error
    token = comm.bcast(token)
    seen = comm.rank == 0
    if not seen:
        with suppress(OSError):
            file = os.open(path, flags)
            stack.callback(os.close, file)
            seen = os.pread(file, TOKEN_BYTES, 0) == token
    return file, problem, comm.allgather(seen)


def _encode(places: Iterable[int], encode: Callable[[int], bytes], made: dict[int, bytes]) -> None:
    for place in places:
        made[place] = encode(place)


def _put(file: int, parts: Sequence[tuple[int, bytes]]) -> None:
    for at, data in parts:
        write_all(file, data, at)


def _attempted(function: Callable[[], object]) -> Exception | None:
    """Return what `function` raised: the other ranks wait for a word of it."""
    try:
        function()
    except Exception as error:
        return error
    return None
