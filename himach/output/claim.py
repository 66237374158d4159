"""A directory that one run writes to: `Claim`, held by a lock from before the run until its outcome is there.

In the directory lies a folder ``.himach`` as long as a run is under way: its lock, the files that it is about to leave,
and which files of the directory are himach's to remove. A killed run leaves that folder, and no lock.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from types import TracebackType

from himach.errors import UsageError
from himach.locks import HeldError, Lock

FOLDER = ".himach"
LOCK = "lock"
RECORD = "run.json"
#: Folder for what is to appear in the directory.
STAGED = "new"
#: Folder for what this run keeps for the next, if it does not end well.
PAIRS = "pairs"


class Claim:
    """The right to write to a directory; to be released.

    Attributes
    ----------
    out
        The directory.
    folder
        ``.himach`` in it.
    staged
        A folder in that one for what is to appear in the directory.
    note
        A file in it for what an unfinished exchange of files may have left in the directory.
    pairs
        A folder in it for the pairs of a run that takes long; it stays when the claim is released.

    Raises
    ------
    UsageError
        If another run has it.
    OSError
        If it cannot be written.
    """

    def __init__(self, out: Path) -> None:
        self.out = out
        self.folder = out / FOLDER
        self.staged = self.folder / STAGED
        self.note = self.folder / "owned.json"
        self.pairs = self.folder / PAIRS
        try:
            self._lock = Lock(self.folder / LOCK)
        except HeldError as error:
            raise UsageError(
                f"output directory {self.out}: another run writes there ({error}); wait for its end, or name another "
                "directory"
            ) from None
        try:
            shutil.rmtree(self.staged, ignore_errors=True)  # a killed run's
            self.staged.mkdir()
        except OSError:
            self.release()
            raise

    def release(self) -> None:
        """Let others have it; what is staged goes, and the folder where the directory is known as a run's without."""
        if not self._lock.held:
            return
        shutil.rmtree(self.staged, ignore_errors=True)
        with contextlib.suppress(OSError):
            for path in {*self.folder.iterdir()} - {self.folder / LOCK, self.note, self.pairs}:
                path.unlink()  # what a killed run was writing
            known = (self.out / RECORD).exists() or os.listdir(self.out) == [FOLDER]
            if known and not self.note.exists():
                self._lock.remove()
        self._lock.release()
        with contextlib.suppress(OSError):
            self.pairs.rmdir()  # if there are none
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    def __enter__(self) -> Claim:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()
