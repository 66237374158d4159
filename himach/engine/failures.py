"""Failures of an analysis's methods, reported with the frame or key, the rank and the line of the user's script."""

import dis
import inspect
import sys
from collections.abc import Iterator
from types import CodeType
from typing import Any

from himach.analysis import Analysis
from himach.errors import AnalysisError, HimachError, StateError, error_text, format_place
from himach.frame import Frame
from himach.ranks.process_exit import is_interruption
from himach.user_code import HIMACH

#: Exceptions that end a run as failures of a method: all, because an uncaught one would end this rank alone.
RAISED = BaseException

#: Longest text of a key shown in full.
MAX_KEY_CHARACTERS = 200

Place = tuple[str, int, str]  # file, line, function


def failure(
    analysis: Analysis,
    method: str,
    error: BaseException,
    rank: int,
    location: str = "",
    items: Any = None,
    part: str = "",
) -> AnalysisError:
    """Return the error that reports an exception in a method of an analysis; raise it ``from error``.

    Re-raise an exception that a signal caused: the method is not responsible for it.
    """
    if is_interruption(error):
        raise error
    what = str(error) if isinstance(error, HimachError) else f"{type(error).__name__}: {error_text(error)}".rstrip(": ")
    message = f"{analysis.label()}.{method}(){part} failed{location} on rank {rank}: {what}"
    if (place := find_place(analysis, method, error, items)) is not None:
        message += f"\n  {format_place(*place)}"
    return StateError(message) if isinstance(error, StateError) else AnalysisError(message)


def at_frame(frame: Frame, since: int | None = None) -> str:
    """Return the location of a failure at a frame, or after frame `since`."""
    late = f" after frame {since}, at frame {frame.number} at the latest,"
    return late if since is not None else f" at frame {frame.number} (step {frame.step}, time {frame.time:.7g} ps)"


def for_key(key: Any) -> str:
    """Return the location of a failure at a key."""
    text = repr(key)
    return f" for key {text if len(text) <= MAX_KEY_CHARACTERS else text[:MAX_KEY_CHARACTERS] + '...'}"


def find_place(analysis: Analysis, method: str, error: BaseException, items: Any = None) -> Place | None:
    """Return the innermost place in the analysis's own file, else outside himach; for a change, where `method` is."""
    places = [*_return_places(analysis, method, items), *_suspended_places(items), *_traceback_places(error)]
    own = _source_file(analysis, method)
    for candidates in (
        [place for place in places if place[0] == own],
        [place for place in places if not place[0].startswith(HIMACH)],
    ):
        if candidates:
            return candidates[-1]
    code = _code(analysis, method) if isinstance(error, StateError) else None
    return None if code is None else (code.co_filename, code.co_firstlineno, method)


def _traceback_places(error: BaseException) -> Iterator[Place]:
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        yield code.co_filename, traceback.tb_lineno, code.co_name
        traceback = traceback.tb_next


def _suspended_places(items: Any) -> Iterator[Place]:
    """Yield the lines at which a generator, and those that it delegates to, are suspended."""
    while inspect.isgenerator(items) and items.gi_frame is not None:
        yield items.gi_code.co_filename, items.gi_frame.f_lineno, items.gi_code.co_name
        items = items.gi_yieldfrom


def _return_places(analysis: Analysis, method: str, items: Any) -> Iterator[Place]:
    """Yield the line of a method's only return, or its first line if there are several; none for a generator."""
    code = _code(analysis, method)
    if not (items is None or code is None or inspect.isgenerator(items)):
        positions = [op.positions for op in dis.get_instructions(code) if op.opname == "RETURN_VALUE"]
        lines = {position.lineno for position in positions if position is not None}
        line = lines.pop() if len(lines) == 1 else code.co_firstlineno
        yield code.co_filename, line or code.co_firstlineno, code.co_name


def _source_file(analysis: Analysis, method: str) -> str | None:
    """Return the source file of a method; for an adapted analysis, that of the class of MDAnalysis or the user."""
    foreign = getattr(type(analysis), "foreign", None)
    if foreign is not None:
        return getattr(sys.modules.get(foreign.__module__), "__file__", None)
    code = _code(analysis, method)
    return None if code is None else code.co_filename


def _code(analysis: Analysis, method: str) -> CodeType | None:
    return getattr(inspect.unwrap(getattr(type(analysis), method)), "__code__", None)
