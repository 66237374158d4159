"""`Results`: key -> result in the order of keys, as finish() gets them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from himach.engine.keys import encode
from himach.errors import AnalysisError

__all__ = ["Results"]


class Results(Mapping[Any, Any]):
    """A mapping key -> result in the order of keys, in which 1 and 1.0 are two keys.

    Parameters
    ----------
    pairs
        (key, result) in any order, each key once.
    """

    __slots__ = ("_items",)

    def __init__(self, pairs: Iterable[tuple[Any, Any]] = ()) -> None:
        encoded = sorted([(encode(key), key, result) for key, result in pairs], key=lambda item: item[0])
        self._items = {code: (key, result) for code, key, result in encoded}

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Any]:
        return iter([key for key, _ in self._items.values()])

    def __contains__(self, key: object) -> bool:
        return self._find(key) is not None

    def __getitem__(self, key: Any) -> Any:
        found = self._find(key)
        if found is None:
            raise KeyError(key)
        return found[1]

    def _find(self, key: Any) -> tuple[Any, Any] | None:
        try:
            return self._items.get(encode(key))
        except AnalysisError:  # what cannot be a key is not in here
            return None

    def __repr__(self) -> str:
        shown = [f"{key!r}: {result!r}" for key, result in list(self._items.values())[:5]]
        more = f", ... {len(self)} keys" if len(self) > len(shown) else ""
        return f"Results({{{', '.join(shown)}{more}}})"
