"""Measurements of a run's ranks, for plans of other runs: the field ``planning`` of its record.

They are gathered when the record is made. Only a sample of the frames and members of an ensemble are timed for it.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from himach.engine import Passed
from himach.engine.clock import QUANTILES, RankTimes, time_quantiles
from himach.engine.reducing import SHARD_GROUPS
from himach.output.record import Record
from himach.ranks.collective import on_first_rank
from himach.ranks.communicator import World
from himach.zazen.node_frames import Share

#: Maximum ranks listed; of more, this many at even distances, including the first and the last.
MAX_RANKS = 256
#: Identifier of the machine's boot, the same for all virtual hosts on it.
BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass
class MemberTimes:
    """Times of the members of an ensemble that this rank ran."""

    began: float = 0.0
    busy: float = 0.0
    cpu: float = 0.0
    preparing: float = 0.0
    read: dict[str, int] = field(default_factory=lambda: {"cache": 0, "origin": 0})
    passes: list[RankTimes] = field(default_factory=list)

    def add(self, times: RankTimes, read: Mapping[str, int], preparing: float) -> None:
        """Add a member after its pass."""
        self.passes.append(times)
        self.preparing += preparing
        self.read = {place: nbytes + read[place] for place, nbytes in self.read.items()}

    def total(self) -> RankTimes:
        """Return all passes as one; preparing counts as reading, all the rest as map()."""
        passes = [times for times in self.passes if times.frames]
        frames, pairs, keys, sent = (sum(getattr(times, name) for times in passes)
                                     for name in ("frames", "pairs", "keys", "sent"))  # fmt: skip
        reading = min(self.busy, self.preparing + sum(times.read * times.frames for times in passes))
        n_frames = max(1, frames)
        drift = _median([times.drift for times in passes]) if passes else 1.0
        return RankTimes(
            frames=frames, pairs=pairs, keys=keys, busy=self.busy, cpu=self.cpu, read=reading / n_frames,
            compute=(self.busy - reading) / n_frames, drift=drift, shuffle=0.0, reduce=0.0, sent=sent,
            quantiles=_distribution(times.quantiles for times in passes),
        )  # fmt: skip


def observation(
    world: World, passed: Passed, share: Share, read: Mapping[str, int], before: Mapping[str, float]
) -> Record:
    """Return a plan's input from this run (collective)."""
    zazen = {**{part: share.seconds[part] for part in ("sets", "rounds")}, "reductions": sum(share.rounds.values())}
    return _gather(world, passed.own, share.size, read, before, zazen, passed.parts, passed.spilled)


def member_observation(world: World, members: MemberTimes) -> Record:
    """Return the same for an ensemble whose members were run by single ranks, without pairs (collective)."""
    times, before = members.total(), {"startup": members.began, "zazen": 0.0, "opening": members.began}
    zazen = {"sets": 0.0, "rounds": 0.0, "reductions": 0}
    frames = world.node.allreduce(times.frames)
    return _gather(world, times, frames, members.read, before, zazen, [0] * SHARD_GROUPS, 0)


def _gather(
    world: World, times: RankTimes, frames: int, read: Mapping[str, int], before: Mapping[str, float],
    zazen: dict[str, float], parts: list[int], spilled: int,
) -> Record:  # fmt: skip
    """Gather the measurements of all ranks; `frames`: number of this node's frames."""
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    columns = {
        **before,
        "cache_bytes": read["cache"],
        "origin_bytes": read["origin"],
        "memory": memory,
        **asdict(times),
    }
    quantiles = np.array(columns.pop("quantiles"), np.float32).tobytes()  # there may be thousands of ranks
    boot = None if world.leaders is None else BOOT.read_text()
    gathered = world.comm.gather((world.node_index, boot, frames, list(columns.values()), quantiles))

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
            pair_bytes=parts, spilled=spilled, zazen=zazen,
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
