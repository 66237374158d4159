"""A long column after the run: `Stored` has its ends, and its file for the rest."""

from __future__ import annotations

import csv
import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from himach.errors import UsageError
from himach.output.cells import EDGE_CELLS, Cells
from himach.rows.spread import ColumnSummary, Counts


@dataclass(frozen=True)
class Stored:
    """A long column: its summary, and the file that has all its cells."""

    name: str
    dtype: np.dtype[Any] | None
    count: int
    summary: ColumnSummary  # available without the file
    written: tuple[Path, int, Counts] | None  # a CSV file, the number of this column, and the offsets of chunks
    rows: Counts | None  # int64 (chunks + 1,): the first row of each chunk

    def read(self, start: int, stop: int) -> Cells:
        """Return the cells from `start` to `stop`: numbers, or text as in the file."""
        first, last = self.summary.ends
        behind = self.count - EDGE_CELLS
        if stop <= len(first):
            return first[start:stop]
        if start >= max(behind, 0):
            return last[start - behind : stop - behind]
        if self.written is None or self.rows is None:
            raise UsageError(f"column {self.name!r} of {self.count:,} rows was not written, and is gone with the ranks")
        path, column, places = self.written
        first_chunk = int(np.searchsorted(self.rows, start, side="right")) - 1
        last_chunk = int(np.searchsorted(self.rows, stop, side="left"))
        size = 0
        parts: list[Any] = []
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(int(places[first_chunk]))
                for chunk in range(first_chunk, last_chunk):
                    text = file.read(int(places[chunk + 1] - places[chunk])).decode()
                    parts.append(self._cells([row[column] for row in csv.reader(io.StringIO(text, newline=""))]))
        except OSError as error:
            raise UsageError(f"column {self.name!r} is in {path}, which cannot be read ({error.strerror})") from None
        except (ValueError, IndexError):
            size = -1
        skipped = start - int(self.rows[first_chunk])
        if size != int(places[-1]) or sum(map(len, parts)) != int(self.rows[last_chunk] - self.rows[first_chunk]):
            raise UsageError(f"column {self.name!r} was written to {path}, which is another file by now")
        if self.dtype is not None:
            whole: Cells = np.concatenate(parts)[skipped : skipped + stop - start]
            return whole
        return [cell for part in parts for cell in part][skipped : skipped + stop - start]

    def _cells(self, texts: list[str]) -> Cells:
        if self.dtype is None:
            return [text or None for text in texts]
        if self.dtype.kind == "b":
            return np.array([text == "True" for text in texts])
        return np.array(texts).astype(self.dtype)
