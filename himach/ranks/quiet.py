"""Messages: `say` prints and logs a line, `quiet_ranks` silences all but rank 0, `collect_warnings` records warnings.

They go to the logger ``himach``, too, and to the file ``$HIMACH_LOG``; with ``$HIMACH_VERBOSE`` details are printed.
"""

import ctypes
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, TextIO

from himach.errors import printable_lines
from himach.user_code import HIMACH

#: Most texts that are recorded of the warnings of one line of code.
MOST_TEXTS = 10

log = logging.getLogger("himach")
log.addHandler(logging.NullHandler())  # without it, logging would print warnings once more


@contextmanager
def quiet_ranks(rank: int, command: bool = False) -> Iterator[None]:
    """Let only rank 0 print and warn, while the context lasts."""
    if rank != 0:
        with warnings.catch_warnings(), _no_stdout():
            warnings.showwarning = lambda *arguments, **options: None
            yield
    elif command:
        with warnings.catch_warnings():
            warnings.showwarning = _once()
            yield
    else:
        yield


@contextmanager
def collect_warnings() -> Iterator[list[str]]:
    """Yield a list that gets the texts of warnings; of those of one line of others' code show the first and a count."""
    texts: list[str] = []
    kinds: dict[tuple[Any, ...], list[Any]] = {}  # first warning of each kind, and their number
    with warnings.catch_warnings():
        show = warnings.showwarning

        def note(
            message: Warning | str, category: type[Warning], filename: str, *arguments: Any, **options: Any
        ) -> None:
            text = " ".join(str(message).split())
            kind = (category, filename, *arguments[:1], text if filename.startswith(HIMACH) else "")
            first = kinds.setdefault(kind, [(message, category, filename, *arguments), 0])
            first[1] += 1
            if first[1] <= MOST_TEXTS and text not in texts:
                texts.append(text)
            if first[1] == 1:
                show(message, category, filename, *arguments, **options)

        warnings.showwarning = note
        try:
            yield texts
        finally:
            for (message, *arguments), count in kinds.values():
                if count > 1:
                    show(UserWarning(f"{count - 1:,} more like this: {message}"), *arguments)


def _once() -> Callable[..., None]:
    """Return a warning hook that prints each text once, on one line of standard error."""
    printed: set[str] = set()

    def show(message: Warning | str, *place: Any, **options: Any) -> None:
        text = " ".join(str(message).split())
        if text not in printed:
            printed.add(text)
            encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
            line = printable_lines(f"himach: warning: {text}")
            say(line.encode(encoding, "backslashreplace").decode(encoding), sys.stderr, logging.WARNING)

    return show


class _LogFile(logging.FileHandler):
    """Log file; where it cannot be written, say so once and go on without it."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        log.removeHandler(self)
        print(f"himach: HIMACH_LOG: {self.baseFilename}: {sys.exc_info()[1]}", file=sys.stderr, flush=True)
        with suppress(OSError):  # of what is not written
            self.close()


@cache
def open_log() -> None:
    """Let messages of this process go to the log file, and details to standard error, as the environment says."""
    handlers: list[logging.Handler] = []
    if path := os.environ.get("HIMACH_LOG"):
        try:
            handlers.append(_LogFile(path, encoding="utf-8", errors="backslashreplace"))
            handlers[0].setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        except OSError as error:
            print(f"himach: HIMACH_LOG: {path}: {error.strerror}", file=sys.stderr, flush=True)
    if os.environ.get("HIMACH_VERBOSE"):
        handlers.append(logging.StreamHandler())
        handlers[-1].addFilter(lambda record: record.levelno < logging.INFO)  # others are printed anyway
    for handler in handlers:
        log.addHandler(handler)
        log.setLevel(logging.DEBUG)


def log_detail(rank: int, text: str) -> None:
    """Log what rank 0 has done."""
    if rank == 0:
        open_log()
        log.debug(text)


def say(text: str, stream: TextIO, level: int = logging.INFO) -> None:
    """Write a line to a stream that may show a bar, and log it."""
    open_log()
    log.log(level, text.strip().removeprefix("himach: ").removeprefix("warning: ").removeprefix("error: "))
    tqdm = sys.modules.get("tqdm")
    if tqdm is None:
        print(text, file=stream, flush=True)
    else:
        tqdm.tqdm.write(text, file=stream)  # clears a bar, writes, and redraws the bar


@contextmanager
def _no_stdout() -> Iterator[None]:
    stdout = sys.stdout
    _flush(stdout)
    saved = os.dup(1)
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        sys.stdout = nowhere
        try:
            yield
        finally:
            _flush(nowhere)
            sys.stdout = stdout
            os.dup2(saved, 1)
            os.close(saved)


def _flush(stream: TextIO) -> None:
    """Flush Python's and the C library's buffers, so that earlier output goes where it was printed to."""
    with suppress(OSError, ValueError, AttributeError):  # user code may have closed it
        stream.flush()
    ctypes.CDLL(None).fflush(None)
