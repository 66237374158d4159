"""What is asked for every now and then, so that nobody waits for it who has had an answer before: `TtlCache`."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["TtlCache"]

log = logging.getLogger("himach.mount")
T = TypeVar("T")

TTL_SECONDS = 2.0  # seconds for which an answer holds
RENEWAL_SECONDS = 0.5  # for which a new one is waited for, where there is an old one
FIRST_SECONDS = 10.0  # the first time


class TtlCache(Generic[T]):
    """An answer that is asked for again when it is old, by a thread of its own.

    Parameters
    ----------
    ask
        Returns it; where it raises, that is logged, and the answer stays what it was.
    none
        The answer until there is one.
    """

    def __init__(self, ask: Callable[[], T], none: T) -> None:
        self._ask = ask
        self._answer = none
        self._changed = threading.Condition()
        self._asking = self._known = False
        self._until = float("-inf")

    def get(self) -> T:
        """Return the answer, an old one where a new one takes long."""
        with self._changed:
            if time.monotonic() >= self._until and not self._asking:
                self._asking = True
                threading.Thread(target=self._renew, name="himach-asks", daemon=True).start()
            if self._asking:
                self._changed.wait_for(lambda: not self._asking, RENEWAL_SECONDS if self._known else FIRST_SECONDS)
                self._known = True  # that there is none yet
            return self._answer

    def _renew(self) -> None:
        try:
            answer = self._ask()
        except Exception:  # else nobody would ever ask again
            log.exception("what is to be shown cannot be told")
            answer = self._answer
        with self._changed:
            self._answer, self._known, self._asking = answer, True, False
            self._until = time.monotonic() + TTL_SECONDS
            self._changed.notify_all()
