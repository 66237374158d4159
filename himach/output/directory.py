"""The directory of a run, ``--out``: a file per part of an outcome, plots, and run.json.

`prepare_out()` before the run, `write_run()` after it. Equal outcomes leave equal bytes. Whenever a run is killed, the
directory holds all files of an earlier run, or all of this one, or no run.json; and it may be used again.
"""

from __future__ import annotations

import json
import os
import stat
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

from himach.analysis import Analysis
from himach.errors import HimachError, UsageError
from himach.files import write_bytes
from himach.output.cells import LongCells
from himach.output.claim import FOLDER, RECORD, Claim
from himach.output.figures.drawing_process import begin_drawing
from himach.output.figures.envelope import thinned
from himach.output.figures.plots import drawn
from himach.output.formats import content, suffix, table_content
from himach.output.jsonable import to_json
from himach.output.names import unique_labels, unique_names
from himach.output.parts import parts
from himach.output.record import Record, Seconds
from himach.output.table import Table
from himach.output.table_files.csv_text import header

if TYPE_CHECKING:
    from himach.launch.helper import Helper

#: Bytes that are kept free for the record and the names of files, beside what the record takes twice.
ROOM_BYTES = 1 << 13


def prepare_out(out: str | os.PathLike[str], labels: Sequence[str] = (), force: bool = False) -> Claim:
    """Make and claim the directory of a run, before the run, so that no run ends without a place for its outcome.

    Parameters
    ----------
    out
        Directory to make, or an empty one, or an earlier run's, be it that it was killed.
    labels
        Labels of the analyses; of none, whatever an earlier run left may be replaced.
    force
        Replace what a run of other analyses left.

    Returns
    -------
    Claim
        For `write_run`; to be released after it, or when the run failed.

    Raises
    ------
    UsageError
        If it is no directory, cannot be made or written, another run writes there, it holds anything while no run.json
        of himach is there, or what is there is of other analyses, and `force` is not set.

    Warns
    -----
    UserWarning
        Of what `force` replaces.
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
        _check_earlier(out, labels, force)
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
    for folder in (*folders_of(labels), FOLDER):
        place = out / folder
        if folder and not _may_be_folder(place):
            raise UsageError(f"output directory {out}: {folder!r} in it is no directory; remove it, or name another")


def _check_earlier(out: Path, labels: Sequence[str], force: bool) -> None:
    """Refuse to replace what an earlier run of other analyses left, or tell of it."""
    record = _record_in(out) or {}
    try:
        earlier = unique_labels([entry["name"] for entry in record["analyses"]])
    except (KeyError, TypeError):  # a record that says nothing of it
        return
    files = record.get("files")
    if not labels or earlier == list(labels) or not files or not isinstance(files, list):
        return
    there = f"what {', '.join(earlier)} left there ({', '.join(map(str, files))})"
    if not force:
        raise UsageError(
            f"output directory {out}: {', '.join(labels)} would replace {there}; name another directory, or replace it "
            "by --force (force=True)"
        )
    warnings.warn(f"output directory {out}: {', '.join(labels)} replaces {there}", stacklevel=2)


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
    helper: Helper | None = None,
    units: bool = False,
    staged: Sequence[str] = (),
    tables: Sequence[str] = ("csv",),
    figures: Sequence[str] = ("png",),
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
        The record; `files` is added to what is written, and to `errors` what could not be written.
    drawing
        A context for each plot(), in which the caller may say more of its errors.
    helper
        A process that draws (`himach.output.figures.drawing_process.begin_drawing`).
    units
        Whether the headers of tables say units.
    staged
        Files that lie in ``claim.staged`` by now.
    tables
        Formats of tables, as of `himach.output.table_files.formats.table_formats`.
    figures
        Formats of pictures: ``"png"``, ``"svg"``, ``"pdf"``.

    Returns
    -------
    list of str
        Files written besides run.json, relative to the directory.

    Raises
    ------
    HimachError
        If a file cannot have its place; an earlier run's are there still, unless that place was one of theirs.

    Warns
    -----
    UserWarning
        Of an error of plot(): there is no picture then.
    """
    files: list[str] = list(staged)
    lost: list[str] = []
    folders = folders_of(labels)
    clock = _Clock(record["seconds"])
    room = claim.staged / "room"  # on a full disk, for the record and for names that are noted
    room_bytes = bytes(2 * len(to_json(record)) + ROOM_BYTES)
    if not _kept(partial(write_bytes, room, room_bytes), room.name, lost):
        record["errors"] = [
            *record["errors"],
            f"nothing could be written to {claim.out} {lost[0].partition(' ')[2]}; make room there, or name another "
            "directory, and run again",
        ]
        return []
    drawn_outcomes = map(thinned, outcomes)
    plots = [plot for plot in zip(labels, analyses, drawn_outcomes, strict=True) if plot[1].defines("plot")]
    places = [folder for folder, analysis in zip(folders, analyses, strict=True) if analysis.defines("plot")]
    finish_drawing = begin_drawing(helper, plots, figures)  # while tables are written
    for folder, label, outcome in zip(folders, labels, outcomes, strict=True):
        _make_folder(claim.staged / folder)
        written = write_outcome(outcome, label, claim.staged / folder, lost, units, tables)
        files += [str(PurePosixPath(folder, name)) for name in written]
    needed = {"matplotlib": bool(plots), "pyarrow": "parquet" in tables}  # whose versions files show
    told = {name: version(name) for name, needs in needed.items() if needs}
    record["versions"] = {**record.get("versions", {}), **told}
    clock.lap("write")
    try:
        for folder, plot, there in zip(places, plots, finish_drawing(), strict=True):
            label, analysis, _ = plot
            taken = [PurePosixPath(file).name for file in files if PurePosixPath(file).parent == PurePosixPath(folder)]
            ends = [f".{kind}" for kind in figures]
            names = [str(PurePosixPath(folder, name)) for name in unique_names([label] * len(ends), ends, taken)]
            try:
                with drawing(analysis):
                    pictures = there or drawn(plot, figures)
            except Exception as error:
                warnings.warn(f"there is no {' and no '.join(names)}: {_told(error)}", stacklevel=2)
                continue
            files += [
                name
                for name, picture in zip(names, pictures, strict=True)
                if _kept(partial(write_bytes, claim.staged / name, picture), PurePosixPath(name).name, lost)
            ]
        clock.lap("draw")
    except BaseException as error:  # Ctrl-C, by which the outcome is not lost
        room.unlink()
        _put_in_place(claim, files, record, [*record["errors"], _told(error)])
        raise
    room.unlink()
    if lost:
        record["errors"] = [
            *record["errors"],
            f"{claim.out} lacks {', '.join(lost)}; make room there, or name another directory, and run again",
        ]
    _put_in_place(claim, files, record, record["errors"])
    return files


class _Clock:
    """Notes what writing and drawing take in the seconds of a record."""

    def __init__(self, seconds: Seconds) -> None:
        self._seconds = seconds
        self._last = time.perf_counter()

    def lap(self, phase: Literal["write", "draw"]) -> None:
        """Note the time since the last lap for a phase."""
        now = time.perf_counter()
        self._seconds[phase], self._last = now - self._last, now
        self._seconds["whole"] = self._seconds["total"] + self._seconds["write"] + self._seconds["draw"]


def _put_in_place(claim: Claim, files: Sequence[str], record: Record, errors: Sequence[str]) -> None:
    """Let the staged files, and last the record, take the place of an earlier run's.

    The earlier record goes first and tells no more; which files are himach's is noted before.
    """
    out = claim.out
    write_bytes(claim.staged / RECORD, to_json({**record, "errors": errors, "files": files}))
    files_before = (_record_in(out) or {}).get("files")
    owned = [*(files_before if isinstance(files_before, list) else []), *_noted(claim.note)]
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


def _kept(write: Callable[[], None], name: str, lost: list[str]) -> bool:
    """Write a file of that name, or add to `lost` that, and why, it cannot be."""
    try:
        write()
    except HimachError as error:
        lost.append(f"{name} ({str(error).partition(' cannot be written (')[2].rstrip(')') or error})")
        return False
    return True


def write_outcome(
    outcome: Any,
    label: str,
    directory: str | os.PathLike[str],
    lost: list[str] | None = None,
    units: bool = False,
    tables: Sequence[str] = ("csv",),
) -> list[str]:
    """Write an outcome into a directory that is there; return the names of the files.

    What cannot be written is added to `lost`; without it, it is an error. The analysis's label is the name of an
    outcome that is one thing. What has no form in a file is named in a warning.
    """
    named = parts(outcome, label)
    more = [kind for kind in tables if kind != "csv"]
    pieces = [(name, thing, "") for name, thing in named]
    pieces += [(name, thing, kind) for name, thing in named if isinstance(thing, Table) for kind in more]
    written = []
    suffixes = [f".{kind}" if kind else suffix(thing) for _, thing, kind in pieces]
    files = unique_names([name for name, _, _ in pieces], suffixes, taken=[RECORD])
    for file, (name, thing, kind) in zip(files, pieces, strict=True):
        try:
            write = partial(_write, thing, name, kind, Path(directory) / file, units)
            if lost is None:
                write()
            elif not _kept(write, file, lost):
                continue
        except TypeError as error:
            advice = "" if kind else "; return a table, an array or plain values"
            what = f" as {file}" if kind else ""
            warnings.warn(f"{label}: {name!r} of the outcome was not written{what}: {error}{advice}", stacklevel=2)
            continue
        written.append(file)
    return written


def _write(thing: Any, name: str, kind: str, path: Path, units: bool) -> None:
    """Write a file of a part of an outcome, a table's of that `kind`, if it is not "", for one beside its CSV.

    Raises TypeError if the part has no such form, HimachError if the file cannot be written.
    """
    if kind:
        write_bytes(path, table_content(thing, name, kind))
    elif isinstance(thing, Table) and thing.long is not None:
        thing.long.write_table(path, header(thing, units), thing)
    elif isinstance(thing, LongCells) and thing.dtype is not None:
        thing.write_array(path)
    else:
        write_bytes(path, content(thing, units))


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


def listed_files(out: str | os.PathLike[str], names: Iterable[Any]) -> dict[str, Path]:
    """Return those of the files that lie in `out`, by name: regular files below it, through no symbolic link."""
    out = Path(out)
    found = {name: path for name in names if (path := _below(name)) is not None}
    return {name: out / path for name, path in found.items() if _is_there(out, path, stat.S_ISREG)}


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


def folders_of(labels: Sequence[str]) -> list[str]:
    """Return the folder of each analysis below a run's directory: "" of one alone."""
    return [""] * len(labels) if len(labels) < 2 else unique_names(labels, taken=[RECORD, FOLDER])


def _record_in(out: Path) -> dict[str, Any] | None:
    """Return the record of an earlier run in `out`; None if none of himach's run.json is there."""
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


def _told_by(record: bytes) -> dict[str, Any] | None:
    """Return what a run's record says; None if it is not himach's."""
    try:
        said = json.loads(record)
    except (ValueError, RecursionError):
        return None
    return said if isinstance(said, dict) and "himach" in said else None


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
