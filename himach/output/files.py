"""What a run leaves in ``--out``: a CSV per table, a .npy per array, JSON for the rest, plots, and run.json.

`prepare_out()` before the run, `write_run()` after it. Every file appears whole or not at all, and equal outcomes leave
equal bytes. A CSV has a header line; floats in the shortest form that reads back exactly; None as an empty cell; other
objects as str() shows them. JSON is described in `himach.output.plain`.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import secrets
import stat
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Literal

import numpy as np

from himach.analysis import Analysis
from himach.errors import HimachError, UsageError
from himach.output.plain import plain, to_json
from himach.output.record import Record
from himach.output.table import Column, Table, as_table, default_outcome

__all__ = ["RECORD", "clean_out", "parts", "prepare_out", "unique_labels", "write_bytes", "write_outcome", "write_run"]

RECORD = "run.json"
LONGEST_NAME = 180  # bytes; file systems allow 255 with the suffix


def unique_labels(labels: Iterable[str]) -> list[str]:
    """Return labels as names of their own for directories and outcomes: those that come again get -2, -3."""
    return _unique([str(label) for label in labels])


def parts(outcome: Any, label: str) -> list[tuple[str, Any]]:
    """Return the named parts of an outcome: tables, arrays and other things.

    A table, an array or any other object is one part, named by the analysis's `label`; None is no part. A dict is
    name -> thing, never a table of its own. A mapping of keys that are no names to things that are neither tables nor
    arrays is key -> result, as finish() got it, and thereby one table.
    """
    if outcome is None:
        return []
    if isinstance(outcome, Table) or not isinstance(outcome, Mapping):
        return [(label, _tabled(outcome))]
    named = {name: _tabled(thing) for name, thing in outcome.items()}
    names = any(isinstance(name, str) for name in named)
    if named and not names and not any(isinstance(thing, Table | np.ndarray) for thing in named.values()):
        return [(label, default_outcome(outcome))]
    return [(name if isinstance(name, str) else str(plain(name)), thing) for name, thing in named.items()]


def write_outcome(outcome: Any, label: str, directory: str | os.PathLike[str]) -> list[str]:
    """Write an outcome into a directory that is there.

    Parameters
    ----------
    outcome
        What finish() returned.
    label
        The analysis's label: the name of an outcome that is one thing.
    directory
        Where to write.

    Returns
    -------
    list of str
        Names of the files written. What has no form in a file is named in a warning.
    """
    named = parts(outcome, label)
    written = []
    files = _unique([name for name, _ in named], [_suffix(thing) for _, thing in named], taken=[RECORD])
    for file, (name, thing) in zip(files, named, strict=True):
        try:
            content = _content(thing)
        except TypeError as error:
            warnings.warn(
                f"{label}: {name!r} of the outcome was not written: {error}; return a table, an array or plain values",
                stacklevel=2,
            )
            continue
        write_bytes(Path(directory) / file, content)
        written.append(file)
    return written


def write_run(
    out: str | os.PathLike[str],
    labels: Sequence[str],
    analyses: Sequence[Analysis],
    outcomes: Sequence[Any],
    record: Record,
    drawing: Callable[[Analysis], AbstractContextManager[None]] = lambda analysis: nullcontext(),
) -> list[str]:
    """Write outcomes, plots and, last, the record; files of an earlier run in `out` go first.

    Parameters
    ----------
    out
        Directory that `prepare_out` saw before the run; whatever came into it since (a log, as a rule) stays. With
        several analyses, each gets a subdirectory named by its label.
    labels, analyses, outcomes
        One of each for every analysis.
    record
        The record; `files` is added to what is written.
    drawing
        A context for each plot(), in which the caller may tell its errors from those of writing.

    Returns
    -------
    list of str
        Files written besides run.json, relative to `out`.

    Raises
    ------
    HimachError
        If a file cannot be written.
    Exception
        What plot() raised; outcomes and a run.json that names the error are written by then.
    """
    from himach.output.plots import figure, png

    out = Path(out)
    clean_out(out)
    files: list[str] = []
    folders = _folders(labels)
    errors = list(record["errors"])
    try:
        for folder, label, outcome in zip(folders, labels, outcomes, strict=True):
            _make_folder(out / folder)
            files += [str(PurePosixPath(folder, name)) for name in write_outcome(outcome, label, out / folder)]
        for folder, label, analysis, outcome in zip(folders, labels, analyses, outcomes, strict=True):
            if analysis.defines("plot"):
                name = str(PurePosixPath(folder, _unique([label], [".png"])[0]))
                with drawing(analysis):
                    picture = png(figure([(label, analysis, outcome)]))
                write_bytes(out / name, picture)
                files.append(name)
    except Exception as error:
        errors.append(str(error) if isinstance(error, HimachError) else f"{type(error).__name__}: {error}")
        raise
    finally:  # without its record, the directory would be refused by the next run
        write_bytes(out / RECORD, to_json({**record, "errors": errors, "files": files}))
    return files


def prepare_out(out: str | os.PathLike[str], labels: Sequence[str] = ()) -> None:
    """Make the directory of a run, before the run, so that no run ends without a place for its outcome.

    Parameters
    ----------
    out
        Directory to make, or an empty one, or an earlier run's.
    labels
        Labels of the analyses.

    Raises
    ------
    UsageError
        If it is no directory, cannot be made or written, or holds anything while no run.json of himach is there.
    """
    out = Path(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
        inside = os.listdir(out)
        _check_writable(out)
    except FileExistsError:
        raise UsageError(f"output directory {out} is a file; name another directory") from None
    except OSError as error:
        raise UsageError(
            f"output directory {out} cannot be written ({error.strerror}); name another directory"
        ) from None
    if inside and _earlier(out) is None:
        raise UsageError(
            f"output directory {out} is neither empty nor an earlier run's (no {RECORD} of himach in it); "
            "name another directory, or empty this one"
        )
    for folder in _folders(labels):
        place = out / folder
        if folder and (place.is_symlink() or (place.exists() and not place.is_dir())):
            raise UsageError(f"output directory {out}: {folder!r} in it is no directory; remove it, or name another")


def clean_out(out: str | os.PathLike[str]) -> None:
    """Remove the files that an earlier run's run.json lists, and the subdirectories that become empty by it.

    Only regular files below `out` are removed, never through a symbolic link; run.json stays until it is replaced.
    """
    out = Path(out)
    paths = [path for name in _earlier(out) or [] if (path := _inside(out, name)) is not None]
    folders = {parent for path in paths for parent in path.parents if parent.parts}
    try:
        for path in paths:
            (out / path).unlink(missing_ok=True)
        for folder in sorted(folders, key=lambda folder: len(folder.parts), reverse=True):
            if not any((out / folder).iterdir()):
                (out / folder).rmdir()
    except OSError as error:
        raise HimachError(f"an earlier run's {error.filename} cannot be removed ({error.strerror})") from None


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file whole or not at all: a temporary file beside it takes its name.

    Raises
    ------
    HimachError
        If it cannot be written.
    """
    path = Path(path)
    temporary = _temporary(path.parent)
    try:
        with _create(temporary) as file:
            file.write(content)
        temporary.replace(path)
    except OSError as error:
        raise HimachError(f"{path} cannot be written ({error.strerror})") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HimachError(f"{folder} cannot be made a directory ({error.strerror})") from None


def _check_writable(directory: Path) -> None:
    """Try it: permissions alone tell neither of read-only nor of full file systems."""
    temporary = _temporary(directory)
    with _create(temporary):
        temporary.unlink()


def _temporary(directory: Path) -> Path:
    return directory / f".himach-{os.getpid()}-{secrets.token_hex(4)}.tmp"


def _create(path: Path) -> BinaryIO:
    """Open a new file with the user's usual permissions; one of the tempfile module would be the owner's only."""
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb")


def _folders(labels: Sequence[str]) -> list[str]:
    return [""] * len(labels) if len(labels) < 2 else _unique(labels, taken=[RECORD])


def _earlier(out: Path) -> list[Any] | None:
    """Return the files that an earlier run says it left in `out`; None if none of himach's run.json is there."""
    try:
        record = json.loads((out / RECORD).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or "himach" not in record:
        return None
    files = record.get("files", [])
    return files if isinstance(files, list) else []


def _inside(out: Path, name: Any) -> PurePosixPath | None:
    """Return `name` as a path below `out` if it is a regular file there and no symbolic link leads to it."""
    if not isinstance(name, str) or not name or "\0" in name:
        return None
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or path.name == RECORD:
        return None
    try:
        if any(stat.S_ISLNK((out / parent).lstat().st_mode) for parent in path.parents if parent.parts):
            return None
        return path if stat.S_ISREG((out / path).lstat().st_mode) else None
    except OSError:
        return None


def _tabled(thing: Any) -> Any:
    table = as_table(thing)
    return thing if table is None else table


def _suffix(thing: Any) -> str:
    """Return the suffix of the file for a part of an outcome: its format."""
    if isinstance(thing, Table):
        return ".csv"
    pure = isinstance(thing, np.ndarray) and not thing.dtype.hasobject and not isinstance(thing, np.ma.MaskedArray)
    return ".npy" if pure else ".json"


def _content(thing: Any) -> bytes:
    """Return the bytes of the file for a part of an outcome; raises TypeError if it has no form in JSON."""
    suffix = _suffix(thing)
    if suffix == ".csv":
        return _csv(thing)
    if suffix == ".json":
        return to_json(thing)
    buffer = io.BytesIO()
    np.save(buffer, np.asarray(thing, order="C"), allow_pickle=False)
    return buffer.getvalue()


def _csv(table: Table) -> bytes:
    text = _csv_text(table, csv.QUOTE_MINIMAL)
    if "\r" in text:  # the csv module of Python 3.11 does not quote it by itself, and reads it as the end of a row
        text = _csv_text(table, csv.QUOTE_NONNUMERIC)
    return text.encode(errors="backslashreplace")


def _csv_text(table: Table, quoting: Literal[0, 2]) -> str:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n", quoting=quoting)
    writer.writerow(table)
    writer.writerows(zip(*(_cells(column) for column in table.values()), strict=True))
    return text.getvalue()


def _cells(column: Column) -> Iterable[Any]:
    """Return the cells of a column as the csv module is to write them; it writes Python's floats by repr()."""
    if not isinstance(column, np.ndarray):
        return [cell if cell is None or isinstance(cell, str) else str(plain(cell)) for cell in column]
    if column.dtype.kind in "biu" or column.dtype == np.float64:
        return list(column.tolist())
    return list(column.astype(str))  # the shortest digits that tell values of this type apart


def _unique(names: Sequence[str], suffixes: Sequence[str] = (), taken: Iterable[str] = ()) -> list[str]:
    """Return safe file names, each once; a name that is safe as it is keeps it, others make way by -2, -3."""
    suffixes = suffixes or [""] * len(names)
    safe = [_safe(name) for name in names]
    used = set(taken)
    unique = [""] * len(names)
    for i in sorted(range(len(names)), key=lambda i: safe[i] != names[i]):
        number = 1
        while not unique[i] or unique[i] in used:
            unique[i] = f"{safe[i]}{'' if number == 1 else f'-{number}'}{suffixes[i]}"
            number += 1
        used.add(unique[i])
    return unique


def _safe(name: str) -> str:
    """Return a name without separators, control characters or a leading dot, short enough for a file system."""
    text = "".join(c if c.isalnum() or c in " ._-+=,()[]@%" else "_" for c in name).strip(" ")
    text = text.encode(errors="replace")[:LONGEST_NAME].decode(errors="ignore")
    return f"_{text[1:]}" if text.startswith((".", "-")) else text or "_"
