"""`Results`: key -> result in the order of keys, as passed to finish()."""

from collections.abc import Sequence
from typing import Any

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
    results = Results((keys[place], values[place]) for place in order)
    if len(results) < len(keys):
        firsts: dict[Any, Any] = {}
        first, second = next((firsts[key], key) for key in keys if firsts.setdefault(key, key) is not key)
        raise AnalysisError(
            f"the keys {first!r} and {second!r} are equal in Python, and a dict of results holds one of them only: "
            "yield keys of one type"
        )
    return results


def _order(blocks: Sequence[Block], keys: Sequence[Any]) -> list[int]:
    widths = {block.width for block in blocks}
    if widths == {0}:
        order: list[int] = np.argsort(np.concatenate([block.keys for block in blocks])).tolist()
        return order
    codes = keys if len(widths) == 1 and ENCODED not in widths else [encode(key) for key in keys]
    return sorted(range(len(keys)), key=codes.__getitem__)
