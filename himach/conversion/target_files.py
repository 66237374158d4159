"""Files that a conversion writes, any rank at any offset; they have temporary names until all is on disk."""

import fcntl
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from himach.errors import HimachError, UsageError
from himach.files import write_through

#: Characters of a file's name kept in its temporary name: names are limited to 255.
NAME_LENGTH = 200


@dataclass(frozen=True)
class Converted:
    """What was written: the trajectory, its topology, how many frames of how many atoms, what was done to them.

    Of an ensemble these are the names with ``{member}`` in them, all frames, and the atoms of the largest.

    Attributes
    ----------
    path, topology
        The files; the first may be a dataset, ``himach://NAME``.
    frames, atoms, n_bytes, seconds
        How many; bytes of the trajectory; seconds that it took.
    done, warnings
        What was done to frames, and what was warned of.
    members
        Of an ensemble the same of each member, by name.
    """

    path: Path
    topology: Path
    frames: int
    atoms: int
    n_bytes: int
    seconds: float
    done: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    members: "Mapping[str, Converted]" = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What the trajectory goes by: its path, or ``himach://NAME``."""
        return display_path(self.path)

    def __str__(self) -> str:
        speed = f"{self.n_bytes / 1e6:.3g} MB, {self.n_bytes / 1e6 / self.seconds:.3g} MB/s"
        count = f"{len(self.members):,} members, " * bool(self.members)
        lines = [f"{self.name}: {count}{self.frames} frames of {self.atoms} atoms, {speed} (topology: {self.topology})"]
        return "\n".join([*lines, *["; ".join(self.done)] * bool(self.done)])


def parse_dataset_name(path: Path) -> str:
    """Return the dataset named by ``himach://NAME``, "" for a file; raises UsageError for an invalid name."""
    scheme, colon, rest = os.fspath(path).partition(":")
    if scheme != "himach" or not colon or rest[:1] not in ("", "/"):
        return ""
    name = rest.lstrip("/")  # `Path` has removed one of the slashes
    if "/" in name or not name.strip("."):
        raise UsageError(f"himach://{name} names no dataset: a conversion makes himach://NAME, as in himach://run8")
    return name


def display_path(path: Path) -> str:
    """Return a path for messages, or ``himach://NAME``."""
    dataset = parse_dataset_name(path)
    return f"himach://{dataset}" if dataset else str(path)


def check_target(path: Path, inputs: Sequence[Path], force: bool) -> None:
    """Raise UsageError if a path is an input, or exists without `force`."""
    if parse_dataset_name(path):
        return  # datasets are never overwritten
    for source in inputs:
        with suppress(OSError):
            if os.path.samefile(source, path) or (source.is_dir() and os.path.samefile(source, path.parent)):
                raise UsageError(f"{path} is what is read; write to another file")
    if path.is_dir():
        raise UsageError(f"{path} is a directory; name a file in it")
    if os.path.lexists(path) and not force:
        raise UsageError(f"{path} is there already; --force (force=True) replaces it")
    if not path.parent.is_dir():
        raise UsageError(f"{path}: there is no directory {path.parent}")


def cannot_write(path: Path, error: OSError) -> HimachError:
    """Return an error that names the file."""
    return HimachError(f"{display_path(path)} cannot be written ({error.strerror or error})")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Name the file if the body fails with an error of the system."""
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error) from error


def make_file(path: Path) -> Path:
    """Create an empty temporary file beside `path`; delete leftovers of killed conversions; return its name."""
    remove_leftovers(path)
    temporary = path.with_name(f".himach-{os.urandom(4).hex()}.{path.name[-NAME_LENGTH:]}")
    with writing(path):
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666))
    return temporary


def remove_leftovers(path: Path) -> None:
    """Delete leftovers of killed conversions to the same file."""
    name = re.compile(r"\.himach-[0-9a-f]{8}\." + re.escape(path.name[-NAME_LENGTH:]))
    with suppress(OSError):
        for leftover in path.parent.iterdir():
            if name.fullmatch(leftover.name):
                with suppress(OSError), open(leftover, "r+b") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # no conversion holds it
                    leftover.unlink()


@contextmanager
def removing_leftovers(paths: Iterable[Path | None]) -> Iterator[None]:
    """Delete leftovers of killed processes if the body fails."""
    try:
        yield
    except BaseException:
        for path in filter(None, paths):
            remove_leftovers(path)
        raise


def remove_files(paths: Iterable[Path]) -> None:
    """Delete files, ignoring errors."""
    for path in paths:
        with suppress(OSError):
            path.unlink()


class ConversionTarget:
    """A file named `temporary` until all is written, then renamed to `path` in the same folder."""

    def __init__(self, path: Path, temporary: Path, apart: bool = False) -> None:
        self.path = path
        self.temporary = temporary
        with writing(path):
            self.file = os.open(temporary, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC | write_through(apart))
        with suppress(OSError):  # some file systems have no locks
            fcntl.flock(self.file, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def write(self, offset: int, buffers: Sequence[Any]) -> None:
        """Write buffers consecutively from a byte offset on."""
        pending = memoryview(b"".join(buffers))
        with writing(self.path):
            while pending:
                written = os.pwrite(self.file, pending, offset)
                offset, pending = offset + written, pending[written:]

    def sync(self) -> None:
        """Sync this rank's writes to disk."""
        with writing(self.path):
            os.fsync(self.file)

    def take_name(self) -> None:
        """Rename the file to its path; on one rank, after all have synced."""
        with writing(self.path):
            os.replace(self.temporary, self.path)
            folder = os.open(self.path.parent, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def close(self) -> None:
        """Close the file."""
        os.close(self.file)
