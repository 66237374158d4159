"""What a run tells of its ranks, for plans of other runs: the field ``planning`` of its record.

It is gathered where the record is drawn up; nothing is timed for it but a sample of the frames, and members of an
ensemble.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from himach.engine.clock import QUANTILES, RankTimes, quantiles_of
from himach.engine.reducing import SHARD_GROUPS
from himach.output.record import Planning
from himach.parallel.collective import on_first_rank

if TYPE_CHECKING:
    from himach.engine import Passed
    from himach.parallel.communicator import World
    from himach.zazen.share import Share

__all__ = ["MembersSeen", "observed", "observed_members"]

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
    parts = {part: share.seconds[part] for part in ("sets", "rounds")}
    zazen = {**parts, "reductions": sum(share.rounds.values())}
    return _gathered(world, passed.own, share.size, {**before, **_bytes(read)}, zazen, passed.parts, passed.spilled)


@dataclass
class MembersSeen:
    """What members of an ensemble that this rank ran took.

    Attributes
    ----------
    began
        Seconds from the start of the run to that of its first member.
    busy, cpu
        In all of them, from their opening to their outcomes, and their processor's part of that.
    preparing
        Of `busy`, for opening them, until their frames could be read.
    read
        Bytes that were read, by place.
    passes
        What this rank did in each of their passes.
    """

    began: float = 0.0
    busy: float = 0.0
    cpu: float = 0.0
    preparing: float = 0.0
    read: dict[str, int] = field(default_factory=lambda: {"cache": 0, "origin": 0})
    passes: list[RankTimes] = field(default_factory=list)

    def add(self, times: RankTimes, read: Mapping[str, int], preparing: float) -> None:
        """Add a member that was taken through its pass."""
        self.passes.append(times)
        self.preparing += preparing
        for place in self.read:
            self.read[place] += read[place]

    def as_one(self) -> RankTimes:
        """Return all passes as one, in which a frame's reading is preparing, too, and its map() all else."""
        passes = [one for one in self.passes if one.frames]
        frames = sum(one.frames for one in passes)
        reading = min(self.busy, self.preparing + sum(one.read * one.frames for one in passes))
        return RankTimes(
            frames=frames,
            pairs=sum(one.pairs for one in passes),
            keys=sum(one.keys for one in passes),
            busy=self.busy,
            cpu=self.cpu,
            read=reading / max(1, frames),
            compute=(self.busy - reading) / max(1, frames),
            drift=quantiles_of([one.drift for one in passes])[QUANTILES // 2] if passes else 1.0,
            quantiles=_distribution(one.quantiles for one in passes),
            shuffle=0.0,
            reduce=0.0,
            sent=sum(one.sent for one in passes),
        )


def observed_members(world: World, seen: MembersSeen) -> Planning:
    """Return what a plan needs to know of this run of an ensemble, in which ranks ran members (collective).

    Its pairs stay where they are mapped, so it tells of none.

    Parameters
    ----------
    world
        All ranks.
    seen
        What this rank's members took.
    """
    own = seen.as_one()
    frames = world.node.allreduce(own.frames)
    before = {"startup": seen.began, "zazen": 0.0, "opening": seen.began, **_bytes(seen.read)}
    zazen = {"sets": 0.0, "rounds": 0.0, "reductions": 0}
    return _gathered(world, own, frames, before, zazen, [0] * SHARD_GROUPS, 0)


def _bytes(read: Mapping[str, int]) -> dict[str, float]:
    return {f"{place}_bytes": read[place] for place in ("cache", "origin")}


def _gathered(
    world: World,
    times: RankTimes,
    frames: int,
    own: Mapping[str, float],
    zazen: dict[str, float],
    parts: list[int],
    spilled: int,
) -> Planning:
    """Return what ranks tell; `frames` are those of this node, `times` and `own` the columns of this rank."""
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    columns = {**own, "memory": memory, **_columns(times)}
    quantiles = np.array(times.quantiles, np.float32).tobytes()  # there may be thousands of ranks
    boot = _boot() if world.leaders is not None else None
    told = world.comm.gather((world.node_index, boot, frames, list(columns.values()), quantiles))
    drawn = partial(_planning, world, list(columns), told, zazen, parts, spilled)
    return on_first_rank(world.comm, drawn, share=True)


def _planning(
    world: World,
    names: Sequence[str],
    told: Sequence[tuple[Any, ...]],
    zazen: dict[str, float],
    parts: list[int],
    spilled: int,
) -> Planning:
    """Return the same of what all ranks tell, on the first one."""
    nodes, boots, shares, columns, quantiles = zip(*told, strict=True)
    counts = [nodes.count(node) for node in range(len(world.nodes))]
    ranks: list[dict[str, Any]] = [
        {"node": node, **dict(zip(names, values, strict=True))} for node, values in zip(nodes, columns, strict=True)
    ]
    return Planning(
        ranks_per_node=[min(counts), max(counts)],
        hosts=len({boot for boot in boots if boot is not None}),
        cores=len(os.sched_getaffinity(0)),
        node_memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        share_frames=[shares[nodes.index(node)] for node in range(min(len(counts), MAX_RANKS))],
        frame_seconds=_distribution(np.frombuffer(some, np.float32).tolist() for some in quantiles),
        pair_bytes=parts,
        spilled=spilled,
        zazen=zazen,
        ranks=_table(ranks),
        totals={name: {"sum": sum(values), "median": quantiles_of(values)[QUANTILES // 2], "most": max(values)}
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
    listed = sorted(set(np.linspace(0, len(ranks) - 1, min(most, len(ranks))).astype(int).tolist()))
    return {"rank": listed, **{name: [_rounded(ranks[i][name]) for i in listed] for name in ranks[0]}}


def _rounded(value: Any) -> Any:
    """Return seconds to six digits, which is more than anybody knows of them."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _distribution(some: Iterable[Sequence[float]]) -> list[float]:
    """Return the quantiles over all ranks of the times of frames in map(), by those of each."""
    return [_rounded(value) for value in quantiles_of([quantile for each in some for quantile in each])]
