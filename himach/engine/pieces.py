"""Series that come piece by piece, as reduce_blocks() gets them: `SeriesPieces`, those of the keys of a wave."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from types import GeneratorType
from typing import Any

from himach.engine.merging.merge import Keyed
from himach.engine.merging.series import Series
from himach.engine.pairs.keys import ENCODED, encode

__all__ = ["SeriesPieces"]

#: Bytes of a key's series that wait for its end; a longer one is taken as it comes.
WAITING_BYTES = 1 << 20

#: Seconds that a method may take to ask for more, after which nobody waits for it any longer.
END_SECONDS = 1.0

#: Takes a key and an iterator over its series.
Method = Callable[[Any, Iterator[Series]], Any]


class SeriesPieces:
    """What is here so far of the series of some keys.

    A short series waits until all of it is here. Of a long one the method takes each piece as it comes, in a thread of
    its own, which runs while this one waits, and waits while this one runs.

    Parameters
    ----------
    method
        What is called for each key.
    """

    def __init__(self, method: Method) -> None:
        self._method = method
        self._keys: dict[tuple[int, Any], _Pieces] = {}

    def give(self, group: Keyed) -> None:
        """Give pieces that come behind those of before."""
        for key, series in zip(group.plain, group.series, strict=True):
            name = group.width, encode(key) if group.width == ENCODED else key
            if (pieces := self._keys.get(name)) is None:
                pieces = self._keys[name] = _Pieces(key, self._method, series.compact(1))
            pieces.give(series)

    def ended(self) -> Iterator[tuple[int, Any, Series, Callable[[], Any]]]:
        """Yield of each key its width, itself, its first value as a series, and what returns the method's result."""
        for width, name in sorted(self._keys, key=lambda both: both[0]):
            pieces = self._keys.pop((width, name))
            yield width, pieces.key, pieces.head, pieces.end

    def close(self) -> None:
        """Let no thread wait any more."""
        for pieces in self._keys.values():
            pieces.close()
        self._keys.clear()


class _Pieces:
    """What is here so far of one key's series; `head` is its first value."""

    def __init__(self, key: Any, method: Method, head: Series) -> None:
        self.key = key
        self.head = head
        self._method = method
        self._waiting: list[Series] = []
        self._nbytes = 0
        self._reading: _Reading | None = None

    def give(self, series: Series) -> None:
        if self._reading is None:
            some = series.compact(len(series))  # without the frames of others
            self._waiting.append(some)
            self._nbytes += some.nbytes
            if self._nbytes <= WAITING_BYTES:
                return
            self._reading = _Reading(lambda blocks: self._method(self.key, blocks))
            for one in self._waiting:
                self._reading.give(one)
            self._waiting.clear()
        else:
            self._reading.give(series)

    def end(self) -> Any:
        """Return what the method returns when there is no more; raise what it raises."""
        if self._reading is None:
            return self._method(self.key, iter(self._waiting))
        return self._reading.end()

    def close(self) -> None:
        if self._reading is not None:
            self._reading.close()


class _Abandoned(BaseException):
    """Nobody gives any more."""


class _Reading:
    """A call, in a thread, that reads what it is given."""

    def __init__(self, call: Callable[[Iterator[Series]], Any]) -> None:
        self._given: SimpleQueue[Series | type[_Abandoned] | None] = SimpleQueue()
        self._asks: SimpleQueue[None] = SimpleQueue()  # for more, or is done
        self._call = call
        self._result: Any = None
        self._error: BaseException | None = None
        self._done = False
        self._thread = threading.Thread(target=self._run, name="himach-reduce", daemon=True)
        self._thread.start()
        self._asks.get()

    def give(self, series: Series | None) -> None:
        """Give some more, None at the end; return when that is taken."""
        if not self._done:
            self._given.put(series)
            self._asks.get()

    def end(self) -> Any:
        self.give(None)
        if not self._done:
            self.close()
            raise ValueError("it asks for more after the end")
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._result

    def close(self) -> None:
        if not self._done:
            self._given.put(_Abandoned)
            self._thread.join(END_SECONDS)

    def _run(self) -> None:
        try:
            result = self._call(self._blocks())
            # What it yields depends on what is still to come.
            self._result = list(result) if isinstance(result, GeneratorType) else result
        except _Abandoned:
            pass
        except BaseException as error:
            self._error = error
        self._done = True
        self._asks.put(None)

    def _blocks(self) -> Iterator[Series]:
        while True:
            self._asks.put(None)
            series = self._given.get()
            if series is None:
                return
            if not isinstance(series, Series):
                raise _Abandoned
            yield series
