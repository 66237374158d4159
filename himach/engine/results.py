"""`Results`: key -> result in the order of keys, as finish() gets them."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping, Sequence, ValuesView
from typing import Any

import numpy as np

from himach.engine.pairs.block import Block
from himach.engine.pairs.keys import ENCODED, encode
from himach.errors import AnalysisError


class Results(Mapping[Any, Any]):
    """A mapping key -> result in the order of keys, in which 1 and 1.0 are two keys.

    Parameters
    ----------
    blocks
        Keys and results as pairs, in any order, each key once.
    """

    __slots__ = ("_keys", "_places", "_values")

    def __init__(self, blocks: Sequence[Block] = ()) -> None:
        keys = [key for block in blocks for key in block.plain_keys()]
        values = [value for block in blocks for value in block.plain_values()]
        order = _order(blocks, keys)
        self._keys = [keys[place] for place in order]
        self._values = [values[place] for place in order]
        self._places: dict[bytes, int] | None = None

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._keys)

    def __contains__(self, key: object) -> bool:
        return self._find(key) is not None

    def __getitem__(self, key: Any) -> Any:
        place = self._find(key)
        if place is None:
            raise KeyError(key)
        return self._values[place]

    def items(self) -> ItemsView[Any, Any]:
        """Return (key, result) in the order of keys."""
        return _Items(self)

    def values(self) -> ValuesView[Any]:
        """Return the results in the order of keys."""
        return _Values(self)

    def _find(self, key: Any) -> int | None:
        if self._places is None:
            self._places = {encode(known): place for place, known in enumerate(self._keys)}
        try:
            return self._places.get(encode(key))
        except AnalysisError:  # what cannot be a key is not in here
            return None

    def __repr__(self) -> str:
        shown = [f"{key!r}: {result!r}" for key, result in zip(self._keys[:5], self._values, strict=False)]
        more = f", ... {len(self)} keys" if len(self) > len(shown) else ""
        return f"Results({{{', '.join(shown)}{more}}})"


class _Items(ItemsView[Any, Any]):
    """Gives items without looking every key up."""

    _mapping: Results

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return zip(self._mapping._keys, self._mapping._values, strict=True)


class _Values(ValuesView[Any]):
    """Gives results without looking every key up."""

    _mapping: Results

    def __iter__(self) -> Iterator[Any]:
        return iter(self._mapping._values)


def _order(blocks: Sequence[Block], keys: Sequence[Any]) -> list[int]:
    """Return the places of keys in their order."""
    widths = {block.width for block in blocks}
    if widths == {0}:
        order: list[int] = np.argsort(np.concatenate([block.keys for block in blocks])).tolist()
        return order
    codes = keys if len(widths) == 1 and ENCODED not in widths else [encode(key) for key in keys]
    return sorted(range(len(keys)), key=codes.__getitem__)
