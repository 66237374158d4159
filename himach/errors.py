"""The errors that himach raises, each with the exit code of the command; `HimachError` is the root."""

import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FrameType, MappingProxyType, TracebackType
from typing import ParamSpec, TypeVar

from himach.user_code import is_user_code

CO_VARKEYWORDS = 0x08  # as in inspect, whose import takes longer than a start may

P = ParamSpec("P")
R = TypeVar("R")


class HimachError(Exception):
    """Root of himach's errors; its text is complete: what was wrong, where, and what to do."""

    exit_code = 1

    def _render_traceback_(self) -> list[str]:
        """Return the traceback for IPython and notebooks: the user's own lines, and the text."""
        shell = sys.modules["IPython"].get_ipython()
        show: Callable[..., list[str]] = shell.InteractiveTB.structured_traceback
        if os.environ.get("HIMACH_DEBUG"):
            return show(type(self), self, self.__traceback__, tb_offset=1)
        bare_error = type(self)(str(self))  # without causes, which are in the text
        own: TracebackType | None = None
        for frame, instruction, line in reversed(list(_users_frames(self))):
            own = TracebackType(own, frame, instruction, line)
        if own is None:
            return [f"{type(self).__name__}: {self}"]
        return show(type(self), bare_error, own, tb_offset=0)


#: OS errors that usually mean a wrong path by the user.
MISPLACED = (PermissionError, FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError)


class UsageError(HimachError, ValueError):
    """An argument, parameter or path that cannot be used."""

    exit_code = 2


class TrajectoryError(HimachError):
    """Trajectory or topology data that cannot be used: damaged, not fitting, not ordered."""


class RankError(HimachError):
    """Ranks that could not be started, do not fit the launcher, or died."""


class TimeUpError(HimachError):
    """The time that was given is over before all frames are mapped; what is mapped is kept, and a new run goes on."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h: try again


class StoreError(HimachError):
    """Root of the frame store's errors; a run may continue, because it never depends on cached data."""


class StoreFullError(StoreError):
    """No space or quota is left in a frame store; what was being written is undone."""


class StoreConflictError(StoreError):
    """What is there is of another simulation: a frame of the same number with other content, or the whole dataset."""


class ServerUnreachableError(StoreError):
    """No server of a frame store answers in time."""


class AnalysisError(HimachError):
    """A method of an analysis raised, or asked for something that himach refuses.

    The exception that the method raised is the ``__cause__`` where this error was raised; over a process boundary only
    the text travels.
    """


class StateError(AnalysisError):
    """A map() keeps state, or it cannot be checked whether it does: an error of the analysis, for any frames."""


class Interruption(BaseException):
    """A signal asked this process to end; nothing catches it between the signal handler and the command's end."""


def cell_name(filename: str) -> str | None:
    """Return a notebook's name for the cell with this file name; None for any other file."""
    import linecache

    entry = linecache.cache.get(filename, ())
    if len(entry) == 4 and entry[3].startswith("Cell In["):  # set by the process that started this rank
        return str(entry[3])
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    named = None if shell is None else shell.compile.format_code_name(filename)
    return None if named is None else " ".join(named)


def format_place(filename: str, line: int, function: str) -> str:
    """Return the location of a line of code for messages, with its text."""
    import linecache

    text = linecache.getline(filename, line).strip()
    display_path = cell_name(filename) or filename.removeprefix(os.path.join(os.getcwd(), ""))
    return f"{display_path}, line {line}, in {function}" + (f": {text}" if text else "")


def _users_frames(error: BaseException | None) -> Iterator[tuple[FrameType, int, int]]:
    """Yield the user's frames of an error and its causes, without those of himach, Python and notebooks."""
    while error is not None:
        traceback = error.__traceback__
        while traceback is not None:
            is_himach = traceback.tb_frame.f_globals.get("__name__", "").partition(".")[0] == "himach"
            if not is_himach and is_user_code(traceback.tb_frame.f_code.co_filename):
                yield traceback.tb_frame, traceback.tb_lasti, traceback.tb_lineno
            traceback = traceback.tb_next
        error = error.__cause__


def nearest(name: str, candidates: Iterable[str]) -> str:
    """Return a hint ``; did you mean 'x'?`` for a mistyped name, or the list of known names."""
    import difflib

    names = sorted(candidates)
    close = difflib.get_close_matches(name, names, n=3)
    if close:
        exchanged = [match for match in close if sorted(match) == sorted(name)]  # same letters: rmds for rmsd
        return f"; did you mean {(exchanged or close)[0]!r}?"
    return f"; there is {', '.join(names)}" if names else ""


def unknown_argument(
    function: str, name: str, names: Iterable[str], instead: Mapping[str, str] = MappingProxyType({})
) -> UsageError:
    """Return an error about an argument that a function does not take; `instead` has hints by name."""
    meant = {**dict.fromkeys(("n", "n_workers", "n_jobs"), "did you mean 'ranks'?"), **instead}.get(name)
    return UsageError(f"{function}() has no argument {name!r}{f'; {meant}' if meant else nearest(name, names)}")


def checks_arguments(function: Callable[P, R], instead: Mapping[str, str] = MappingProxyType({})) -> Callable[P, R]:
    """Make a function reject unknown arguments with a hint at the right one, and show an interrupt as one line."""
    code = function.__code__
    argument_names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    takes_others = bool(code.co_flags & CO_VARKEYWORDS)  # and refuses unknown ones itself

    @functools.wraps(function)
    def call(*arguments: P.args, **options: P.kwargs) -> R:
        for name in options:
            if not takes_others and name not in argument_names:
                raise unknown_argument(function.__name__, name, argument_names, instead)
        try:
            return function(*arguments, **options)
        except KeyboardInterrupt as error:
            if not os.environ.get("HIMACH_DEBUG"):
                lines = [f"KeyboardInterrupt: {function.__name__}() was interrupted"]
                error.__dict__["_render_traceback_"] = lambda: lines
            raise

    return call


def printable(text: str) -> str:
    """Return text that is safe for a terminal: control characters are escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)


def printable_lines(text: str) -> str:
    """Return text of several lines as `printable` ones."""
    return "\n".join(map(printable, text.split("\n")))


def error_text(error: BaseException) -> str:
    """Return an exception's text, even if its __str__() raises."""
    try:
        return str(error)
    except Exception as another:
        return f"its text cannot be shown, for __str__() raises {type(another).__name__}"


def as_himach(error: BaseException) -> HimachError:
    """Return `error` if it is a HimachError; else a HimachError that says what happened and where."""
    if isinstance(error, HimachError):
        return error
    import errno
    import traceback

    if isinstance(error, FileNotFoundError) and os.readlink("/proc/self/cwd").endswith(" (deleted)"):
        return UsageError("the working directory was removed; change to one that is there")
    if isinstance(error, OSError) and error.errno == errno.EFBIG:
        return HimachError("a file would be larger than this process may write; raise the limit (ulimit -f)")
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        kind = UsageError if isinstance(error, MISPLACED) else HimachError
        return kind(f"{error.filename}: {error.strerror}")
    entries = traceback.extract_tb(error.__traceback__)
    place = f" ({entries[-1].filename}, line {entries[-1].lineno})" if entries else ""
    return HimachError(f"{type(error).__name__}: {error_text(error)}{place}; HIMACH_DEBUG=1 shows the whole traceback")
