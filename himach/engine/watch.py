"""`Watch`: what setup() left on an analysis must be found unchanged, for map() sees some of the frames on each rank.

It is compared now and then, so that comparing takes no time to speak of, and at the end of all frames. What has changed
is told by the line of the user's script that changes it: map() is run once more, line by line, at the frame at hand.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable
from time import perf_counter
from types import FrameType
from typing import Any

from himach.analysis import Analysis
from himach.engine.failures import HIMACH, Place, traced
from himach.engine.kept import Kept, kept_by
from himach.errors import AnalysisError

__all__ = ["Watch"]

#: Comparing takes at most this part of the time.
PART = 1 / 200
#: Lines of the user's script, at most, through which the one that changes something is looked for.
MOST_LINES = 200_000

_STDLIB = os.path.join(sysconfig.get_path("stdlib"), "")


class Watch:
    """Compares what setup() left on an analysis with what it was when the watch began."""

    def __init__(self, analysis: Analysis) -> None:
        begun = perf_counter()
        self._analysis = analysis
        self._kept = kept_by(analysis)
        self._rest(begun)

    @property
    def due(self) -> bool:
        """Whether it is time to look again."""
        return perf_counter() >= self._next

    def changed(self) -> Kept | None:
        """Return a thing that has changed, or None."""
        begun = perf_counter()
        for kept in self._kept:
            if kept.changed:
                return kept
        self._rest(begun)
        return None

    def _rest(self, begun: float) -> None:
        """Wait as long as what began then was worth."""
        now = perf_counter()
        self._next = now + (now - begun) / PART

    def error(self, kept: Kept) -> AnalysisError:
        """Return what tells the user what has changed, and what to do instead."""
        path, name = kept.changed_path, kept.kind.name
        what = f"it changes {path}" + (f", {name} that setup() left" if path == kept.path else "")
        instead = "yield the value instead, as in `yield key, value`, and reduce() gets it in time order"
        if name in ("a random generator", "an iterator"):
            instead = "make what differs from frame to frame of the frame itself"
            if name == "a random generator":
                instead += ", as in `np.random.default_rng((seed, frame.number))`"
        return AnalysisError(
            f"{what}; map() keeps nothing, because each rank sees some frames only: {instead}. A buffer or cache on "
            f"which no result depends is named in the class: caches = ({_attribute(path)!r},)"
        )


def _attribute(path: str) -> str:
    """Return the name of the attribute where a path begins."""
    name = path.partition(".")[2]
    return name[: next((i for i, letter in enumerate(name) if letter in ".[ ("), len(name))]


class _Found(BaseException):
    """The line is found, or there is no more to look at: no error, so that the script does not catch it."""


def changing_line(kept: Kept, again: Callable[[], Any]) -> Place | None:
    """Return the line at which a thing changes when `again` does again what changed it; None if that does not tell."""
    kept.renew()
    # Once as it is, and once more as it was before, when the same value is a change, too.
    found = _watched(kept, again)
    if found is None:
        kept.restore()
        found = _watched(kept, again)
        kept.release()
    return found


def _watched(kept: Kept, work: Callable[[], Any]) -> Place | None:
    """Return the line of the user's script at which a thing changes while `work` runs."""
    last: list[Place] = []
    lines = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        if not _is_users(frame.f_code.co_filename):
            return None
        lines += event == "line"
        if kept.changed or lines > MOST_LINES:
            raise _Found
        if event == "line":
            last[:] = [_place(frame)]
        elif event == "return" and frame.f_back is not None and _is_users(frame.f_back.f_code.co_filename):
            last[:] = [_place(frame.f_back)]
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except _Found:
        return last[0] if last and lines <= MOST_LINES else None
    except ValueError as error:  # an array that is read-only for now
        places = [place for place in traced(error) if _is_users(place[0])]
        return places[-1] if places and "read-only" in str(error) else None
    except Exception:
        return None
    finally:
        sys.settrace(before)
    return None


def _is_users(file: str) -> bool:
    if "site-packages" in file or "dist-packages" in file:
        return False
    return not file.startswith((HIMACH, _STDLIB, "<frozen", "<__array_function__"))


def _place(frame: FrameType) -> Place:
    return frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name
