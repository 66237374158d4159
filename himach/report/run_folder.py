"""The folder that a run left, as it is read again: `read_folder()`, `RunFolder` and `AnalysisFiles`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from himach.errors import UsageError
from himach.output.claim import RECORD
from himach.output.directory import folders_of, listed_files
from himach.output.names import unique_labels, unique_names
from himach.output.table import Table
from himach.report.csv_table import read_table
from himach.report.record_shape import as_dict, shaped

__all__ = ["AnalysisFiles", "RunFolder", "check_out", "read_folder"]

#: Suffixes of figures; the first that is there is the one to show.
FIGURES = (".svg", ".png", ".pdf")


@dataclass(frozen=True)
class AnalysisFiles:
    """An analysis of a run, and the files that it left.

    Attributes
    ----------
    label
        Its name in the run, each once.
    entry
        What the record says of it (`himach.output.record.AnalysisRecord`).
    tables
        Names of its tables, as `RunFolder.tables` has them.
    figures
        Files of its figures, each one's by suffix: ``{".svg": "rdf/rdf.svg", ".png": "rdf/rdf.png"}``.
    others
        Its other files: arrays, JSON, structures, other forms of the tables.
    """

    label: str
    entry: Mapping[str, Any]
    tables: tuple[str, ...]
    figures: tuple[Mapping[str, str], ...]
    others: tuple[str, ...]


@dataclass(frozen=True)
class RunFolder:
    """A folder that a run left.

    Attributes
    ----------
    path
        The folder.
    record
        What its run.json says (`himach.output.record.Record`); of an older himach, less than that.
    files
        The files that the record names and that are there: path by name. Names are relative, with ``/``.
    missing
        Names of files that the record names and that are not there, or are no regular files below the folder.
    """

    path: Path
    record: Mapping[str, Any]
    files: Mapping[str, Path]
    missing: tuple[str, ...]

    @property
    def all_files(self) -> dict[str, Path]:
        """The record, and the files that it names and that are there."""
        return {RECORD: self.path / RECORD, **self.files}

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.name or os.fspath(self.path)

    @cached_property
    def analyses(self) -> tuple[AnalysisFiles, ...]:
        """The analyses in their order, with their files."""
        labels = unique_labels([str(entry["name"]) for entry in self.record["analyses"]])
        found = zip(labels, folders_of(labels), self.record["analyses"], strict=True)
        return tuple(self._of_analysis(label, folder, entry) for label, folder, entry in found)

    @cached_property
    def tables(self) -> Mapping[str, str]:
        """Files of the tables by name, as the record's `units` and `uncertainty` name them (``LABEL/TABLE``)."""
        named = [name for key in ("units", "uncertainty") for name in as_dict(self.record.get(key))]
        several = len(self.record["analyses"]) > 1
        by_file = {_file_of(name, several): name for name in named}
        files = [name for name in self.files if name.endswith(".csv")]
        return {by_file.get(file.removesuffix(".csv"), file.removesuffix(".csv")): file for file in files}

    def table(self, name: str) -> Table:
        """Return one of the tables; raises UsageError if its file is no table."""
        units = as_dict(as_dict(self.record.get("units")).get(name))
        table = read_table(self.files[self.tables[name]], {str(key): str(unit) for key, unit in units.items()})
        level = self.uncertainty(name).get("level")
        table.level = level if any(f"{column}_low" in table for column in table) else None
        return table

    def uncertainty(self, name: str) -> Mapping[str, Any]:
        """Return what the record says of how sure a table is (`himach.output.record.Uncertainty`); empty: nothing."""
        return as_dict(as_dict(self.record.get("uncertainty")).get(name))

    @property
    def members(self) -> list[dict[str, Any]]:
        """The members of an ensemble (`himach.output.record.MemberRecord`); none of another run."""
        members = self.record.get("ensemble")
        return [as_dict(member) for member in members] if isinstance(members, list) else []

    def _of_analysis(self, label: str, folder: str, entry: Mapping[str, Any]) -> AnalysisFiles:
        own = [file for file in self.files if not folder or PurePosixPath(file).parent == PurePosixPath(folder)]
        tables = [name for name, file in self.tables.items() if file in own]
        figures: dict[str, dict[str, str]] = {}
        for file in own:
            path = PurePosixPath(file)
            if path.suffix in FIGURES:
                figures.setdefault(str(path.with_suffix("")), {})[path.suffix] = file
        shown = {self.tables[name] for name in tables} | {file for kinds in figures.values() for file in kinds.values()}
        others = tuple(file for file in own if file not in shown)
        return AnalysisFiles(label, entry, tuple(tables), tuple(figures.values()), others)


def read_folder(path: str | os.PathLike[str]) -> RunFolder:
    """Read the folder that a run left; its tables are read when they are asked for.

    Raises
    ------
    UsageError
        If it is none, or its record cannot be read.
    """
    folder = Path(os.path.abspath(path))
    try:
        record = json.loads((folder / RECORD).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(
            f"{path} is no folder of a run: there is no {RECORD} in it; name the folder that --out of himach run named"
        ) from None
    except OSError as error:
        raise UsageError(f"the record {folder / RECORD} cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError):
        raise UsageError(f"{folder / RECORD} is no record of a run: it is not JSON") from None
    entries = record.get("analyses") if isinstance(record, dict) and isinstance(record.get("himach"), str) else None
    if not isinstance(entries, list) or not all(isinstance(as_dict(entry).get("name"), str) for entry in entries):
        raise UsageError(f"{folder / RECORD} is no record of a run of himach's: it names no analyses")
    listed = record.get("files")
    names = [str(name) for name in listed] if isinstance(listed, list) else []
    files = listed_files(folder, names)
    return RunFolder(folder, shaped(record), files, tuple(name for name in names if name not in files))


def check_out(out: str | os.PathLike[str], read: Iterable[Path]) -> None:
    """Raise UsageError if what is to be written would take the place of a file that it is made of."""
    place = os.path.realpath(out)
    if any(place == os.path.realpath(path) for path in read):
        raise UsageError(f"{out} is a file that this is made of; name another one by --out")


def _file_of(table: str, several: bool) -> str:
    """Return the file of a table, without suffix, by the name that the record gives it."""
    label, _, part = table.partition("/") if several else ("", "", table)
    return "/".join([*filter(None, [label]), *unique_names([part])])
