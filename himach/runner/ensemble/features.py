"""Features of members for Markov models: `write_features()`, the columns of tables in time as one .npz a member.

``numpy.load(file)["X"]`` is what deeptime and PyEMMA take of a trajectory: float64 (frames, columns).
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from himach.analysis import FRAME, TIME
from himach.errors import HimachError
from himach.files import write_bytes
from himach.output.names import unique_names
from himach.output.parts import tables_of
from himach.output.table import Table

__all__ = ["FEATURES", "write_features"]

#: Folder in that of the run.
FEATURES = "features"


def write_features(staged: Path, member: str, labels: Sequence[str], outcomes: Sequence[Any] | None) -> list[str]:
    """Write what the tables in time of a member say as ``features/TABLE/MEMBER.npz``; return the files.

    Parameters
    ----------
    staged
        Where they are to be, before they appear in the directory of the run.
    member
        Its name as one of a file.
    labels, outcomes
        Of every analysis.

    Raises
    ------
    HimachError
        If a file cannot be written.
    """
    tables = {name.replace("/", "-"): table for name, table in tables_of(labels, outcomes or []).items()}
    files = []
    for name, folder in zip(tables, unique_names(list(tables)), strict=True):
        content = _content(tables[name])
        if content is not None:
            file = Path(FEATURES, folder, f"{member}.npz")
            try:
                (staged / file.parent).mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise HimachError(f"{staged / file} cannot be written ({error.strerror})") from None
            write_bytes(staged / file, content)
            files.append(file.as_posix())
    return files


def _content(table: Table) -> bytes | None:
    """Return the columns of a table in time as an .npz; None if it is none, or has no numbers beside times."""
    names = [name for name, cells in table.items() if name not in (TIME, FRAME) and _is_number(cells)]
    if TIME not in table or not names:
        return None
    columns = np.stack([np.asarray(table[name], np.float64) for name in names], axis=1)
    buffer = io.BytesIO()
    np.savez(buffer, X=columns, time_ps=np.asarray(table[TIME], np.float64), columns=np.array(names))
    return buffer.getvalue()


def _is_number(cells: Any) -> bool:
    return isinstance(cells, np.ndarray) and cells.dtype.kind in "biuf"
