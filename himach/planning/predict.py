"""`predict()`: what a run would take on so many nodes, from `himach.planning.model`; or what is missing to tell.

A prediction is the median of the model's draws, and the range that nine of ten lie in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from himach.planning import failures, node
from himach.planning.fitting import Costs
from himach.planning.machine import Machine
from himach.planning.model import PHASES, SLOW, Asked, Model, again, stored
from himach.planning.records import MIXED

__all__ = ["ACCURACY", "KINDS", "PHASES", "Accuracy", "Asked", "Kind", "Prediction", "predict"]

Kind = Literal["first", "second", "stage"]
KINDS: tuple[Kind, ...] = ("first", "second", "stage")
#: The part of map() that pairs may travel for where no network is known.
LITTLE = 0.01


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
    asked: Asked
    phases: dict[str, float]
    total: float
    low: float
    high: float
    limit: str
    origin_bytes: float
    node_memory: float
    node_pairs: float
    node_disk: float
    restarted: float | None = None
    resumed: float | None = None


def predict(costs: Costs, machine: Machine, asked: Asked, kind: Kind) -> Prediction | str:
    """Return the prediction; or, in words, what is missing for it and what would give it."""
    if (missing := _missing(costs, machine, asked, kind)) is not None:
        return missing
    rng = np.random.default_rng([asked.seed, asked.nodes, asked.ranks_per_node, asked.frames, KINDS.index(kind)])
    model = Model(costs, machine, asked, rng)
    draws, limits = model.staged() if kind == "stage" else model.run(kind == "first")
    phases = {phase: float(np.median(values)) for phase, values in draws.items() if phase != "rest"}
    total = np.sum(list(draws.values()), axis=0)
    found = Prediction(
        kind=kind,
        asked=asked,
        phases=phases,
        total=float(np.median(total)),
        low=float(np.quantile(total, 0.05)),
        high=float(np.quantile(total, 0.95)),
        limit=max(limits, key=lambda name: limits[name]),
        origin_bytes=0.0 if kind == "second" or costs.first is None else asked.frames * costs.first.nbytes,
        node_memory=model.memory(),
        node_pairs=0.0 if kind == "stage" else model.pairs / asked.nodes,
        node_disk=node.share(asked.frames, asked.nodes) * model.stored,
    )
    return _with_failures(found, machine, rng)


def _missing(costs: Costs, machine: Machine, asked: Asked, kind: Kind) -> str | None:
    """Tell what is missing for a prediction."""
    name = costs.records[0].name
    if kind == "second" and again(costs, machine) is None:
        return (
            "no run has read all frames from the cache and no disk is described: the same command once more "
            f"('himach run --again {name}'), or 'himach bench machine', gives what is missing"
        )
    if kind != "second" and costs.first is None:
        return (
            f"no run has read all frames from the origin: 'himach run --again {name} --cache off' gives what is missing"
        )
    if kind != "first" and machine.disk is not None:
        held = asked.frames * stored(costs)
        seen = max((one.frames / one.nodes for one in costs.records if one.cached > 1 - MIXED), default=0.0)
        if held / asked.nodes > machine.disk and asked.frames / asked.nodes > seen:
            return (
                f"a node would hold {_size(held / asked.nodes)} of frames, and its disk has {_size(machine.disk)} for "
                f"a store: {math.ceil(held / machine.disk):,} nodes hold them all"
            )
    if kind != "second" and machine.origin is None:
        assert costs.first is not None
        alone = costs.first.seconds + (costs.compute if kind == "first" else 0.0)
        wanted = asked.ranks * costs.first.nbytes / max(alone, 1e-9)
        if wanted > 1.05 * costs.first.seen and asked.ranks > costs.most_ranks:
            return (
                f"{asked.ranks} ranks would ask {wanted / 1e6:.0f} MB/s of the origin, and no run has seen it give "
                f"more than {costs.first.seen / 1e6:.0f} MB/s: 'himach bench machine --origin PATH' measures what it "
                "gives, or a run on more nodes"
            )
    if asked.nodes > 1 and machine.network is None and kind != "stage":
        travels = asked.frames * costs.pair_bytes / asked.nodes / SLOW
        mapping = asked.frames * costs.compute / asked.ranks
        if travels > LITTLE * mapping:
            return (
                f"{_size(asked.frames * costs.pair_bytes)} of pairs would travel, and no network is described: 'himach "
                "bench machine' on two nodes gives what is missing"
            )
    return None


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
    restarted = failures.without_pairs(found.total, rate) - found.total
    resumed = failures.with_pairs(startup, mapping, rest, found.asked.every, rate) - found.total
    return replace(found, restarted=restarted, resumed=resumed)
