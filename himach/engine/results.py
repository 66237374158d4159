"""`Results`: key -> result in the order of keys, as passed to finish()."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from himach.engine.pairs.block import Block
from himach.engine.pairs.keys import ENCODED, encode
from himach.errors import AnalysisError


class Results(dict[Any, Any]):
    """A dict key -> result in the order of keys; it works wherever a dict does, such as in pandas or json."""

    __slots__ = ("_rows",)

    @property
    def rows(self) -> Any:
        """The table of what map() yielded as `himach.Row`."""
        try:
            return self._rows
        except AttributeError:
            raise AnalysisError("there is no table of rows: map() yielded no himach.Row") from None

    @rows.setter
    def rows(self, table: Any) -> None:
        self._rows = table

    def __repr__(self) -> str:
        entries = [f"{key!r}: {result!r}" for (key, result), _ in zip(self.items(), range(5), strict=False)]
        more = f", ... {len(self)} keys" if len(self) > len(entries) else ""
        return f"Results({{{', '.join(entries)}{more}}})"


def collect_results(blocks: Sequence[Block]) -> Results:
    """Return the results of all ranks."""
    keys = [key for block in blocks for key in block.plain_keys()]
    values = [value for block in blocks for value in block.plain_values()]
    order = _order(blocks, keys)
    return in_order([keys[place] for place in order], [values[place] for place in order])


def in_order(keys: Sequence[Any], values: Sequence[Any]) -> Results:
    """Return results from sorted keys."""
    results = Results(zip(keys, values, strict=True))
    return results if len(results) == len(keys) else _Apart(keys, values)


class _Apart(Results):
    """Read-only results with distinct keys that are equal in Python, such as 1 and 1.0."""

    __slots__ = ("_keys", "_places", "_values")

    def __init__(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        super().__init__(zip(keys, values, strict=True))
        self._keys = keys
        self._values = values
        self._places = {encode(key): place for place, key in enumerate(keys)}

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._keys)

    def __reversed__(self) -> Iterator[Any]:
        return iter(self._keys[::-1])

    def __getitem__(self, key: Any) -> Any:
        try:
            place = self._places.get(encode(key))
        except AnalysisError:  # not a valid key, so not present
            place = None
        if place is None:
            raise KeyError(key)
        return self._values[place]

    __contains__: Any = Mapping.__contains__
    get: Any = Mapping.get
    keys: Any = Mapping.keys
    items: Any = Mapping.items
    values: Any = Mapping.values

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Apart) and self._places == other._places and self._values == other._values

    __hash__ = None  # type: ignore[assignment]

    def copy(self) -> dict[Any, Any]:
        """Return a copy of these results."""
        return _Apart(self._keys, self._values)

    def __reduce__(self) -> Any:
        return _Apart, (self._keys, self._values)

    def _refuse(self, *arguments: Any, **keywords: Any) -> NoReturn:
        raise TypeError("of these results some keys are equal, such as 1 and 1.0, and a dict holds one of them only")

    __setitem__ = __delitem__ = __or__ = __ror__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse


def _order(blocks: Sequence[Block], keys: Sequence[Any]) -> list[int]:
    widths = {block.width for block in blocks}
    if widths == {0}:
        order: list[int] = np.argsort(np.concatenate([block.keys for block in blocks])).tolist()
        return order
    codes = keys if len(widths) == 1 and ENCODED not in widths else [encode(key) for key in keys]
    return sorted(range(len(keys)), key=codes.__getitem__)
