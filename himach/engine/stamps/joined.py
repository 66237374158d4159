"""`Frames`: the frames of several ranks, in one order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from himach.engine.stamps.table import FrameTable

Places = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class Frames:
    """Frames of all ranks: `table`, in order of frame number and then of source.

    Row i of the table of rank r is row ``places[r][i]`` of it (uint32).
    """

    table: FrameTable
    places: list[Places]

    @classmethod
    def joined(cls, tables: Sequence[FrameTable], forward: bool) -> Frames:
        """Join the tables of all ranks; `forward` says whether frame numbers ascend with steps."""
        joined = FrameTable.joined(tables)
        time = joined.steps if forward else -joined.steps
        order = np.argsort(time, kind="stable") if joined.sources is None else joined.sources.order(time)
        place = np.empty(len(order), dtype=np.uint32)
        place[order] = np.arange(len(order), dtype=np.uint32)
        ends = np.cumsum([len(table) for table in tables]).tolist()
        table = replace(joined, sources=None).chosen(order)
        follow = len(order) > 0 and bool((np.diff(table.steps) == 1).all())
        return cls(
            table=replace(table, since=int(table.steps[0]) if follow else None),
            places=[place[end - len(table) : end] for end, table in zip(ends, tables, strict=True)],
        )
