"""One pass over the frames: `run_pass()` maps this rank's tasks, shuffles, reduces, and gathers the results.

Each rank maps its tasks (`himach.engine.mapping`) and reduces the keys of its shards (`himach.engine.reducing`).
"""

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from himach.analysis import Analysis
from himach.engine.clock import Clock, FrameCosts, RankTimes
from himach.engine.mapping import Keeper, Mapper, RankFrames, map_tasks
from himach.engine.pairs.block import shards_for
from himach.engine.reducing import Reducer, SharedReduce, run_alone
from himach.engine.results import Results
from himach.engine.rows import RowStore
from himach.engine.shuffle.exchange import Exchange
from himach.engine.shuffle.runs import Memory, Runs
from himach.ranks.collective import largest
from himach.ranks.communicator import World


@dataclass(frozen=True)
class Passed:
    """Results and statistics of one pass."""

    results: list[Results] | None
    rows: list[RowStore | None]
    pairs: int  # pairs that map() and, in chains, reduce() yielded on all ranks
    mapped: list[int]  # per analysis: pairs that its map() yielded
    shuffled: int  # bytes sent between ranks
    spilled: int  # bytes written to disk for lack of memory, on all ranks
    seconds: dict[str, float]  # "map", "shuffle" and "reduce", each of the slowest rank
    parts: list[int]
    own: RankTimes  # of this rank


def run_pass(
    world: World,
    analyses: Sequence[Sequence[Analysis]],
    work: RankFrames,
    together: SharedReduce = run_alone,
    memory: Memory | None = None,
    keeper: Keeper | None = None,
) -> Passed:
    """Run analyses over the frames in one pass (collective)."""
    comm, clock, costs = world.comm, Clock(), FrameCosts()
    memory = memory or Memory(sys.maxsize, Path(tempfile.gettempdir()))
    keeps = keeper is not None
    mappers = [
        Mapper(chain[0], comm.rank, work.frames, bound, Runs(memory, shards_for(comm.size)), keeps)
        for chain, bound in zip(analyses, work.bind, strict=True)
    ]

    def map_all() -> None:
        if keeper is not None:
            for i, mapper in enumerate(mappers):
                mapper.restored_steps = keeper.restore(i, mapper)
        map_tasks(mappers, work, keeper, costs)

    with clock("map"):
        together(map_all)
        if keeper is not None:
            keeper.end()
    exchange = Exchange(world)
    reducers = [Reducer(exchange, work.frames, clock, memory, together) for _ in analyses]
    results = [
        reducer.run(chain, mapper.runs, mapper.stamps)
        for reducer, chain, mapper in zip(reducers, analyses, mappers, strict=True)
    ]
    mapped = [mapper.pairs for mapper in mappers]
    pairs = sum(mapped) + sum(reducer.pairs for reducer in reducers)
    own = costs.of_rank(clock, sum(mapped), sum(reducer.keys for reducer in reducers), exchange.sent)
    tables = [bool(reducer.rows.counts) for reducer in reducers]
    n = len(analyses)
    totals = world.total(np.array([pairs, exchange.sent, memory.spilled, *mapped, *tables], np.int64)).tolist()
    tabled = [chain[0].yields_rows() or n_rows > 0 for chain, n_rows in zip(analyses, totals[3 + n :], strict=True)]
    return Passed(
        results=[result for result in results if result is not None] if comm.rank == 0 else None,
        rows=[reducer.rows if has else None for reducer, has in zip(reducers, tabled, strict=True)],
        pairs=totals[0],
        mapped=totals[3 : 3 + n],
        shuffled=totals[1],
        spilled=totals[2],
        seconds=largest(comm, clock.seconds),
        parts=[sum(bytes_of) for bytes_of in zip(*(reducer.parts.tolist() for reducer in reducers), strict=True)],
        own=own,
    )
