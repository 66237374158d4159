"""`predict()`: what a run would take on so many nodes, from `himach.planning.model`, and what is not known.

A prediction is the median of the model's draws, and the range that nine of ten lie in, but no narrower than such
predictions were off. What is not known lies between two bounds, and draws are made of both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from himach.planning import closed_forms as forms
from himach.planning.fitting import Costs
from himach.planning.machine import Machine
from himach.planning.model import DRAWS, NETWORK_BYTES_PER_SECOND, PHASES, Model, PredictionInput, stored
from himach.planning.records import MIXED

__all__ = ["ACCURACY", "KINDS", "LOOSE", "PHASES", "Accuracy", "Kind", "Prediction", "PredictionInput", "predict"]

Kind = Literal["first", "second", "stage"]
KINDS: tuple[Kind, ...] = ("first", "second", "stage")
#: The part of map() that pairs may travel for where no network is known.
PAIR_FRACTION = 0.01
#: What a node's network gives at most where none is known.
MOST_NETWORK_BYTES_PER_SECOND = 1e10
#: How far predictions from one record, of other nodes than its own, were off at most, rounded: 16 to 58 % were seen.
LOOSE = 0.6
#: Numbers of nodes of which records are, at least, for what `ACCURACY` says.
RECORDED_NODES = 3


@dataclass(frozen=True)
class Accuracy:
    """How far predictions of a kind were from the medians of what was measured, as parts of these; and on what.

    `middle` and `worst` are of absolute errors, of so many `cases` on up to so many `nodes`.
    """

    middle: float
    worst: float
    cases: int
    nodes: int

    def __str__(self) -> str:
        return (
            f"{self.middle:.1%} at the median, {self.worst:.1%} at most, of {self.cases} cases up to {self.nodes} nodes"
        )


#: Of blind predictions on virtual hosts (docs/plan.md), from benchmarks/results/plan.json.
ACCURACY: dict[Kind, Accuracy] = {
    "first": Accuracy(0.0146, 0.0403, 6, 16),
    "second": Accuracy(0.0069, 0.0500, 6, 16),
    "stage": Accuracy(0.0318, 0.0575, 6, 16),
}


@dataclass(frozen=True)
class Prediction:
    """What a run would take; seconds and bytes.

    Attributes
    ----------
    kind
        ``first``: frames come from the origin; ``second``: from the caches; ``stage``: `himach stage` of them.
    phases
        Medians by phase; of a stage ``map`` is its filling of stores.
    total, low, high
        Median, and the range of nine of ten draws.
    error
        How far such predictions were off, at most, as a part: `low` and `high` are at least so far away.
    unknown
        What is taken for what neither records nor machine tell, and what would.
    limit
        What takes most of it.
    origin_bytes
        Read from the origin.
    node_memory, node_pairs, node_disk
        What a node's ranks take together, of that its pairs, and its part of the frames in its store.
    restarted, resumed
        Expected seconds that failures cost, where a run that failed begins anew, and where pairs are kept; None where
        no rate of failures is known.
    """

    kind: Kind
    asked: PredictionInput
    phases: dict[str, float]
    total: float
    low: float
    high: float
    error: float
    unknown: Sequence[str]
    limit: str
    origin_bytes: float
    node_memory: float
    node_pairs: float
    node_disk: float
    restarted: float | None = None
    resumed: float | None = None


def predict(costs: Costs, machine: Machine, asked: PredictionInput, kind: Kind) -> Prediction | str:
    """Return the prediction; or, in words, why there can be no such run."""
    if kind != "first" and (full := _full(costs, machine, asked)) is not None:
        return full
    machines, unknown = _taken(costs, machine, asked, kind)
    rng = np.random.default_rng([asked.seed, asked.nodes, asked.ranks_per_node, asked.frames, KINDS.index(kind)])
    models = [Model(costs, one, asked, rng) for one in machines]
    drawn = [model.staged() if kind == "stage" else model.run(kind == "first") for model in models]
    draws = {phase: np.concatenate([np.broadcast_to(one[phase], DRAWS) for one, _ in drawn]) for phase in drawn[0][0]}
    total = sum(draws.values(), np.zeros(1))
    middle, error = float(np.median(total)), _error(costs, machine, asked, kind, unknown)
    model, limits = models[0], drawn[0][1]
    found = Prediction(
        kind=kind,
        asked=asked,
        phases={phase: float(np.median(values)) for phase, values in draws.items() if phase != "rest"},
        total=middle,
        low=min(float(np.quantile(total, 0.05)), middle / (1 + error)),
        high=max(float(np.quantile(total, 0.95)), middle * (1 + error)),
        error=error,
        unknown=unknown,
        limit=max(limits, key=lambda name: limits[name]),
        origin_bytes=0.0 if kind == "second" else asked.frames * costs.first.nbytes,
        node_memory=model.memory(),
        node_pairs=0.0 if kind == "stage" else model.pairs / asked.nodes,
        node_disk=forms.share(asked.frames, asked.nodes) * model.stored,
    )
    return _with_failures(found, machine, rng)


def _full(costs: Costs, machine: Machine, asked: PredictionInput) -> str | None:
    """Tell where the disks of the nodes cannot hold the frames."""
    held = asked.frames * stored(costs)
    seen = max((one.frames / one.nodes for one in costs.records if one.cached > 1 - MIXED), default=0.0)
    if machine.disk is None or held / asked.nodes <= machine.disk or asked.frames / asked.nodes <= seen:
        return None
    return (
        f"a node would hold {_size(held / asked.nodes)} of frames, and its disk has {_size(machine.disk)} for a store: "
        f"{math.ceil(held / machine.disk):,} nodes hold them all"
    )


def _taken(costs: Costs, machine: Machine, asked: PredictionInput, kind: Kind) -> tuple[list[Machine], list[str]]:
    """Return the machines between which this one may be, the slowest first; and what is taken for what is not known."""
    name, machines, unknown = costs.records[0].name, [machine], []
    if kind == "second" and not costs.from_cache and machine.disk_read is None:
        unknown.append(
            f"reading from caches is taken to cost what reading cost in {name}: the same command once more ('himach "
            f"run --again {name}'), or 'himach bench machine', tells"
        )
    if kind != "second" and not costs.from_origin:
        unknown.append(
            f"reading from the origin is taken to cost what reading cost in {name}: 'himach run --again {name} --cache "
            "off' tells"
        )
    if kind != "second" and machine.origin is None:
        alone = costs.first.seconds + (costs.compute if kind == "first" else 0.0)
        wanted = asked.ranks * costs.first.nbytes / max(alone, 1e-9)
        if wanted > 1.05 * costs.first.seen and asked.ranks > costs.most_ranks:
            machines = [replace(machine, origin=costs.first.seen), machine]
            unknown.append(
                f"the origin is taken to give at least the {_size(costs.first.seen)}/s that were read, and at "
                f"most the {_size(wanted)}/s that {asked.ranks} ranks would ask: 'himach bench machine --origin PATH', "
                "or a run on more nodes, tells"
            )
    if asked.nodes > 1 and machine.network is None and kind != "stage":
        travels = asked.frames * costs.pair_bytes / asked.nodes / NETWORK_BYTES_PER_SECOND
        if travels > PAIR_FRACTION * asked.frames * costs.compute / asked.ranks:
            rates = (NETWORK_BYTES_PER_SECOND, MOST_NETWORK_BYTES_PER_SECOND)
            machines = [replace(one, network=rate) for one in machines for rate in rates]
            unknown.append(
                f"{_size(asked.frames * costs.pair_bytes)} of pairs are taken to travel at {_size(rates[0])}/s to "
                f"{_size(rates[1])}/s a node: 'himach bench machine' on two nodes tells"
            )
    return machines, unknown


def _error(costs: Costs, machine: Machine, asked: PredictionInput, kind: Kind, unknown: Sequence[str]) -> float:
    """Return how far such predictions were off at most: where the machine is described, and records are of several."""
    seen, nodes = ACCURACY[kind], {one.nodes for one in costs.records}
    described = machine.origin is not None and machine.network is not None and costs.from_origin and costs.from_cache
    measured = described and len(nodes) >= RECORDED_NODES and asked.nodes <= seen.nodes and not unknown
    return seen.worst if measured else LOOSE


def _size(nbytes: float) -> str:
    value, unit = (nbytes / 1e9, "GB") if nbytes >= 1e9 else (nbytes / 1e6, "MB")
    return f"{value:,.0f} {unit}" if value >= 10 else f"{value:.2g} {unit}"


def _with_failures(found: Prediction, machine: Machine, rng: np.random.Generator) -> Prediction:
    """Return the prediction with what failures cost: expected, from closed forms."""
    if machine.node_mtbf is None or found.kind == "stage":
        return found
    rate = found.asked.nodes / machine.node_mtbf
    startup = found.phases["startup"] + found.phases["zazen"]
    mapping = found.phases["map"]
    rest = max(0.0, found.total - startup - mapping)
    restarted = forms.without_pairs(found.total, rate) - found.total
    resumed = forms.with_pairs(startup, mapping, rest, found.asked.every, rate) - found.total
    return replace(found, restarted=restarted, resumed=resumed)
