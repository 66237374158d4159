"""`Model`: a run on so many nodes, phase by phase, from what runs cost and what the machine is.

The phases are those of a record. What is random (frames' times, how ranks differ, skew of few keys) is drawn again and
again from one seed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from himach.planning import node, origin, shuffle, tree
from himach.planning.fitting import Costs, Reading, processors
from himach.planning.machine import Machine

__all__ = ["PHASES", "SLOW", "Asked", "Model", "again", "stored"]

Floats = npt.NDArray[np.float64]
PHASES = ("startup", "zazen", "map", "shuffle", "reduce", "finish")

#: Draws of what is random, and of them that are followed event by event where the origin is shared.
DRAWS = 41
FOLLOWED = 5
#: Seconds between two commits of kept pairs (`himach.keeping.keeper`).
COMMITS = 30.0
#: What is taken for a network where none is known: bytes a second, seconds, and the rate of combining bitmaps.
SLOW = 1e8
LATENCY = 5e-5
COMBINE = 4e9


@dataclass(frozen=True)
class Asked:
    """What a prediction is asked of: nodes, ranks of each, frames, which draws; nodes whose caches are lost."""

    nodes: int
    ranks_per_node: int
    frames: int
    seed: int = 0
    every: float = COMMITS
    lost: int = 0

    @property
    def ranks(self) -> int:
        """Ranks of all nodes."""
        return self.nodes * self.ranks_per_node


def stored(costs: Costs) -> float:
    """Return the bytes of a frame in a store."""
    seen = 0.0 if costs.again is None else costs.again.nbytes
    first = None if costs.first is None else costs.first.nbytes
    return max(seen, first) if first else max(seen, node.stored_bytes(costs.records[0].atoms, None))


def again(costs: Costs, machine: Machine) -> Reading | None:
    """Return what reading from the cache costs: as it was seen, else as the disk gives it."""
    if costs.again is not None or machine.disk_read is None:
        return costs.again
    nbytes = stored(costs)
    return Reading(nbytes / machine.disk_read, nbytes, machine.disk_read)


class Model:
    """One run, drawn `DRAWS` times; every phase gives float64 (DRAWS,)."""

    def __init__(self, costs: Costs, machine: Machine, asked: Asked, rng: np.random.Generator) -> None:
        self.costs, self.machine, self.asked, self.rng = costs, machine, asked, rng
        self.frames = node.share(asked.frames, asked.nodes)
        self.stored = stored(costs)
        self.pairs = asked.frames * costs.pair_bytes
        self.network = machine.network or SLOW
        self.latency = machine.latency or LATENCY
        self.one_host = machine.one_host
        cores = machine.cores or costs.records[0].cores
        #: Cores that a node's ranks have: its own, or its part of those that all nodes share.
        self.cores = cores / asked.nodes if self.one_host else float(cores)
        at_a_time = processors(asked.ranks, cores, 1 if self.one_host else asked.nodes)
        self.quantities = {
            "one": 1.0,
            "steps": float(tree.steps(asked.ranks)),
            "ranks": float(asked.ranks if self.one_host else asked.ranks_per_node),
            "others": float(0 if self.one_host else asked.ranks - asked.ranks_per_node),
            "bytes": self.pairs / at_a_time,
            "keys": costs.keys.at(one=1.0, frames=float(asked.frames)),
        }

    def memory(self) -> float:
        """Return the bytes that a node's ranks take: without pairs, and with what is held of them."""
        return self.asked.ranks_per_node * self.costs.rank_memory + self.pairs / self.asked.nodes

    def run(self, first: bool) -> tuple[dict[str, Floats], dict[str, float]]:
        """Return the seconds of each phase, and what each possible limit takes."""
        costs, asked = self.costs, self.asked
        startup = self._startup(first)
        zazen, rounds = self._zazen()
        mapping, limits = self._mapping(first)
        most = np.array([shuffle.most_loaded(costs.parts * self.pairs, self.quantities["keys"], asked.ranks, self.rng)
                         for _ in range(DRAWS)])  # fmt: skip
        shuffling, travelling = self._shuffling(most)
        reducing = costs.reduce_byte * most + costs.reduce.at(**self.quantities)
        finish = costs.finish.at(**self.quantities)
        even = costs.reduce_byte * self.pairs / asked.ranks
        limits |= {
            "starting": float(startup[0]),
            "Zazen's rounds": rounds,
            "network": travelling,
            "sorting pairs": float(np.median(shuffling)) - travelling,
            "reduce()": even,
            "reduce(), skew": float(np.median(reducing)) - even,
            "finish()": finish,
        }
        draws = dict(zip(PHASES, (startup, zazen, mapping, shuffling, reducing, self._constant(finish)), strict=True))
        return {**draws, "rest": self._constant(costs.rest.at(**self.quantities))}, limits

    def staged(self) -> tuple[dict[str, Floats], dict[str, float]]:
        """Return the same of staging: reading and writing in place of reading and map()."""
        first = self.costs.first
        assert first is not None
        startup = self._constant(self.costs.opening.at(**self.quantities, first=1.0))
        write = self.stored / self.machine.disk_write if self.machine.disk_write else 0.0
        filling, limits = self._from_origin(first, write, 0.0)
        after = self.costs.after_map.at(**self.quantities)
        disk = self.frames * write  # of all ranks of a node
        limits["writing to disks"] = max(limits.pop("map()"), disk)
        filling = np.maximum(filling, disk)
        return {"startup": startup, "map": filling + after}, {**limits, "starting": float(startup[0])}

    def _startup(self, first: bool) -> Floats:
        return self._constant(self.costs.startup.at(**self.quantities, first=float(first)))

    def _constant(self, seconds: float) -> Floats:
        return np.full(DRAWS, seconds)

    def _zazen(self) -> tuple[Floats, float]:
        fitted = self.costs.zazen.at(**self.quantities)
        if self.one_host:
            return self._constant(fitted), fitted
        combine = self.machine.combine or COMBINE
        rounds = tree.zazen_seconds(self.asked.nodes, self.asked.frames, self.latency, self.network, combine)
        return self._constant(fitted + rounds), rounds

    def _mapping(self, first: bool) -> tuple[Floats, dict[str, float]]:
        costs = self.costs
        if first:
            assert costs.first is not None
            mapping, limits = self._from_origin(costs.first, costs.compute, costs.cpu_part)
        else:
            mapping, limits = self._from_cache()
            if self.asked.lost and costs.first is not None:
                # Nobody has what they held, and they have least to read: it is theirs, from the origin, where it lies
                # in pieces, as staging deals frames out in turns.
                lost = replace(self.asked, nodes=self.asked.lost)
                pieces = replace(costs.first, nbytes=costs.first.nbytes + origin.PAGE)
                read, more = self._from_origin(pieces, costs.compute, costs.cpu_part, lost.ranks)
                mapping, limits = np.maximum(mapping, read), {**limits, **more}
        return mapping + costs.after_map.at(**self.quantities), limits

    def _from_cache(self) -> tuple[Floats, dict[str, float]]:
        """Return the map phase of caches, which nodes do not share: the slowest node of a closed form."""
        costs, asked = self.costs, self.asked
        cached = again(costs, self.machine)
        assert cached is not None
        seconds = node.map_seconds(
            self.frames, asked.ranks_per_node, costs.compute + cached.seconds, costs.cpu_part, self.cores
        )
        rate = self._from_disk()
        disk = self.frames * cached.nbytes / rate if rate else 0.0
        limits = {
            "map()": seconds * costs.compute / max(1e-12, costs.compute + cached.seconds),
            "reading caches": seconds * cached.seconds / max(1e-12, costs.compute + cached.seconds),
            "disks": disk,
        }
        return np.maximum(seconds * self._slowest(), disk), limits

    def _from_disk(self) -> float | None:
        """Return the disk's rate if frames come from it: where no run has told of reading, or memory is short."""
        memory, rate = self.machine.memory, self.machine.disk_read
        short = memory is not None and self.frames * self.stored > memory / 2
        return rate if short or self.costs.again is None else None

    def _slowest(self) -> Floats:
        """Return how much longer than the mean the slowest node takes: frames differ, and so do ranks."""
        costs, asked = self.costs, self.asked
        if costs.compute <= 0:
            return np.ones(DRAWS)
        chance = costs.frame_spread / costs.compute / math.sqrt(max(1, self.frames))
        spread = math.hypot(chance, costs.rank_spread / math.sqrt(asked.ranks_per_node))
        return 1 + spread * node.most_of_normals(asked.nodes, self.rng.random(DRAWS))

    def _from_origin(
        self, first: Reading, work: float, cpu_part: float, ranks: int | None = None
    ) -> tuple[Floats, dict[str, float]]:
        """Return the map phase where ranks, by default all, share the origin, event by event."""
        asked, ranks = self.asked, ranks or self.asked.ranks
        per_rank = self.frames / asked.ranks_per_node
        rate = node.rank_rate(work + first.seconds, cpu_part, asked.ranks_per_node, self.cores)
        own = asked.ranks_per_node / rate  # a frame's seconds; more where there are more ranks than cores
        times, served = [per_rank * own], 0.0
        network = None if self.one_host else self.machine.network  # by which what is read comes to a node
        arriving = self.frames * first.nbytes / network if network else 0.0
        if (capacity := self.machine.origin) is not None:
            ahead = origin.frames_ahead(first.nbytes)
            total = ranks * per_rank * first.nbytes
            left = max(0.0, total - (self.machine.origin_at_once or 0.0))
            served, each = left / capacity, first.nbytes * left / max(1.0, total)
            times = [
                origin.read_phase(
                    ranks, per_rank, own, each, capacity, min(capacity, network or capacity), ahead, self.rng
                )
                for _ in range(FOLLOWED)
            ]
        reading = per_rank * own * first.seconds / max(1e-12, work + first.seconds)
        limits = {
            "map()": per_rank * own - reading,
            "reading the origin": reading,
            # Where they take less, reading ahead hides them.
            "origin's bandwidth": served if served > per_rank * own else 0.0,
            "network, from the origin": arriving if arriving > per_rank * own else 0.0,
        }
        # A slow node's own time is longer, not that in which it waits for the origin.
        slowest = np.maximum(np.resize(times, DRAWS), np.maximum(per_rank * own * self._slowest(), arriving))
        return slowest + node.tail_seconds(self.frames, asked.ranks_per_node, own), limits

    def _shuffling(self, most: Floats) -> tuple[Floats, float]:
        asked, terms = self.asked, self.costs.shuffle
        travel = np.array([
            shuffle.exchange_seconds(self.pairs, asked.nodes, asked.ranks, self.latency, self.network, one)
            for one in most.tolist()
        ])  # fmt: skip
        fitted = terms.at(**self.quantities, travel=0.0)
        if "travel" in terms.terms:
            travel *= terms.terms["travel"]
        return fitted + travel, float(np.median(travel))
