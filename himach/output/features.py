"""Time series of an ensemble's members as files, for Markov models: `write_features()`."""

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
from himach.output.parts import collect_tables
from himach.output.table import Table

#: Folder in the run's output directory.
FEATURES = "features"


def write_features(staged: Path, member: str, labels: Sequence[str], outcomes: Sequence[Any] | None) -> list[str]:
    """Write a member's time series as ``features/TABLE/MEMBER.npz`` below `staged`; return the files."""
    tables = {name.replace("/", "-"): table for name, table in collect_tables(labels, outcomes or []).items()}
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
    """Return a table's time series as an .npz; None if it has no times, or no numbers besides them."""
    columns = {name: cells for name, cells in table.items() if name not in (TIME, FRAME)}
    names = [name for name, cells in columns.items() if isinstance(cells, np.ndarray) and cells.dtype.kind in "biuf"]
    if TIME not in table or not names:
        return None
    features = np.stack([np.asarray(table[name], np.float64) for name in names], axis=1)
    buffer = io.BytesIO()
    np.savez(buffer, X=features, time_ps=np.asarray(table[TIME], np.float64), columns=np.array(names))
    return buffer.getvalue()
