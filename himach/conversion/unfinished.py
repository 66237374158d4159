"""A conversion whose time was over: its file under another name, with what the rest needs behind its bytes.

The file is renamed once to be kept and once to be taken up, so that one conversion goes on, and what is kept is whole.
"""

from __future__ import annotations

import fcntl
import io
import os
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.conversion.target import NAME, Target, cannot_write

__all__ = ["Unfinished", "kept_name", "take"]

LENGTH = 8  # bytes at the end that tell how many the state has


@dataclass(frozen=True)
class Unfinished:
    """How far a conversion is.

    Attributes
    ----------
    frames
        So many frames are written.
    n_bytes
        So many bytes they take.
    moved
        By how much each followed atom has jumped up to the last of them: (n, 3), n is 0 where none is followed.
    """

    frames: int
    n_bytes: int
    moved: npt.NDArray[np.int64]

    def keep(self, target: Target, identity: str) -> None:
        """Keep a file, of which all ranks have synced what they wrote, for a conversion of the same identity.

        Raises
        ------
        HimachError
            If the disk is full, or fails.
        """
        state = io.BytesIO()
        np.savez(state, identity=identity, frames=self.frames, n_bytes=self.n_bytes, moved=self.moved)
        target.write(self.n_bytes, [state.getvalue(), len(state.getvalue()).to_bytes(LENGTH, "little")])
        target.sync()
        target.take_name(kept_name(target.path))


def kept_name(path: Path) -> Path:
    """Return the name under which the file is kept until it is finished."""
    return path.with_name(f".himach-unfinished.{path.name[-NAME:]}")


def take(path: Path, temporary: Path, identity: Callable[[], str], stack: ExitStack) -> Unfinished | None:
    """Return how far an earlier conversion of this identity is, whose file is now `temporary`; None if there is none.

    What is kept of another conversion is deleted. Until `stack` ends, others take the file for one that is in use.
    """
    try:
        file = stack.enter_context(open(kept_name(path), "r+b"))  # noqa: SIM115 - the stack closes it
        with suppress(OSError):  # some file systems have no locks
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        os.rename(kept_name(path), temporary)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise cannot_write(path, error) from error
    try:
        state = _state(file)
        if str(state["identity"]) == identity():
            found = Unfinished(int(state["frames"]), int(state["n_bytes"]), state["moved"])
            file.truncate(found.n_bytes)
            return found
    except (OSError, ValueError, KeyError, EOFError):
        pass  # of another version, or damaged
    with suppress(OSError):
        temporary.unlink()
    return None


def _state(file: Any) -> dict[str, Any]:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - LENGTH))
    length = int.from_bytes(file.read(LENGTH), "little")
    if not 0 < length <= size - LENGTH:
        raise ValueError("no state")
    file.seek(size - LENGTH - length)
    with np.load(io.BytesIO(file.read(length)), allow_pickle=False) as arrays:
        return dict(arrays)
