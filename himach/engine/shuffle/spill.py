"""Blocks on disk: `Scratch` is a rank's file for pairs that exceed its memory; `spill()` writes blocks to it.

The file is unlinked right after it is opened, in a separate directory of mode 0700: nobody else can read or change it,
and nothing remains however the process ends. So its objects may be pickles.
"""

from __future__ import annotations

import errno
import os
import pickle
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from himach.engine.pairs.block import Array, Block, Raw, raw
from himach.engine.pairs.values import dumps
from himach.engine.shuffle.block_file import FileBlock, write_block
from himach.engine.shuffle.stack import MergedBlocks
from himach.errors import HimachError


class SpillError(HimachError):
    """Pairs could not be written to disk or read back."""


class Scratch:
    """An unnamed file in a directory on a local disk of this node; the directory is created if it is missing."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.size = 0
        try:
            directory.mkdir(parents=True, exist_ok=True)
            own = tempfile.mkdtemp(prefix="himach-pairs-", dir=directory)
            try:
                self._file = tempfile.TemporaryFile(dir=own, buffering=0)  # noqa: SIM115 - open until close()
            finally:
                os.rmdir(own)
        except OSError as error:
            self._fail("cannot be written there", error)

    def append(self, data: bytes | Raw) -> int:
        """Append `data`; return its offset."""
        start, rest = self.size, memoryview(data)
        try:
            while rest:
                count = os.pwrite(self._file.fileno(), rest, self.size)
                self.size, rest = self.size + count, rest[count:]
        except OSError as error:
            self._fail("cannot be written", error)
        return start

    def add(self, name: str, column: Array) -> int:
        """Write a column; return the offset of its first row."""
        return self.append(raw(column))

    def add_pieces(self, name: str, dtype: np.dtype[Any], shape: Sequence[int], pieces: Iterable[Array]) -> int:
        """Write a column that comes in pieces; return the offset of its first row."""
        start = self.size
        for piece in pieces:
            self.append(raw(piece))
        return start

    def spill(self, stack: MergedBlocks) -> FileBlock:
        """Write blocks of one kind as one block."""
        return write_block(self, "", stack, self)

    def check(self, block: Block) -> None:
        """Trust a block that this process wrote."""

    def pack(self, values: list[Any]) -> bytes:
        """Return some rows of Python objects as bytes."""
        return dumps(values)

    def unpack(self, data: Raw, rows: int) -> list[Any]:
        """Return the Python objects of some rows."""
        values: list[Any] = pickle.loads(data)
        return values

    def read(self, at: int, target: Raw) -> None:
        """Fill `target` from byte `at`."""
        rest = memoryview(target)
        try:
            while rest:
                count = os.preadv(self._file.fileno(), [rest], at)
                if not count:
                    raise OSError(errno.EIO, "the file ends early")
                at, rest = at + count, rest[count:]
        except OSError as error:
            self._fail("cannot be read back", error)

    def close(self) -> None:
        """Close the file, which frees its space."""
        with suppress(OSError):  # of what was not written for want of space
            self._file.close()

    def _fail(self, what: str, error: OSError) -> NoReturn:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise SpillError(
            f"pairs that do not fit into memory {what}, in {self.directory}: {error.strerror or error}; "
            + ("free space there, " if full else "")
            + "name a directory on a larger local disk by TMPDIR, or let himach use more memory (`memory`)"
        ) from error
