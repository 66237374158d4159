"""What a run tells of its ranks, for plans of other runs: the field ``planning`` of its record.

It is gathered where the record is drawn up; nothing is timed for it but a sample of the frames.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from himach.engine.clock import QUANTILES
from himach.output.record import Planning

if TYPE_CHECKING:
    from himach.engine import Passed
    from himach.engine.clock import RankTimes
    from himach.parallel.communicator import World
    from himach.zazen.share import Share

__all__ = ["observed"]

#: Ranks that are listed, at most; of more, as many at even distances, the first and the last among them.
MAX_RANKS = 256
#: A name of this start of the machine, the same on all its virtual ones.
BOOT = Path("/proc/sys/kernel/random/boot_id")


def observed(
    world: World, passed: Passed, share: Share, read: Mapping[str, int], before: Mapping[str, float]
) -> Planning:
    """Return what a plan needs to know of this run (collective).

    Parameters
    ----------
    world
        All ranks.
    passed
        What the pass gave.
    share
        The node's share of the frames.
    read
        Bytes that this rank read, by place.
    before
        Seconds of this rank before the pass, by phase.
    """
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    own = {**before, **{f"{place}_bytes": count for place, count in read.items()}, "memory": memory}
    told = world.comm.allgather((world.nodes.index(world.name), _boot(), share.size, own))
    nodes, boots, shares, values = zip(*told, strict=True)
    counts = [nodes.count(node) for node in range(len(world.nodes))]
    ranks: list[dict[str, Any]] = [
        {"node": node, **value, **_columns(one)}
        for node, value, one in zip(nodes, values, passed.of_ranks, strict=True)
    ]
    return Planning(
        ranks_per_node=[min(counts), max(counts)],
        hosts=len(set(boots)),
        cores=len(os.sched_getaffinity(0)),
        node_memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        share_frames=[shares[nodes.index(node)] for node in range(min(len(counts), MAX_RANKS))],
        frame_seconds=_distribution(passed.of_ranks),
        pair_bytes=passed.parts,
        spilled=passed.spilled,
        zazen={**{part: share.seconds[part] for part in ("sets", "rounds")}, "reductions": sum(share.rounds.values())},
        ranks=_table(ranks),
        totals={name: {"sum": sum(values), "median": float(np.median(values)), "most": max(values)}
                for name, values in _table(ranks, len(ranks)).items() if name not in ("node", "rank")},
    )  # fmt: skip


def _boot() -> str:
    try:
        return BOOT.read_text().strip()
    except OSError:  # not Linux as we know it: each rank's node counts as a machine
        return os.uname().nodename


def _columns(one: RankTimes) -> dict[str, Any]:
    return {name: value for name, value in asdict(one).items() if name != "quantiles"}


def _table(ranks: Sequence[Mapping[str, Any]], most: int = MAX_RANKS) -> dict[str, list[Any]]:
    """Return the columns of a table of ranks."""
    listed = np.unique(np.linspace(0, len(ranks) - 1, min(most, len(ranks))).astype(int)).tolist()
    return {"rank": listed, **{name: [_rounded(ranks[i][name]) for i in listed] for name in ranks[0]}}


def _rounded(value: Any) -> Any:
    """Return seconds to six digits, which is more than anybody knows of them."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _distribution(ranks: Sequence[RankTimes]) -> list[float]:
    """Return the quantiles of the times of frames in map(), over all ranks."""
    every = [quantile for one in ranks for quantile in one.quantiles]
    return [_rounded(value) for value in np.quantile(every, np.linspace(0, 1, QUANTILES)).tolist()] if every else []
