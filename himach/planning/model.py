"""`predict()`: predicted cost of a run on a number of nodes, phase by phase, and the unknowns.

Random quantities (times of frames, differences of ranks, skew of few keys) are taken at their median for the total, and
all together at the 5th and 95th percentile for ``low`` and ``high``, which are at least as far from the total as the
known error of predictions. An unknown lies between two bounds; the total is in their middle.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from himach.io.store.sizes import show_size
from himach.planning import closed_forms as forms
from himach.planning.costs import MIXED, PHASES, Costs, ReadCost, evaluate
from himach.planning.machine import Machine

#: A run that reads from the origin, a run that reads from caches, and `himach stage`.
Kind = Literal["first", "second", "stage"]
KINDS: tuple[Kind, ...] = ("first", "second", "stage")
#: Seconds by phase, and seconds by possible limit.
Outcome = tuple[dict[str, float], dict[str, float]]

LOW, MIDDLE, HIGH = 0.05, 0.5, 0.95
#: Assumed values of an unknown network: lowest and highest bytes a second, latency in seconds, rate of combining
#: bitmaps; and the part of map() from which the travel of pairs counts.
NETWORK_RATES, NETWORK_SECONDS, COMBINED_BYTES_PER_SECOND = (1e8, 1e10), 5e-5, 4e9
PAIR_FRACTION = 0.01
#: Pairs take at most 1 / MEMORY_PART of a node's memory (`himach.ranks.launch.memory.default_memory`).
MEMORY_PART = 4
#: Maximum error of predictions from one record for other numbers of nodes, rounded up: 16 to 58 % were measured.
LOOSE = 0.6
#: Minimum different numbers of nodes in the records for which `ACCURACY` holds.
RECORDED_NODES = 3


@dataclass(frozen=True)
class Accuracy:
    """Relative errors of predictions: median (`middle`) and maximum (`worst`) of `cases` on up to `nodes` nodes."""

    middle: float
    worst: float
    cases: int
    nodes: int

    def __str__(self) -> str:
        return (
            f"{self.middle:.1%} at the median, {self.worst:.1%} at most, of {self.cases} cases up to {self.nodes} nodes"
        )


#: Errors of blind predictions on virtual hosts (docs/plan.md), from benchmarks/results/plan.json.
ACCURACY: dict[Kind, Accuracy] = {
    "first": Accuracy(0.0146, 0.0403, 6, 16),
    "second": Accuracy(0.0069, 0.0500, 6, 16),
    "stage": Accuracy(0.0318, 0.0575, 6, 16),
}


@dataclass(frozen=True)
class PredictionInput:
    """Input of a prediction: nodes, ranks per node and frames."""

    nodes: int
    ranks_per_node: int
    frames: int

    @property
    def ranks(self) -> int:
        """Number of ranks on all nodes."""
        return self.nodes * self.ranks_per_node


#: Cells of a plan's tables by column, and ``frames``; ``error``: maximum relative error of such predictions;
#: ``unknown``: assumptions, and how to measure the unknowns; ``spills``: whether pairs are spilled to disks.
Prediction = dict[str, Any]


def predict(costs: Costs, machine: Machine, request: PredictionInput, kind: Kind) -> Prediction | str:
    """Return the prediction, or a text that says why there can be no such run."""
    if kind != "first" and (full := _disk_shortage(costs, machine, request)) is not None:
        return full
    machines, unknown = _bounds(costs, machine, request, kind)
    models = [_Model(costs, bound, request) for bound in machines]
    low, middle, high = ([model.outcome(kind, level) for model in models] for level in (LOW, MIDDLE, HIGH))
    phases = {phase: float(np.median([seconds.get(phase, 0.0) for seconds, _ in middle])) for phase in PHASES}
    total = float(np.median([*map(_sum, middle)]))
    error = _error(costs, machine, request, kind, unknown)
    limits, node_pairs = middle[0][1], 0.0 if kind == "stage" else models[0].pairs / request.nodes
    return {
        "run": kind, "nodes": request.nodes, "ranks": request.ranks, "frames": request.frames, **phases, "total": total,
        "low": min(*map(_sum, low), total / (1 + error)), "high": max(*map(_sum, high), total * (1 + error)),
        "limit": max(limits, key=lambda name: limits[name]), "error": error, "unknown": unknown,
        "origin_gb": 0.0 if kind == "second" else request.frames * costs.first.nbytes / 1e9,
        "node_memory_gb": models[0].memory() / 1e9,
        "node_disk_gb": -(-request.frames // request.nodes) * costs.stored / 1e9,
        "spills": machine.memory is not None and node_pairs > machine.memory / MEMORY_PART,
    }  # fmt: skip


def _sum(outcome: Outcome) -> float:
    return sum(outcome[0].values())


def _disk_shortage(costs: Costs, machine: Machine, request: PredictionInput) -> str | None:
    """Return a text if the disks of the nodes cannot hold the frames, else None."""
    nbytes = request.frames * costs.stored
    cached = max((run.frames / run.nodes for run in costs.records if run.cached > 1 - MIXED), default=0.0)
    if machine.disk is None or nbytes / request.nodes <= machine.disk or request.frames / request.nodes <= cached:
        return None
    return (
        f"a node would hold {show_size(nbytes / request.nodes)} of frames, and its disk has {show_size(machine.disk)} "
        f"for a store: {math.ceil(nbytes / machine.disk):,} nodes hold them all"
    )


def _bounds(costs: Costs, machine: Machine, request: PredictionInput, kind: Kind) -> tuple[list[Machine], list[str]]:
    """Return the machines that bound this one, the slowest first, and texts about unknown values."""
    name, machines, unknown = costs.records[0].name, [machine], []
    if kind == "second" and not costs.from_cache and machine.disk_read is None:
        unknown.append(
            f"reading from caches is taken to cost what reading cost in {name}: the same command once more ('himach "
            f"run --rerun {name}'), or 'himach bench machine', tells"
        )
    if kind != "second" and not costs.from_origin:
        unknown.append(
            f"reading from the origin is taken to cost what reading cost in {name}: 'himach run --rerun {name} --cache "
            "off' tells"
        )
    if kind != "second" and machine.origin is None:
        alone = costs.first.seconds + (costs.compute if kind == "first" else 0.0)
        most = request.ranks * costs.first.nbytes / max(alone, 1e-9)
        if most > 1.05 * costs.first.rate and request.ranks > costs.most_ranks:
            machines = [replace(machine, origin=costs.first.rate), machine]
            unknown.append(
                f"the origin is taken to give at least the {show_size(costs.first.rate)}/s that were read, and at most "
                f"the {show_size(most)}/s that {request.ranks} ranks would ask: 'himach bench machine --origin PATH', "
                "or a run on more nodes, tells"
            )
    pairs, mapping = request.frames * costs.pair_bytes, request.frames * costs.compute / request.ranks
    travels = pairs / request.nodes / NETWORK_RATES[0] > PAIR_FRACTION * mapping
    if request.nodes > 1 and machine.network is None and kind != "stage" and travels:
        machines = [replace(bound, network=rate) for bound in machines for rate in NETWORK_RATES]
        least, greatest = map(show_size, NETWORK_RATES)
        unknown.append(
            f"{show_size(pairs)} of pairs are taken to travel at {least}/s to {greatest}/s a node: 'himach bench "
            "machine' on two nodes tells"
        )
    return machines, unknown


def _error(costs: Costs, machine: Machine, request: PredictionInput, kind: Kind, unknown: list[str]) -> float:
    """Return the maximum relative error: `ACCURACY` if machine and records cover the request, else `LOOSE`."""
    measured = None not in (machine.origin, machine.network) and costs.from_origin and costs.from_cache
    several = len({run.nodes for run in costs.records}) >= RECORDED_NODES
    covered = measured and several and request.nodes <= ACCURACY[kind].nodes and not unknown
    return ACCURACY[kind].worst if covered else LOOSE


class _Model:
    """Model of one run on a machine."""

    def __init__(self, costs: Costs, machine: Machine, request: PredictionInput) -> None:
        self.costs, self.machine, self.request = costs, machine, request
        ranks, self.per_node, hosts = request.ranks, request.ranks_per_node, 1 if machine.one_host else request.nodes
        #: Frames of the busiest node.
        self.frames = float(-(-request.frames // request.nodes))
        self.pairs = request.frames * costs.pair_bytes
        self.network, self.latency = machine.network or NETWORK_RATES[0], machine.latency or NETWORK_SECONDS
        cores = machine.cores or costs.records[0].cores
        self.cores = cores * hosts / request.nodes  # per node
        self.quantities = {
            "one": 1.0, "travel": 0.0, "frames": float(request.frames), "steps": float(forms.steps(ranks)),
            "ranks": ranks / hosts, "others": ranks - ranks / hosts, "bytes": self.pairs / min(ranks, cores * hosts),
        }  # fmt: skip
        self.quantities["keys"] = evaluate(costs.keys, self.quantities)

    def memory(self) -> float:
        """Return the bytes of a node's ranks: fixed memory, buffers, and pairs."""
        fixed = forms.held_memory(self.request.frames, self.per_node, self.pairs / self.request.ranks)
        return self.per_node * (self.costs.rank_memory + fixed) + self.pairs / self.request.nodes

    def outcome(self, kind: Kind, level: float) -> Outcome:
        """Return the times of a run or staging, with random quantities at quantile `level`."""
        costs, request, machine = self.costs, self.request, self.machine
        quantities = self.quantities | {"first": float(kind != "second")}
        extra = {phase: evaluate(terms, quantities) for phase, terms in costs.terms.items()}
        if kind == "stage":  # reading and writing in place of reading and map()
            write = costs.stored / machine.disk_write if machine.disk_write else 0.0
            filling, limits = self._from_origin(costs.first, write, 0.0, level)
            disk = self.frames * write  # of all ranks of a node
            limits |= {"writing to disks": max(limits.pop("map()"), disk), "starting": extra["opening"]}
            return {"startup": extra["opening"], "map": max(filling, disk) + extra["after_map"]}, limits
        if kind == "first":
            mapping, limits = self._from_origin(costs.first, costs.compute, costs.cpu_part, level)
        else:
            mapping, limits = self._from_cache(level)
        mapping += extra["after_map"]
        most = forms.most_loaded(costs.parts * self.pairs, quantities["keys"], request.ranks, level)
        combine, rounds = machine.combine or COMBINED_BYTES_PER_SECOND, 0.0
        if not machine.one_host:
            rounds = forms.zazen_seconds(request.nodes, request.frames, self.latency, self.network, combine)
        travel = forms.exchange_seconds(self.pairs, request.nodes, request.ranks, self.latency, self.network, most)
        travel *= costs.terms["shuffle"]["travel"] or 1.0
        reducing, even = costs.reduce_byte * most + extra["reduce"], costs.reduce_byte * self.pairs / request.ranks
        limits |= {
            "starting": extra["startup"], "Zazen's rounds": extra["zazen"] if machine.one_host else rounds,
            "network": travel, "sorting pairs": extra["shuffle"], "reduce()": even,
            "reduce(), skew": reducing - even, "finish()": extra["finish"],
        }  # fmt: skip
        return {
            "startup": extra["startup"], "zazen": extra["zazen"] + rounds, "map": mapping, "reduce": reducing,
            "shuffle": extra["shuffle"] + travel, "finish": extra["finish"], "rest": costs.rest,
        }, limits  # fmt: skip

    def _from_cache(self, level: float) -> tuple[float, dict[str, float]]:
        """Return the map phase from caches, which nodes do not share: the time of the slowest node."""
        costs, memory, disk = self.costs, self.machine.memory, self.machine.disk_read
        cached = costs.second  # measured, else from the disk's rate, else as in any run
        if not costs.from_cache and disk is not None:
            cached = ReadCost(costs.stored / disk, costs.stored, disk)
        period = max(1e-12, costs.compute + cached.seconds)
        seconds = self.frames / forms.rank_rate(period, costs.cpu_part, self.per_node, self.cores) + self._tail(period)
        short = memory is not None and self.frames * costs.stored > memory / 2
        from_disk = self.frames * cached.nbytes / disk if disk and (short or not costs.from_cache) else 0.0
        reading = seconds * cached.seconds / period
        limits = {"map()": seconds - reading, "reading caches": reading, "disks": from_disk}
        return max(seconds * self._slowest(level), from_disk), limits

    def _slowest(self, level: float) -> float:
        """Return the time of the slowest node relative to the mean, because frames and ranks differ."""
        costs = self.costs
        if costs.compute <= 0:
            return 1.0
        chance = costs.frame_spread / costs.compute / math.sqrt(max(1, self.frames))
        spread = math.hypot(chance, costs.rank_spread / math.sqrt(self.per_node))
        return 1 + spread * forms.most_of_normals(self.request.nodes, level)

    def _from_origin(
        self, first: ReadCost, work: float, cpu_part: float, level: float
    ) -> tuple[float, dict[str, float]]:
        """Return the map phase of ranks that share the origin."""
        ranks, period, per_rank = self.request.ranks, max(1e-12, work + first.seconds), self.frames / self.per_node
        interval = self.per_node / forms.rank_rate(period, cpu_part, self.per_node, self.cores)  # a frame's seconds
        unshared = shared = per_rank * interval
        served = 0.0
        network = None if self.machine.one_host else self.machine.network  # carries the frames to a node
        arriving = self.frames * first.nbytes / network if network else 0.0
        if (capacity := self.machine.origin) is not None:
            total = ranks * per_rank * first.nbytes
            remaining = max(0.0, total - (self.machine.origin_at_once or 0.0))
            served, nbytes = remaining / capacity, first.nbytes * remaining / max(1.0, total)
            shared = forms.read_seconds(ranks, per_rank, interval, nbytes, capacity, min(capacity, network or capacity))
        reading = unshared * first.seconds / period
        limits = {
            "map()": unshared - reading, "reading the origin": reading,
            # Below that, reading ahead hides them.
            "origin's bandwidth": served if served > unshared else 0.0,
            "network, from the origin": arriving if arriving > unshared else 0.0,
        }  # fmt: skip
        # A slow node needs longer for its own work, not for waiting on the origin.
        return max(shared, unshared * self._slowest(level), arriving) + self._tail(interval), limits

    def _tail(self, seconds: float) -> float:
        """Return the delay of a node's last rank after the mean."""
        return forms.tail_seconds(int(self.frames), self.per_node, seconds)
