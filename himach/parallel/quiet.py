"""One voice for many ranks: `quiet_ranks` silences all but the first; `heard` notes what each warns of; `say`."""

from __future__ import annotations

import ctypes
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO


@contextmanager
def quiet_ranks(rank: int, command: bool = False) -> Iterator[None]:
    """Let rank 0 alone speak, while the context lasts.

    Parameters
    ----------
    rank
        On another rank than 0, standard output goes nowhere (that of libraries in C too) and warnings are not shown;
        standard error stays, for errors.
    command
        Whether this is the command line: on rank 0, each warning is then one line ``himach: warning: text``, once.
    """
    if rank != 0:
        with warnings.catch_warnings(), _no_stdout():
            warnings.showwarning = lambda *arguments, **options: None
            yield
    elif command:
        with warnings.catch_warnings():
            warnings.showwarning = _Once()
            yield
    else:
        yield


@contextmanager
def heard() -> Iterator[list[str]]:
    """Give the texts of the warnings that this process shows while the context lasts, each once, as they come."""
    texts: list[str] = []
    with warnings.catch_warnings():
        show = warnings.showwarning

        def note(message: Warning | str, *arguments: Any, **options: Any) -> None:
            text = " ".join(str(message).split())
            if text not in texts:
                texts.append(text)
            show(message, *arguments, **options)

        warnings.showwarning = note
        yield texts


class _Once:
    """Shows each warning's text once, on one line of standard error."""

    def __init__(self) -> None:
        self._shown: set[str] = set()

    def __call__(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        text = " ".join(str(message).split())
        if text in self._shown:
            return
        self._shown.add(text)
        stream = file or sys.stderr
        encoding = getattr(stream, "encoding", None) or "utf-8"
        say(f"himach: warning: {text}".encode(encoding, "backslashreplace").decode(encoding), stream)


def say(text: str, stream: TextIO) -> None:
    """Write a line to a stream on which a bar may be shown."""
    tqdm = sys.modules.get("tqdm")
    if tqdm is None:
        print(text, file=stream, flush=True)
    else:
        tqdm.tqdm.write(text, file=stream)  # takes a bar away, writes, and draws the bar again


@contextmanager
def _no_stdout() -> Iterator[None]:
    stdout = sys.stdout
    _flush(stdout)
    kept = os.dup(1)
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        sys.stdout = nowhere
        try:
            yield
        finally:
            _flush(nowhere)
            sys.stdout = stdout
            os.dup2(kept, 1)
            os.close(kept)


def flush_all() -> None:
    """Flush what was printed, by libraries in C too."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # user's code may have closed it
            _flush(stream)


def _flush(stream: TextIO) -> None:
    """Flush Python's and the C library's buffers, so that what was printed goes where it was printed to."""
    stream.flush()
    ctypes.CDLL(None).fflush(None)
