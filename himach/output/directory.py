"""The directory of a run, ``--out``: a file per part of an outcome, plots, and run.json.

`prepare_out()` before the run, `write_run()` after it. Equal outcomes leave equal bytes. Whenever a run is killed, the
directory holds all files of an earlier run, or all of this one, or no run.json; and it may be used again.
"""

from __future__ import annotations

import json
import os
import stat
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path, PurePosixPath
from typing import Any

from himach.analysis import Analysis
from himach.errors import HimachError, UsageError
from himach.files import write_bytes
from himach.output.claim import FOLDER, RECORD, Claim
from himach.output.formats import content, suffix
from himach.output.jsonable import to_json
from himach.output.names import unique_names
from himach.output.parts import parts
from himach.output.plots import figure, png
from himach.output.record import Record


def prepare_out(out: str | os.PathLike[str], labels: Sequence[str] = ()) -> Claim:
    """Make and claim the directory of a run, before the run, so that no run ends without a place for its outcome.

    Parameters
    ----------
    out
        Directory to make, or an empty one, or an earlier run's, be it that it was killed.
    labels
        Labels of the analyses.

    Returns
    -------
    Claim
        For `write_run`; to be released after it, or when the run failed.

    Raises
    ------
    UsageError
        If it is no directory, cannot be made or written, another run writes there, or it holds anything while no
        run.json of himach is there.
    """
    out = Path(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
        _check(out, labels)
        claim = Claim(out)
    except FileExistsError:
        raise UsageError(f"output directory {out} is a file; name another directory") from None
    except OSError as error:
        raise UsageError(
            f"output directory {out} cannot be written ({error.strerror}); name another directory"
        ) from None
    try:
        _check(out, labels)  # as it is now that nobody else changes it
    except BaseException:
        claim.release()
        raise
    return claim


def _check(out: Path, labels: Sequence[str]) -> None:
    """Raise UsageError if `out` holds what is not an earlier run's."""
    inside = os.listdir(out)  # at one moment: a run has its folder there as long as its record is not
    if inside and FOLDER not in inside and (RECORD not in inside or _is_foreign(out / RECORD)):
        raise UsageError(
            f"output directory {out} is neither empty nor an earlier run's (no {RECORD} of himach in it); "
            "name another directory, or empty this one"
        )
    for folder in (*_folders(labels), FOLDER):
        place = out / folder
        if folder and not _may_be_folder(place):
            raise UsageError(f"output directory {out}: {folder!r} in it is no directory; remove it, or name another")


def _may_be_folder(place: Path) -> bool:
    """Whether a folder is there, and no link to one, or nothing is; by one look, as another run's comes and goes."""
    try:
        return stat.S_ISDIR(place.lstat().st_mode)
    except FileNotFoundError:
        return True


def write_run(
    claim: Claim,
    labels: Sequence[str],
    analyses: Sequence[Analysis],
    outcomes: Sequence[Any],
    record: Record,
    drawing: Callable[[Analysis], AbstractContextManager[None]] = lambda analysis: nullcontext(),
) -> list[str]:
    """Write outcomes, plots and the record beside the files of an earlier run, and then put them in their place.

    Parameters
    ----------
    claim
        What `prepare_out` gave before the run; whatever came into the directory since (a log, as a rule) stays. With
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
        Files written besides run.json, relative to the directory.

    Raises
    ------
    HimachError
        If a file cannot be written; an earlier run's are there still, unless its place was what it could not have.
    Exception
        What plot() raised; outcomes and a run.json that names the error are written by then.
    """
    files: list[str] = []
    folders = _folders(labels)
    for folder, label, outcome in zip(folders, labels, outcomes, strict=True):
        _make_folder(claim.staged / folder)
        files += [str(PurePosixPath(folder, name)) for name in write_outcome(outcome, label, claim.staged / folder)]
    try:
        for folder, label, analysis, outcome in zip(folders, labels, analyses, outcomes, strict=True):
            if analysis.defines("plot"):
                name = str(PurePosixPath(folder, unique_names([label], [".png"])[0]))
                with drawing(analysis):
                    picture = png(figure([(label, analysis, outcome)]))
                write_bytes(claim.staged / name, picture)
                files.append(name)
    except BaseException as error:
        _put_in_place(claim, files, record, [*record["errors"], _told(error)])
        raise
    _put_in_place(claim, files, record, record["errors"])
    return files


def _put_in_place(claim: Claim, files: Sequence[str], record: Record, errors: Sequence[str]) -> None:
    """Let the staged files, and last the record, take the place of an earlier run's.

    The earlier record goes first and tells no more; which files are himach's is noted before.
    """
    out = claim.out
    write_bytes(claim.staged / RECORD, to_json({**record, "errors": errors, "files": files}))
    owned = [*(_earlier(out) or []), *_noted(claim.note)]
    write_bytes(claim.note, to_json([*owned, *files]))
    (out / RECORD).unlink(missing_ok=True)
    remove_listed(out, owned)
    for i, name in enumerate(files):
        _make_folder((out / name).parent)
        try:
            (claim.staged / name).replace(out / name)
        except OSError as error:
            failed = HimachError(f"{out / name} cannot be written ({error.strerror})")
            told = {**record, "errors": [*errors, str(failed)], "files": files[:i]}
            write_bytes(out / RECORD, to_json(told))
            claim.note.unlink()
            raise failed from None
    (claim.staged / RECORD).replace(out / RECORD)
    claim.note.unlink()


def _told(error: BaseException) -> str:
    return str(error) if isinstance(error, HimachError) else f"{type(error).__name__}: {error}"


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


def remove_listed(out: str | os.PathLike[str], names: Iterable[Any]) -> None:
    """Remove those of the files that lie in `out`, and the subdirectories that become empty by it.

    Only regular files below `out` are removed, never through a symbolic link, and never run.json.
    """
    out = Path(out)
    paths = [path for name in names if (path := _below(name)) is not None]
    folders = {parent for path in paths for parent in path.parents if parent.parts}
    try:
        for path in paths:
            if _is_there(out, path, stat.S_ISREG):
                (out / path).unlink(missing_ok=True)
        for folder in sorted(folders, key=lambda folder: len(folder.parts), reverse=True):
            if _is_there(out, folder, stat.S_ISDIR) and not any((out / folder).iterdir()):
                (out / folder).rmdir()
    except OSError as error:
        raise HimachError(f"an earlier run's {error.filename} cannot be removed ({error.strerror})") from None


def _noted(note: Path) -> list[Any]:
    """Return the files that a killed run noted as himach's."""
    try:
        found = json.loads(note.read_bytes())
    except (OSError, ValueError, RecursionError):
        return []
    return found if isinstance(found, list) else []


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HimachError(f"{folder} cannot be made a directory ({error.strerror})") from None


def _folders(labels: Sequence[str]) -> list[str]:
    return [""] * len(labels) if len(labels) < 2 else unique_names(labels, taken=[RECORD, FOLDER])


def _earlier(out: Path) -> list[Any] | None:
    """Return the files that an earlier run says it left in `out`; None if none of himach's run.json is there."""
    try:
        return _told_by((out / RECORD).read_bytes())
    except OSError:
        return None


def _is_foreign(record: Path) -> bool:
    """Whether that run.json is not himach's; one that has gone is: another run has begun to replace it."""
    try:
        return _told_by(record.read_bytes()) is None
    except FileNotFoundError:
        return record.is_symlink()
    except OSError:
        return True


def _told_by(record: bytes) -> list[Any] | None:
    """Return the files that a run's record says the run left; None if it is not himach's."""
    try:
        said = json.loads(record)
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, dict) or "himach" not in said:
        return None
    files = said.get("files", [])
    return files if isinstance(files, list) else []


def _below(name: Any) -> PurePosixPath | None:
    """Return `name` as the path of a file below a run's directory if it can be one."""
    if not isinstance(name, str) or not name or "\0" in name:
        return None
    path = PurePosixPath(name)
    return None if path.is_absolute() or ".." in path.parts or path.name == RECORD else path


def _is_there(out: Path, path: PurePosixPath, kind: Callable[[int], bool]) -> bool:
    """Tell whether that kind of thing lies at `path` below `out` and no symbolic link leads to it."""
    try:
        if any(stat.S_ISLNK((out / parent).lstat().st_mode) for parent in path.parents if parent.parts):
            return False
        return kind((out / path).lstat().st_mode)
    except OSError:
        return False
