"""The folder that a run left: `read_folder()` reads it as a `RunFolder`, `read_table()` reads a table."""

import csv
import io
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from himach.errors import UsageError
from himach.output.cells import Cells
from himach.output.claim import RECORD, unique_folders
from himach.output.directory import listed_files
from himach.output.file_names import unique_names
from himach.output.record import SCHEMA, read_record  # noqa: F401, docs/run-json.md has the schema from here
from himach.output.table import Table

#: Suffixes of figures.
FIGURES = (".svg", ".png", ".pdf")
#: Largest table that is read, in bytes: it takes some twenty times as much memory.
LARGEST = 1 << 27
#: Uncertainty of a table that the record does not name under `uncertainty`.
UNKNOWN: Mapping[str, Any] = {
    "method": "", "level": math.nan, "blocks": 0, "n_eff": math.nan, "means": {}, "half_widths": {}
}  # fmt: skip


@dataclass(frozen=True)
class AnalysisFiles:
    """An analysis of a run: its label, its record, names of tables, and files of figures by suffix.

    A figure is ``{".svg": "rdf/rdf.svg", ".png": "rdf/rdf.png"}``; `others` are arrays, JSON, structures, other forms
    of the tables.
    """

    label: str
    entry: Mapping[str, Any]
    tables: tuple[str, ...]
    figures: tuple[Mapping[str, str], ...]
    others: tuple[str, ...]


@dataclass(frozen=True)
class RunFolder:
    """A folder that a run left: its record, and the files that the record names."""

    path: Path
    record: Mapping[str, Any]
    files: Mapping[str, Path]
    missing: tuple[str, ...]

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.name or os.fspath(self.path)

    @property
    def all_files(self) -> dict[str, Path]:
        """The record and the existing files that it names."""
        return {RECORD: self.path / RECORD, **self.files}

    @property
    def members(self) -> list[dict[str, Any]]:
        """The members of an ensemble; empty for other runs."""
        return list(self.record.get("ensemble", ()))

    @property
    def groups(self) -> Counter[str]:
        """Number of members in each group, without failed ones; "" stands for members without a group."""
        return Counter(member["group"] or "" for member in self.members if not member["error"])

    @property
    def own_code(self) -> dict[str, str]:
        """Files of the user's own code, with their digests."""
        own, digests = [PurePosixPath(path) for path in self.record["code_folders"]], self.record["digests"]
        files = [path for path in digests if path.endswith(".py") and any(map(PurePosixPath(path).is_relative_to, own))]
        return {path: digests[path] for path in files}

    @cached_property
    def analyses(self) -> tuple[AnalysisFiles, ...]:
        """The analyses in their order, with their files."""
        labels = unique_names([entry["name"] for entry in self.record["analyses"]])
        entries = zip(labels, unique_folders(labels), self.record["analyses"], strict=True)
        return tuple(self._collect_files(*entry) for entry in entries)

    @cached_property
    def tables(self) -> Mapping[str, str]:
        """Files of tables by the names in `units` and `uncertainty` (with several analyses ``LABEL/TABLE``)."""
        names = [name for key in ("units", "uncertainty") for name in self.record.get(key, {})]
        by_file = {_table_stem(name, len(self.record["analyses"]) > 1): name for name in names}
        stems = {name.removesuffix(".csv"): name for name in self.files if name.endswith(".csv")}
        return {by_file.get(name, name): file for name, file in stems.items()}

    def table(self, name: str) -> Table:
        """Read a table; raises UsageError if its file is no table."""
        table = read_table(self.files[self.tables[name]], self.record.get("units", {}).get(name, {}))
        if any(f"{column}_low" in table for column in table):
            table.level = self.uncertainty(name)["level"]
        return table

    def uncertainty(self, name: str) -> Mapping[str, Any]:
        """Return the uncertainty of a table; `UNKNOWN` if the record has none."""
        entry: Mapping[str, Any] = self.record.get("uncertainty", {}).get(name, UNKNOWN)
        return entry

    def _collect_files(self, label: str, folder: str, entry: Mapping[str, Any]) -> AnalysisFiles:
        own = [file for file in self.files if not folder or PurePosixPath(file).parent == PurePosixPath(folder)]
        tables = tuple(name for name, file in self.tables.items() if file in own)
        figures: dict[str, dict[str, str]] = {}
        for file in own:
            stem, suffix = os.path.splitext(file)
            if suffix in FIGURES:
                figures.setdefault(stem, {})[suffix] = file
        used = {self.tables[name] for name in tables} | {file for kinds in figures.values() for file in kinds.values()}
        unused = tuple(file for file in own if file not in used)
        return AnalysisFiles(label, entry, tables, tuple(figures.values()), unused)


def stages(entry: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the record of an analysis, and those of the stages that follow it."""
    return [entry, *(stages(entry["then"]) if "then" in entry else [])]


def read_folder(path: str | os.PathLike[str]) -> RunFolder:
    """Read the folder that a run left; raises UsageError for another one."""
    folder = Path(os.path.abspath(path))
    record = read_record(folder / RECORD)
    names = record.get("files", [])
    files = listed_files(folder, names)
    return RunFolder(folder, _with_floats(record), files, tuple(name for name in names if name not in files))


def _with_floats(record: dict[str, Any]) -> dict[str, Any]:
    """Convert the null of nan and the text of infinities in a record to floats."""
    for table in record.get("uncertainty", {}).values():
        means = table["means"].values()
        for estimate in (table, *means):
            estimate |= {key: _float(estimate[key]) for key in ("n_eff", "mean", "low", "high") if key in estimate}
        for mean in means:
            mean["halves"] = None if None in (mean["halves"] or [None]) else [*map(_float, mean["halves"])]
        table["half_widths"] = {name: _float(width) for name, width in table["half_widths"].items()}
    for simulation in (record, *record.get("ensemble", ())):
        system = simulation.get("system", {"box": None, "time_ps": []})
        system["box"] = None if None in (system["box"] or [None]) else [*map(_float, system["box"])]
        system["time_ps"] = [*map(_float, system["time_ps"])]
    return record


def _float(value: Any) -> float:
    return math.nan if value is None else float(value)


def _table_stem(table: str, several: bool) -> str:
    """Return the file of a table, without suffix, from the table's name in the record."""
    label, _, part = table.partition("/") if several else ("", "", table)
    return "/".join([*filter(None, [label]), *unique_names([part])])


def read_table(path: Path, units: Mapping[str, str]) -> Table:
    """Read a table from a CSV of himach's; units are removed from the header.

    Numeric columns are int64 or float64 arrays (n,), nan for empty cells; others are lists of text, None for empty
    cells. Raises UsageError if the file cannot be read, is larger than `LARGEST`, or is no table.
    """
    try:
        csv.field_size_limit(1 << 30)  # the default guards against unmatched quotes
        if (size := path.stat().st_size) > LARGEST:
            raise UsageError(
                f"{path} is not looked at: it has {size:,} bytes, and a page is made of {LARGEST:,} at most"
            )
        text = path.read_bytes().decode("utf-8", "replace")
        header, *rows = list(csv.reader(io.StringIO(text, newline=""), strict=True)) or [[]]
    except OSError as error:
        raise UsageError(f"the table {path} cannot be read ({error.strerror})") from None
    except csv.Error as error:
        raise UsageError(f"{path} is no table: {error}") from None
    rows = [row or [""] for row in rows]  # csv gives [] for a row of one empty cell
    uneven = next((i for i, row in enumerate(rows, 2) if len(row) != len(header)), None)
    if uneven is not None:
        raise UsageError(f"{path} is no table: row {uneven} has not as many cells as the header")
    column_names = {f"{column} ({unit})": column for column, unit in units.items()}
    names = [name if name in units else column_names.get(name, name) for name in header]
    columns: Iterable[Iterable[str]] = zip(*rows, strict=True) if rows else [()] * len(names)
    table = Table({name: _cells(list(texts)) for name, texts in zip(names, columns, strict=True)})
    table.units.update({name: unit for name, unit in units.items() if name in table})
    return table


def _cells(texts: list[str]) -> Cells:
    """Convert cells to numbers if all are numbers or empty; else keep text."""
    for kind in (np.int64, np.float64):
        try:
            return np.array([kind(text) if text or kind is np.int64 else math.nan for text in texts], kind)
        except (ValueError, OverflowError):
            continue
    return [text or None for text in texts]
