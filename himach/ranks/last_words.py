"""Last words of a rank, in memory that outlives it: frame and faulthandler's lines, for the message about its death."""

import faulthandler
import linecache
import mmap
import os
import re
import signal
from collections.abc import Iterator

from himach.errors import format_place
from himach.user_code import is_user_code

PLACE = 1 << 17  # bytes a rank; faulthandler's hundred lines, of 500 characters at most, take less
PAGE = mmap.ALLOCATIONGRANULARITY  # bytes of these for the frame
LINE = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
ESCAPED = re.compile(r"\\x(..)|\\u(....)|\\U(.{8})")  # how faulthandler writes non-ASCII characters

_page = memoryview(bytearray(PAGE)).cast("q")


def frame_cell() -> "memoryview[int]":
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


def death_message(status: int, ranks: int, file: int, rank: int | None) -> str:
    """Return a message on ranks that ended without an error or a result; `rank` is the first, None if unknown."""
    who = "a rank" if rank is None else f"rank {rank}"
    frame = None if rank is None else _frame_at(file, rank)
    at = "" if frame is None else f" at frame {frame}"
    rest = f", and the other ranks of {ranks} were ended" if ranks > 1 else ""
    if status == 0:
        return (
            f"{who} ended by itself{at} with exit code 0 before the work of the {ranks} ranks was done; code that it "
            "called must have ended it"
        )
    number = -status if status < 0 else status - 128
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"{who} ended by itself{at} with exit code {status}{rest}; what it or its MPI library printed is above"
    hint = "; the kernel does that when memory runs out: try fewer ranks" if name == "SIGKILL" else ""
    line = "" if rank is None else _last_line(file, rank)
    return f"{who} was killed by signal {number} ({name}){at}{rest}{hint}{line}"


def _last_line(file: int, rank: int) -> str:
    """Return the innermost line of user code with known text where a rank died, on a new line."""
    places = [place for place in _lines_at(file, rank) if is_user_code(place[0])]
    place = next((place for place in places if linecache.getline(*place[:2])), places[0] if places else None)
    return "" if place is None else f"\n  {format_place(*place)}"


def _frame_at(file: int, rank: int) -> int | None:
    """Return the number of a rank's current frame; None if it was at none."""
    number = int.from_bytes(os.pread(file, 8, rank * PLACE), "little") - 1
    return None if number < 0 else number


def _lines_at(file: int, rank: int) -> Iterator[tuple[str, int, str]]:
    """Yield the lines where a rank died, as file, line and function, innermost first; nothing if it left none."""
    text = os.pread(file, PLACE - PAGE, rank * PLACE + PAGE).decode(errors="replace")
    for name, line, function in LINE.findall(text):
        yield _unescaped(name), int(line), _unescaped(function)


def _unescaped(text: str) -> str:
    return ESCAPED.sub(lambda match: chr(int("".join(group or "" for group in match.groups()), 16)), text)
