"""The directory of a run, ``--out``: a file per part of an outcome, plots, and run.json.

`prepare_out()` before the run, `write_run()` after it. Equal outcomes leave equal bytes.
"""

from __future__ import annotations

import json
import os
import stat
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path, PurePosixPath
from typing import Any

from himach.analysis import Analysis
from himach.errors import HimachError, UsageError
from himach.output.files import check_writable, write_bytes
from himach.output.formats import content, suffix
from himach.output.jsonable import to_json
from himach.output.names import unique_names
from himach.output.parts import parts
from himach.output.plots import figure, png
from himach.output.record import Record

RECORD = "run.json"


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
        check_writable(out)
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
                name = str(PurePosixPath(folder, unique_names([label], [".png"])[0]))
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


def write_outcome(outcome: Any, label: str, directory: str | os.PathLike[str]) -> list[str]:
    """Write an outcome into a directory that is there; return the names of the files.

    The analysis's label is the name of an outcome that is one thing. What has no form in a file is named in a warning.
    """
    named = parts(outcome, label)
    written = []
    files = unique_names([name for name, _ in named], [suffix(thing) for _, thing in named], taken=[RECORD])
    for file, (name, thing) in zip(files, named, strict=True):
        try:
            encoded = content(thing)
        except TypeError as error:
            warnings.warn(
                f"{label}: {name!r} of the outcome was not written: {error}; return a table, an array or plain values",
                stacklevel=2,
            )
            continue
        write_bytes(Path(directory) / file, encoded)
        written.append(file)
    return written


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


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HimachError(f"{folder} cannot be made a directory ({error.strerror})") from None


def _folders(labels: Sequence[str]) -> list[str]:
    return [""] * len(labels) if len(labels) < 2 else unique_names(labels, taken=[RECORD])


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
