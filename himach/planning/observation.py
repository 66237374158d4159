"""Measurements of a run's ranks, for plans of other runs: the field ``planning`` of its record.

They are gathered when the record is made. Only a sample of the frames is timed for it.
"""

import os
import resource
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from himach.engine import Passed
from himach.engine.clock import QUANTILES, time_quantiles
from himach.output.record import Record
from himach.ranks.collective import on_first_rank
from himach.ranks.communicator import World
from himach.zazen.node_frames import Share

#: Maximum ranks listed; of more, this many at even distances, including the first and the last.
MAX_RANKS = 256
#: Identifier of the machine's boot, the same for all virtual hosts on it.
BOOT = Path("/proc/sys/kernel/random/boot_id")


def observation(
    world: World, passed: Passed, share: Share, read: Mapping[str, int], before: Mapping[str, float]
) -> Record:
    """Return a plan's input from this run: the measurements of all ranks (collective)."""
    zazen = {**{part: share.seconds[part] for part in ("sets", "rounds")}, "reductions": sum(share.rounds.values())}
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    columns = {
        **before,
        "cache_bytes": read["cache"],
        "origin_bytes": read["origin"],
        "memory": memory,
        **asdict(passed.own),
    }
    quantiles = np.array(columns.pop("quantiles"), np.float32).tobytes()  # there may be thousands of ranks
    boot = None if world.leaders is None else BOOT.read_text()
    gathered = world.comm.gather((world.node_index, boot, share.size, list(columns.values()), quantiles))

    def planning() -> Record:
        nodes, boots, shares, rows, distributions = zip(*gathered, strict=True)
        counts = [nodes.count(node) for node in range(len(world.nodes))]
        by_name = {name: [_rounded(value) for value in values]
                   for name, values in zip(columns, zip(*rows, strict=True), strict=True)}  # fmt: skip
        listed = sorted(set(np.linspace(0, len(rows) - 1, min(MAX_RANKS, len(rows))).astype(int).tolist()))
        table = {"node": nodes, **by_name}
        return Record(
            ranks_per_node=[min(counts), max(counts)],
            hosts=len(set(boots) - {None}),
            cores=len(os.sched_getaffinity(0)),
            node_memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            share_frames=[shares[nodes.index(node)] for node in range(min(len(counts), MAX_RANKS))],
            frame_seconds=_distribution(np.frombuffer(data, np.float32).tolist() for data in distributions),
            pair_bytes=passed.parts, spilled=passed.spilled, zazen=zazen,
            ranks={"rank": listed, **{name: [values[i] for i in listed] for name, values in table.items()}},
            totals={name: {"sum": sum(values), "median": _median(values), "most": max(values)}
                    for name, values in by_name.items()},
        )  # fmt: skip

    result: Record = on_first_rank(world.comm, planning, share=True)
    return result


def _median(values: Sequence[float]) -> float:
    return time_quantiles(values)[QUANTILES // 2]


def _rounded(value: Any) -> Any:
    """Round a float to six digits, more than its accuracy."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _distribution(quantiles: Iterable[Sequence[float]]) -> list[float]:
    """Return the quantiles of frame times in map() over all ranks, from those of each rank."""
    return [_rounded(value) for value in time_quantiles([value for row in quantiles for value in row])]
