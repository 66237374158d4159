"""Digests of files that an analysis opens while its modules are loaded, in setup() and in map().

A Python audit hook reports every opened file, except those that C code opens by itself.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import source_from_cache
from types import FrameType
from typing import Any

from himach.analysis import MAPPING
from himach.files import content_digest
from himach.user_code import is_installed, is_user_code

#: Audit events whose first argument is a file.
_EVENTS = frozenset({"open", "sqlite3.connect", "ctypes.dlopen"})
#: Suffixes of files that MDAnalysis writes next to trajectories.
_ASIDE = ("_offsets.npz", ".lock")

_watching: list[OpenedFiles] = []


class OpenedFiles:
    """Records opened files."""

    def __init__(self, ignored: Iterable[str] = ()) -> None:
        self.digests: dict[str, str] = {}
        self.mapping: Sequence[Mapping[str, Any]] = ()  # attributes of each analysis; MAPPING tells whether map() runs
        self._ignored = frozenset(map(os.path.realpath, ignored))
        self._recording = False
        self._busy = False

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record what is opened inside."""
        self._recording = True
        with self.watching():
            try:
                yield
            finally:
                self._recording = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Record what map() opens inside."""
        if not _hooked:
            _hooked.append(True)
            sys.addaudithook(_hook)
        _watching.append(self)
        try:
            yield
        finally:
            _watching.remove(self)

    def note(self, file: Any, mode: Any = "r", flags: Any = 0, *_: Any) -> None:
        """Record a file if the analysis reads it."""
        if self._busy or not (self._recording or any(state.get(MAPPING) for state in self.mapping)):
            return
        if isinstance(file, int) or (isinstance(flags, int) and flags & os.O_ACCMODE == os.O_WRONLY):
            return
        self._busy = True  # ignores what this method opens
        try:
            path = os.path.realpath(os.fsdecode(file))
            opener = sys._getframe(2)
            importing = opener.f_code.co_filename.startswith("<frozen importlib")
            if importing and self._recording:  # modules loaded before map() are in the fingerprint
                return
            if importing and path.endswith(".pyc"):
                path = source_from_cache(path)
            aside = path in self.digests or path in self._ignored or path.endswith(_ASIDE) or is_installed(path)
            for_traceback = opener.f_globals.get("__name__") in ("linecache", "tokenize")  # the lines of a traceback
            aside |= for_traceback and path.endswith(".py")
            if not aside and stat.S_ISREG(os.stat(path).st_mode) and _is_analysis(opener):
                self.digests[path] = content_digest(path)
        except (OSError, TypeError, ValueError):
            return
        finally:
            self._busy = False


def _is_analysis(frame: FrameType | None) -> bool:
    """Return whether user code opens the file, directly or through libraries, rather than himach."""
    while frame is not None:
        module = frame.f_globals.get("__name__") or ""
        if f"{module}.".startswith("himach.") and not module.startswith("himach.examples"):
            return False
        if is_user_code(frame.f_code.co_filename):
            return True
        frame = frame.f_back
    return False


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _watching and event in _EVENTS:
        for files in _watching:
            files.note(*arguments)


_hooked: list[bool] = []
