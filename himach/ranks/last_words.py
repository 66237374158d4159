"""Last words of a rank, in memory that outlives it: its current frame, and faulthandler's lines on its death."""

from __future__ import annotations

import faulthandler
import mmap
import os
import re
import signal
from collections.abc import Iterator

PLACE = 1 << 17  # bytes a rank; faulthandler's hundred lines, of 500 characters at most, take less
PAGE = mmap.ALLOCATIONGRANULARITY  # bytes of these for the frame
TITLE = re.compile("^Fatal Python error: (.*)$", re.MULTILINE)
LINE = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
ESCAPED = re.compile(r"\\x(..)|\\u(....)|\\U(.{8})")  # how faulthandler writes non-ASCII characters

_page = memoryview(bytearray(PAGE)).cast("q")


def frame_cell() -> memoryview[int]:
    """Return the cell for this process's current frame: the frame's number plus 1, or 0."""
    return _page


def write_to(path: str, rank: int) -> None:
    """Let this process, which is `rank`, leave its last words in a file."""
    global _page
    file = os.open(path, os.O_RDWR)
    _page = memoryview(mmap.mmap(file, PAGE, offset=rank * PLACE)).cast("q")
    os.lseek(file, rank * PLACE + PAGE, os.SEEK_SET)
    faulthandler.enable(file, all_threads=False)
    os.register_at_fork(after_in_child=_be_silent)


def _be_silent() -> None:
    """Write nothing in a child that user code forked: the place is the rank's."""
    global _page
    _page = memoryview(bytearray(PAGE)).cast("q")
    faulthandler.disable()


def frame_at(file: int, rank: int) -> int | None:
    """Return the number of a rank's current frame; None if it was at none."""
    number = int.from_bytes(os.pread(file, 8, rank * PLACE), "little") - 1
    return None if number < 0 else number


def signal_at(file: int, rank: int) -> int:
    """Return the signal at which a rank wrote its lines; 0 if it did not."""
    title = TITLE.search(_text(file, rank))
    named = {signal.strsignal(number): number for number in signal.valid_signals()}
    return 0 if title is None else named.get(title[1].replace("-", " "), 0)


def lines_at(file: int, rank: int) -> Iterator[tuple[str, int, str]]:
    """Yield the lines where a rank died, as file, line and function, innermost first; nothing if it left none."""
    for name, line, function in LINE.findall(_text(file, rank)):
        yield _unescaped(name), int(line), _unescaped(function)


def _text(file: int, rank: int) -> str:
    return os.pread(file, PLACE - PAGE, rank * PLACE + PAGE).decode(errors="replace")


def _unescaped(text: str) -> str:
    return ESCAPED.sub(lambda match: chr(int("".join(group or "" for group in match.groups()), 16)), text)
