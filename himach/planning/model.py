"""`Model`: a run on so many nodes, phase by phase, from what runs cost and what the machine is.

The phases are those of a record. What is random (frames' times, how ranks differ, skew of few keys) is drawn again and
again from one seed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from himach.planning import closed_forms as forms
from himach.planning.fitting import Costs, Reading, processors
from himach.planning.machine import Machine
from himach.planning.members import busiest

__all__ = ["DRAWS", "NETWORK_BYTES_PER_SECOND", "PHASES", "Model", "PredictionInput", "again", "stored"]

Floats = npt.NDArray[np.float64]
Seconds = float | Floats
PHASES = ("startup", "zazen", "map", "shuffle", "reduce", "finish")

#: Draws of what is random.
DRAWS = 41
#: Bytes that a stretch of a file takes more, on average, where it is read without its neighbours: pages are read whole.
PAGE = 4096
#: Seconds between two commits of kept pairs (`himach.checkpoint.checkpoint_writer`).
COMMIT_SECONDS = 30.0
#: What is taken for a network where none is known: bytes a second, seconds, and the rate of combining bitmaps.
NETWORK_BYTES_PER_SECOND = 1e8
NETWORK_SECONDS = 5e-5
COMBINED_BYTES_PER_SECOND = 4e9


@dataclass(frozen=True)
class PredictionInput:
    """What a prediction is asked of: nodes, ranks of each, frames, which draws; nodes whose caches are lost."""

    nodes: int
    ranks_per_node: int
    frames: int
    seed: int = 0
    every: float = COMMIT_SECONDS
    lost: int = 0

    @property
    def ranks(self) -> int:
        """Ranks of all nodes."""
        return self.nodes * self.ranks_per_node


def stored(costs: Costs) -> float:
    """Return the bytes of a frame in a store."""
    told = forms.stored_bytes(costs.records[0].atoms, None) if not costs.from_origin else 0.0
    return max(costs.first.nbytes, costs.again.nbytes, told)


def again(costs: Costs, machine: Machine) -> Reading:
    """Return what reading from the cache costs: as it was seen, else as the disk gives it, else as runs read at all."""
    if costs.from_cache or machine.disk_read is None:
        return costs.again
    nbytes = stored(costs)
    return Reading(nbytes / machine.disk_read, nbytes, machine.disk_read)


class Model:
    """One run: seconds of each phase, float64 (DRAWS,) where something is drawn, else a number."""

    def __init__(self, costs: Costs, machine: Machine, asked: PredictionInput, rng: np.random.Generator) -> None:
        self.costs, self.machine, self.asked, self.rng = costs, machine, asked, rng
        self.stored = stored(costs)
        #: Frames of the node that has most, and ranks that have as many as its.
        self.frames, self.ranks = float(forms.share(asked.frames, asked.nodes)), asked.ranks
        if costs.members:
            most = busiest(costs.members, self.stored, asked.ranks, asked.frames)
            self.frames, self.ranks = most * asked.ranks_per_node, max(1, round(asked.frames / most))
        self.pairs = asked.frames * costs.pair_bytes
        self.network = machine.network or NETWORK_BYTES_PER_SECOND
        self.latency = machine.latency or NETWORK_SECONDS
        self.one_host = machine.one_host
        cores = machine.cores or costs.records[0].cores
        #: Cores that a node's ranks have: its own, or its part of those that all nodes share.
        self.cores = cores / asked.nodes if self.one_host else float(cores)
        at_a_time = processors(asked.ranks, cores, 1 if self.one_host else asked.nodes)
        self.quantities = {
            "one": 1.0,
            "steps": float(forms.steps(asked.ranks)),
            "ranks": float(asked.ranks if self.one_host else asked.ranks_per_node),
            "others": float(0 if self.one_host else asked.ranks - asked.ranks_per_node),
            "bytes": self.pairs / at_a_time,
            "keys": costs.keys.at(one=1.0, frames=float(asked.frames)),
        }

    def memory(self) -> float:
        """Return the bytes that a node's ranks take: without pairs, and with what is held of them."""
        asked = self.asked
        held = forms.held_memory(asked.frames, asked.ranks_per_node, self.pairs / asked.ranks)
        return asked.ranks_per_node * (self.costs.rank_memory + held) + self.pairs / asked.nodes

    def run(self, first: bool) -> tuple[dict[str, Seconds], dict[str, float]]:
        """Return the seconds of each phase, and what each possible limit takes."""
        costs, asked = self.costs, self.asked
        startup = costs.startup.at(**self.quantities, first=float(first))
        alone = self.one_host or bool(costs.members)  # members' ranks agree with nobody
        rounds = 0.0 if alone else self._zazen_rounds()
        zazen = costs.zazen.at(**self.quantities)
        mapping, limits = self._mapping(first)
        most = np.array([forms.most_loaded(costs.parts * self.pairs, self.quantities["keys"], asked.ranks, self.rng)
                         for _ in range(DRAWS)])  # fmt: skip
        travel = np.zeros(DRAWS) if costs.members else self._travel(most)
        shuffling = costs.shuffle.at(**self.quantities, travel=0.0) + travel
        travelling = float(np.median(travel))
        reducing = costs.reduce_byte * most + costs.reduce.at(**self.quantities)
        finish = costs.finish.at(**self.quantities)
        even = costs.reduce_byte * self.pairs / asked.ranks
        limits |= {
            "starting": startup,
            "Zazen's rounds": zazen if self.one_host else rounds,
            "network": travelling,
            "sorting pairs": float(np.median(shuffling)) - travelling,
            "reduce()": even,
            "reduce(), skew": float(np.median(reducing)) - even,
            "finish()": finish,
        }
        if costs.members:  # ranks that wait for the busiest one
            waiting = 1 - asked.frames / (self.frames * asked.nodes)
            limits["map()"] *= 1 - waiting
            limits["few members"] = float(np.median(mapping)) * waiting
        seconds: tuple[Seconds, ...] = (startup, zazen + rounds, mapping, shuffling, reducing, finish)
        draws = dict(zip(PHASES, seconds, strict=True))
        return {**draws, "rest": costs.rest.at(**self.quantities)}, limits

    def staged(self) -> tuple[dict[str, Seconds], dict[str, float]]:
        """Return the same of staging: reading and writing in place of reading and map()."""
        first = self.costs.first
        startup = self.costs.opening.at(**self.quantities, first=1.0)
        write = self.stored / self.machine.disk_write if self.machine.disk_write else 0.0
        filling, limits = self._from_origin(first, write, 0.0)
        after = self.costs.after_map.at(**self.quantities)
        disk = self.frames * write  # of all ranks of a node
        limits["writing to disks"] = max(limits.pop("map()"), disk)
        filling = np.maximum(filling, disk)
        return {"startup": startup, "map": filling + after}, {**limits, "starting": startup}

    def _zazen_rounds(self) -> float:
        combine = self.machine.combine or COMBINED_BYTES_PER_SECOND
        return forms.zazen_seconds(self.asked.nodes, self.asked.frames, self.latency, self.network, combine)

    def _mapping(self, first: bool) -> tuple[Floats, dict[str, float]]:
        costs = self.costs
        if first:
            mapping, limits = self._from_origin(costs.first, costs.compute, costs.cpu_part)
        else:
            mapping, limits = self._from_cache()
            if self.asked.lost:
                # Nobody has what they held, and they have least to read: it is theirs, from the origin, where it lies
                # in pieces, as staging deals frames out in turns.
                lost = replace(self.asked, nodes=self.asked.lost)
                pieces = replace(costs.first, nbytes=costs.first.nbytes + PAGE)
                read, more = self._from_origin(pieces, costs.compute, costs.cpu_part, lost.ranks)
                mapping, limits = np.maximum(mapping, read), {**limits, **more}
        return mapping + costs.after_map.at(**self.quantities), limits

    def _from_cache(self) -> tuple[Floats, dict[str, float]]:
        """Return the map phase of caches, which nodes do not share: that of the slowest node."""
        costs, asked = self.costs, self.asked
        cached = again(costs, self.machine)
        each = costs.compute + cached.seconds
        rate = forms.rank_rate(each, costs.cpu_part, asked.ranks_per_node, self.cores)
        seconds = self.frames / rate + self._tail(each)
        from_disk = self._from_disk()
        disk = self.frames * cached.nbytes / from_disk if from_disk else 0.0
        limits = {
            "map()": seconds * costs.compute / max(1e-12, each),
            "reading caches": seconds * cached.seconds / max(1e-12, each),
            "disks": disk,
        }
        return np.maximum(seconds * self._slowest(), disk), limits

    def _from_disk(self) -> float | None:
        """Return the disk's rate if frames come from it: where no run has told of reading, or memory is short."""
        memory, rate = self.machine.memory, self.machine.disk_read
        short = memory is not None and self.frames * self.stored > memory / 2
        return rate if short or not self.costs.from_cache else None

    def _slowest(self) -> Floats:
        """Return how much longer than the mean the slowest node takes: frames differ, and so do ranks."""
        costs, asked = self.costs, self.asked
        if costs.compute <= 0:
            return np.ones(DRAWS)
        chance = costs.frame_spread / costs.compute / math.sqrt(max(1, self.frames))
        spread = math.hypot(chance, costs.rank_spread / math.sqrt(asked.ranks_per_node))
        return 1 + spread * forms.most_of_normals(asked.nodes, self.rng.random(DRAWS))

    def _from_origin(
        self, first: Reading, work: float, cpu_part: float, ranks: int | None = None
    ) -> tuple[Floats, dict[str, float]]:
        """Return the map phase where ranks, by default all, share the origin."""
        asked, ranks = self.asked, ranks or self.ranks
        per_rank = self.frames / asked.ranks_per_node
        rate = forms.rank_rate(work + first.seconds, cpu_part, asked.ranks_per_node, self.cores)
        own = asked.ranks_per_node / rate  # a frame's seconds; more where there are more ranks than cores
        alone = shared = per_rank * own
        served = 0.0
        network = None if self.one_host else self.machine.network  # by which what is read comes to a node
        arriving = self.frames * first.nbytes / network if network else 0.0
        if (capacity := self.machine.origin) is not None:
            total = ranks * per_rank * first.nbytes
            left = max(0.0, total - (self.machine.origin_at_once or 0.0))
            served, each = left / capacity, first.nbytes * left / max(1.0, total)
            shared = forms.read_seconds(ranks, per_rank, own, each, capacity, min(capacity, network or capacity))
        reading = alone * first.seconds / max(1e-12, work + first.seconds)
        limits = {
            "map()": alone - reading,
            "reading the origin": reading,
            # Where they take less, reading ahead hides them.
            "origin's bandwidth": served if served > alone else 0.0,
            "network, from the origin": arriving if arriving > alone else 0.0,
        }
        # A slow node's own time is longer, not that in which it waits for the origin.
        slowest = np.maximum(shared, np.maximum(alone * self._slowest(), arriving))
        return slowest + self._tail(own), limits

    def _tail(self, seconds: float) -> float:
        """Return how much later than the mean a node's last rank ends; of members, the busiest is counted anyway."""
        if self.costs.members:
            return 0.0
        return forms.tail_seconds(int(self.frames), self.asked.ranks_per_node, seconds)

    def _travel(self, most: Floats) -> Floats:
        """Return how long pairs travel, for draws of what the most loaded rank gets."""
        asked = self.asked
        found = [
            forms.exchange_seconds(self.pairs, asked.nodes, asked.ranks, self.latency, self.network, one)
            for one in most.tolist()
        ]
        return np.array(found) * self.costs.shuffle.terms.get("travel", 1.0)
