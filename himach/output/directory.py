"""The output directory (``--out``): a file per part of an outcome, plots, and run.json, by `write_run()`.

Equal outcomes give equal bytes. After a kill at any time the directory holds all files of an earlier run, or all of
this one, or no run.json; it can be used again.
"""

import json
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from himach.analysis import FRAME, TIME, Analysis
from himach.errors import HimachError
from himach.files import write_bytes
from himach.output.claim import RECORD, Claim, unique_folders
from himach.output.figures.drawer import Drawer
from himach.output.figures.drawing_process import start_drawing
from himach.output.figures.plots import render_plot, thin_tables
from himach.output.file_names import unique_names
from himach.output.outcome_files import content, npz, suffix, to_json
from himach.output.parts import collect_tables, parts
from himach.output.record import Record
from himach.output.table import Table
from himach.output.table_files import csv_table, table_content

#: Folder of time series of an ensemble's members in the run's output directory.
FEATURES = "features"


def write_run(
    claim: Claim,
    results: Sequence[tuple[str, Analysis, Any]],
    record: Record,
    drawing: Callable[[Analysis], AbstractContextManager[None]] = lambda analysis: nullcontext(),
    drawer: Drawer | None = None,
    units: bool = False,
    tables: Sequence[str] = ("csv",),
    figures: Sequence[str] = ("png",),
) -> list[str]:
    """Write outcomes by label and analysis, plots and the record to the staging folder, then move them into place."""
    files: list[str] = list(claim.staged_files)
    unwritten: list[str] = []
    seconds, start = record["seconds"], time.perf_counter()
    folders = unique_folders([label for label, _, _ in results])
    plots = [
        (folder, (label, analysis, thin_tables(outcome)))
        for folder, (label, analysis, outcome) in zip(folders, results, strict=True)
        if analysis.defines("plot")
    ]
    finish_drawing = start_drawing(drawer, [plot for _, plot in plots], figures)  # while tables are written
    for folder, (label, _, outcome) in zip(folders, results, strict=True):
        make_folder(claim.staged / folder)
        names = write_outcome(outcome, label, claim.staged / folder, unwritten, units, tables)
        files += [str(PurePosixPath(folder, name)) for name in names]
    libraries = {"matplotlib": bool(plots), "pyarrow": "parquet" in tables}  # whose versions files show
    versions = {name: version(name) for name, needed in libraries.items() if needed}
    record["versions"] = {**record.get("versions", {}), **versions}
    written = time.perf_counter()
    seconds["write"] = written - start
    seconds["whole"] = seconds["total"] + seconds["write"]
    try:
        for (folder, plot), ready in zip(plots, finish_drawing(), strict=True):
            taken = [PurePosixPath(file).name for file in files if PurePosixPath(file).parent == PurePosixPath(folder)]
            unique = unique_names([plot[0]] * len(figures), [f".{kind}" for kind in figures], taken)
            names = [str(PurePosixPath(folder, name)) for name in unique]
            try:
                with drawing(plot[1]):
                    pictures = ready or render_plot(plot, figures)
            except Exception as error:
                warnings.warn(f"there is no {' and no '.join(names)}: {_error_text(error)}", stacklevel=2)
                continue
            for name, picture in zip(names, pictures, strict=True):
                with _noting_failure(PurePosixPath(name).name, unwritten):
                    write_bytes(claim.staged / name, picture)
                    files.append(name)
        seconds["draw"] = time.perf_counter() - written
        seconds["whole"] += seconds["draw"]
    except BaseException as error:
        record["errors"] = [*record["errors"], _error_text(error)]
        raise
    finally:  # Ctrl-C must not lose the outcome
        advice = "make room there, or name another directory, and run again"
        if unwritten:
            record["errors"] = [*record["errors"], f"{claim.out} lacks {', '.join(unwritten)}; {advice}"]
        try:
            _put_in_place(claim, files, record)
        except HimachError as error:  # the outcome is still shown
            record["errors"] = [*record["errors"], f"{error}; {advice}"]
            files = []
    return files


def _put_in_place(claim: Claim, files: Sequence[str], record: Record) -> None:
    """Replace an earlier run's files by the staged ones: its record first, after a note of all files, ours last."""
    out = claim.out
    write_bytes(claim.staged / RECORD, to_json({**record, "files": files}))
    owned = [*claim.earlier_files, *_read_note(claim.note)]
    write_bytes(claim.note, to_json([*owned, *files]))
    (out / RECORD).unlink(missing_ok=True)
    remove_listed(out, owned)
    for i, name in enumerate(files):
        make_folder((out / name).parent)
        try:
            (claim.staged / name).replace(out / name)
        except OSError as error:
            failed = HimachError(f"{out / name} cannot be written ({error.strerror})")
            partial_record = {**record, "errors": [*record["errors"], str(failed)], "files": files[:i]}
            write_bytes(out / RECORD, to_json(partial_record))
            claim.note.unlink()
            raise failed from None
    (claim.staged / RECORD).replace(out / RECORD)
    claim.note.unlink()


def _error_text(error: BaseException) -> str:
    return str(error) if isinstance(error, HimachError) else f"{type(error).__name__}: {error}"


@contextmanager
def _noting_failure(name: str, unwritten: list[str]) -> Iterator[None]:
    """Add the name of a file and the reason to `unwritten` if it cannot be written."""
    try:
        yield
    except HimachError as error:
        unwritten.append(f"{name} ({str(error).partition(' cannot be written (')[2].rstrip(')') or error})")


def write_outcome(
    outcome: Any,
    label: str,
    directory: str | os.PathLike[str],
    unwritten: list[str] | None = None,
    units: bool = False,
    tables: Sequence[str] = ("csv",),
) -> list[str]:
    """Write an outcome into an existing directory; return the names of the files.

    Files that cannot be written are added to `unwritten`; without it they are an error. An outcome of one part is named
    by the analysis's label. Parts without a file format cause a warning.
    """
    named_parts = parts(outcome, label)
    extra_formats = [kind for kind in tables if kind != "csv"]
    pieces = [(name, thing, "") for name, thing in named_parts]
    pieces += [(name, thing, kind) for name, thing in named_parts if isinstance(thing, Table) for kind in extra_formats]
    written = []
    suffixes = [f".{kind}" if kind else suffix(thing) for _, thing, kind in pieces]
    files = unique_names([name for name, _, _ in pieces], suffixes, taken=[RECORD])
    for file, (name, thing, kind) in zip(files, pieces, strict=True):
        try:
            with nullcontext() if unwritten is None else _noting_failure(file, unwritten):
                _write(thing, name, kind, Path(directory) / file, units)
                written.append(file)
        except TypeError as error:
            advice = "" if kind else "; return a table, an array or plain values"
            as_file = f" as {file}" if kind else ""
            warnings.warn(f"{label}: {name!r} of the outcome was not written{as_file}: {error}{advice}", stacklevel=2)
    return written


def _write(thing: Any, name: str, kind: str, path: Path, units: bool) -> None:
    """Write a part of an outcome; `kind` is the format of a table's file beside its CSV, "" for any other file."""
    if kind:
        write_bytes(path, table_content(thing, name, kind))
    else:
        write_bytes(path, csv_table(thing, units) if isinstance(thing, Table) else content(thing, units))


def write_features(staged: Path, member: str, labels: Sequence[str], outcomes: Sequence[Any] | None) -> list[str]:
    """Write a member's time series as ``features/TABLE/MEMBER.npz`` below `staged`, and return the files.

    They serve Markov models. Tables without times, or without numbers besides them, have none.
    """
    tables = {name.replace("/", "-"): table for name, table in collect_tables(labels, outcomes or []).items()}
    files = []
    for folder, table in zip(unique_names(list(tables)), tables.values(), strict=True):
        columns = {name: cells for name, cells in table.items() if name not in (TIME, FRAME)}
        numbers = {name: np.asarray(cells, np.float64) for name, cells in columns.items()
                   if isinstance(cells, np.ndarray) and cells.dtype.kind in "biuf"}  # fmt: skip
        if TIME in table and numbers:
            file = Path(FEATURES, folder, f"{member}.npz")
            make_folder((staged / file).parent)
            arrays = {"X": np.stack([*numbers.values()], axis=1), "time_ps": np.asarray(table[TIME], np.float64)}
            write_bytes(staged / file, npz(arrays | {"columns": np.array([*numbers])}))
            files.append(file.as_posix())
    return files


def remove_listed(out: str | os.PathLike[str], names: Iterable[Any]) -> None:
    """Remove those of the files that are in `out`, and subdirectories that become empty.

    Only regular files below `out` are removed, never through a symbolic link, and never run.json.
    """
    out = Path(out)
    paths = [path for name in names if (path := _relative_path(name)) is not None]
    folders = {parent for path in paths for parent in path.parents if parent.parts}
    try:
        for path in paths:
            if _is_below(out, path) and os.path.isfile(out / path):
                (out / path).unlink(missing_ok=True)
        for folder in sorted(folders, key=lambda folder: len(folder.parts), reverse=True):
            if _is_below(out, folder) and os.path.isdir(out / folder) and not any((out / folder).iterdir()):
                (out / folder).rmdir()
    except OSError as error:
        raise HimachError(f"an earlier run's {error.filename} cannot be removed ({error.strerror})") from None


def listed_files(out: str | os.PathLike[str], names: Iterable[Any]) -> dict[str, Path]:
    """Return those of the files that are in `out`, by name: regular files, reached through no symbolic link."""
    out = Path(out)
    paths = {name: path for name in names if (path := _relative_path(name)) is not None}
    return {name: out / path for name, path in paths.items() if _is_below(out, path) and os.path.isfile(out / path)}


def _read_note(note: Path) -> list[Any]:
    """Return the files that a killed run noted as himach's."""
    try:
        names = json.loads(note.read_bytes())
    except (OSError, ValueError, RecursionError):
        return []
    return names if isinstance(names, list) else []


def make_folder(folder: Path) -> None:
    """Make a folder and those around it if missing; raise HimachError if that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HimachError(f"{folder} cannot be made a directory ({error.strerror})") from None


def _relative_path(name: Any) -> PurePosixPath | None:
    """Return `name` as the path of a file below a run's directory; None if it is not valid."""
    if not isinstance(name, str) or not name or "\0" in name:
        return None
    path = PurePosixPath(name)
    return None if path.is_absolute() or ".." in path.parts or path.name == RECORD else path


def _is_below(out: Path, path: PurePosixPath) -> bool:
    """Tell whether neither `path` nor a folder between it and `out` is a symbolic link."""
    return not any(os.path.islink(out / part) for part in (path, *path.parents[:-1]))
