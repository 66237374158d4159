"""The errors that himach raises, each with the exit code of a command that ends by it.

`HimachError` is the root. `UsageError` is the caller's to mend (arguments, parameters, paths), `TrajectoryError` speaks
of data, `AnalysisError` of a method of the user's analysis, `RankError` of ranks that could not start or died.
"""

from __future__ import annotations

from collections.abc import Iterable


class HimachError(Exception):
    """Root of himach's errors; its text is complete: what was wrong, where, and what to do."""

    exit_code = 1


class UsageError(HimachError, ValueError):
    """An argument, parameter or path that cannot be used."""

    exit_code = 2


class TrajectoryError(HimachError):
    """Trajectory or topology data that cannot be used: damaged, not fitting, not ordered."""


class NoFrameError(TrajectoryError):
    """A trajectory without one whole frame; where it is still being written, one may come."""


class RankError(HimachError):
    """Ranks that could not be started, do not fit the launcher, or died."""


class AnalysisError(HimachError):
    """A method of an analysis raised, or asked for something that himach refuses.

    The exception that the method raised is the ``__cause__`` where this error was raised; over a process boundary only
    the text travels.
    """


class Interruption(BaseException):
    """A signal asked this process to end: what nobody between the signal's handler and the command's end catches."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint ``; did you mean 'x'?`` for a mistyped name, or the list of known names."""
    import difflib

    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; there is {', '.join(names)}" if names else ""


def as_himach(error: BaseException) -> HimachError:
    """Return `error` if it is himach's own; otherwise a HimachError that says what happened and where.

    For errors that nobody foresaw: of a library below, or a mistake in himach.
    """
    if isinstance(error, HimachError):
        return error
    import traceback

    entries = traceback.extract_tb(error.__traceback__)
    where = f" ({entries[-1].filename}, line {entries[-1].lineno})" if entries else ""
    return HimachError(f"{type(error).__name__}: {error}{where}; HIMACH_DEBUG=1 shows the whole traceback")
