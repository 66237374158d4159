"""The output directory during a run: `prepare_out()` makes it, `Claim` is the right to write to it.

During a run the directory has a folder ``.himach``: its lock, files not yet published, and a list of the files that
himach may remove. A killed run leaves that folder without a lock.
"""

import contextlib
import json
import os
import shutil
import stat
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from himach.errors import UsageError
from himach.locks import HeldError, Lock
from himach.output.file_names import unique_names

FOLDER = ".himach"
LOCK = "lock"
RECORD = "run.json"
#: Folder of files that are not yet in the directory.
STAGED = "new"
#: Folder of pairs kept for the next run if this one fails.
PAIRS = "pairs"


class Claim:
    """The right to write to a directory, held by a lock until released."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.folder = out / FOLDER
        self.staged = self.folder / STAGED
        self.note = self.folder / "owned.json"
        self.pairs = self.folder / PAIRS
        self.earlier_files: list[Any] = []  # those of the record that is there
        self.staged_files: Sequence[str] = ()  # those that are staged before the outcomes
        try:
            self._lock = Lock(self.folder / LOCK)
        except HeldError as error:
            raise UsageError(
                f"output directory {self.out}: another run writes there ({error}); wait for its end, or name another "
                "directory"
            ) from None
        try:
            shutil.rmtree(self.staged, ignore_errors=True)  # left by a killed run
            self.staged.mkdir()
        except OSError:
            self.release()
            raise

    def release(self) -> None:
        """Release the lock; remove staged files, and the folder if the directory is known as a run's without it."""
        if not self._lock.held:
            return
        shutil.rmtree(self.staged, ignore_errors=True)
        with contextlib.suppress(OSError):
            for path in {*self.folder.iterdir()} - {self.folder / LOCK, self.note, self.pairs}:
                path.unlink()  # partial files of a killed run
            is_run = (self.out / RECORD).exists() or os.listdir(self.out) == [FOLDER]
            if is_run and not self.note.exists():
                self._lock.remove()
        self._lock.release()
        with contextlib.suppress(OSError):
            self.pairs.rmdir()  # if empty
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    def __enter__(self) -> "Claim":
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


def prepare_out(out: str | os.PathLike[str], labels: Sequence[str] = (), force: bool = False) -> Claim:
    """Make and claim the output directory before the run, so that no run ends without a place for its outcome."""
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
        _check(out, labels)  # again, as no other run can change it now
        claim.earlier_files = _check_earlier(out, labels, force)
    except BaseException:
        claim.release()
        raise
    return claim


def _check(out: Path, labels: Sequence[str]) -> None:
    """Raise UsageError if `out` holds files that are not an earlier run's."""
    entries = os.listdir(out)  # one snapshot: a run has its folder there until its record is
    if entries and FOLDER not in entries and (RECORD not in entries or _is_foreign(out / RECORD)):
        raise UsageError(
            f"output directory {out} is neither empty nor an earlier run's (no {RECORD} of himach in it); "
            "name another directory, or empty this one"
        )
    for folder in (*unique_folders(labels), FOLDER):
        if folder and not _may_be_folder(out / folder):
            raise UsageError(f"output directory {out}: {folder!r} in it is no directory; remove it, or name another")


def _check_earlier(out: Path, labels: Sequence[str], force: bool) -> list[Any]:
    """Return the files of an earlier run; raise UsageError, or warn if `force`, if they are of other analyses."""
    record = find_record(out) or {}
    files = record.get("files")
    if not isinstance(files, list):
        return []
    try:
        earlier = unique_names([entry["name"] for entry in record["analyses"]])
    except (KeyError, TypeError):  # a record without analyses
        return files
    if not labels or earlier == list(labels) or not files:
        return files
    items = f"what {', '.join(earlier)} left there ({', '.join(map(str, files))})"
    if not force:
        raise UsageError(
            f"output directory {out}: {', '.join(labels)} would replace {items}; name another directory, or replace it "
            "by --force (force=True)"
        )
    warnings.warn(f"output directory {out}: {', '.join(labels)} replaces {items}", stacklevel=2)
    return files


def _may_be_folder(path: Path) -> bool:
    """Tell whether `path` is a directory and no link, or missing; in one call, as other runs make and remove it."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except FileNotFoundError:
        return True


def unique_folders(labels: Sequence[str]) -> list[str]:
    """Return the folder of each analysis below a run's directory; "" for a single one."""
    return [""] * len(labels) if len(labels) < 2 else unique_names(labels, taken=[RECORD, FOLDER])


def find_record(out: Path) -> dict[str, Any] | None:
    """Return the record of an earlier run in `out`; None if no run.json of himach is there."""
    try:
        return _parse_record((out / RECORD).read_bytes())
    except OSError:
        return None


def _is_foreign(record: Path) -> bool:
    """Tell whether run.json is not himach's; a missing one is himach's: another run has begun to replace it."""
    try:
        return _parse_record(record.read_bytes()) is None
    except FileNotFoundError:
        return record.is_symlink()
    except OSError:
        return True


def _parse_record(content: bytes) -> dict[str, Any] | None:
    try:  # what it says of data may be of very many members
        record = json.loads(content, object_hook=lambda part: None if "fingerprint" in part else part)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and "himach" in record else None
