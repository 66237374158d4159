"""`Costs`: what a run costs, fitted to records of runs; all that is fitted in a plan is fitted here.

A phase's time is a sum of few terms, each of which can only add: a constant; one a step of the trees by which ranks
tell each other; one a byte of pairs. Least squares without negative terms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from himach.errors import UsageError
from himach.planning.closed_forms import exchange_seconds, held_memory, loads, steps
from himach.planning.machine import Machine
from himach.planning.records import Observed

__all__ = ["Costs", "Reading", "Sum", "fit", "fit_sum"]

Floats = npt.NDArray[np.float64]

#: What a phase in which ranks do little but meet takes: a constant, and steps of trees.
MEETING_TERMS = ("one", "steps")
#: Bytes of pairs below which they cost nothing that could be told from what a shuffle costs without any.
FREE_PAIR_BYTES = 1e6
#: The part of squared misses that may be left where another term is taken.
WORTHWHILE_FRACTION = 0.5


@dataclass(frozen=True)
class Sum:
    """Seconds as a sum of terms, by the names of what they are proportional to."""

    terms: Mapping[str, float]

    def at(self, **values: float) -> float:
        """Return the seconds where each quantity is so much."""
        return sum(factor * values[name] for name, factor in self.terms.items())


@dataclass(frozen=True)
class Reading:
    """What reading costs.

    Attributes
    ----------
    seconds, nbytes
        A frame's seconds in which a rank does nothing but read, where it waits the least; and its bytes.
    seen
        The most bytes a second that all ranks of a run got together.
    """

    seconds: float
    nbytes: float
    seen: float


@dataclass(frozen=True)
class Costs:
    """What runs of one kind cost.

    Attributes
    ----------
    records
        The runs that it is fitted to.
    compute, cpu_part
        A frame's seconds in map(); which part of a rank's time in its tasks its processor is busy.
    first, again
        Reading from the origin, and from the cache; where no run has done it for all its frames, as runs read at all.
    from_origin, from_cache
        Whether a run has.
    startup, opening, zazen, after_map, shuffle, reduce, finish, rest
        Seconds of phases: beside what map() and reduce() take themselves; `opening` is of starting what staging does,
        too, until frames can be read. A trajectory that a cache does not know yet is read in part when it is opened, so
        that first runs take so much longer to start.
    reduce_byte
        Seconds of reduce() a byte of pairs.
    pair_bytes
        Of a frame.
    keys
        Over all ranks; where the records are of one length, it is taken not to grow with frames. Of an ensemble, its
        members, of which there are more where there are more frames.
    parts
        Part of the pairs by part of the key space.
    frame_spread, rank_spread
        Standard deviation of the time of a frame in map(); of a rank's mean, as a part of it.
    rank_memory
        Bytes of a rank without its pairs, and what Zazen and the exchange take.
    """

    records: Sequence[Observed]
    compute: float
    cpu_part: float
    first: Reading
    again: Reading
    from_origin: bool
    from_cache: bool
    startup: Sum
    opening: Sum
    zazen: Sum
    after_map: Sum
    shuffle: Sum
    reduce: Sum
    finish: Sum
    rest: Sum
    reduce_byte: float
    pair_bytes: float
    keys: Sum
    parts: Floats
    frame_spread: float
    rank_spread: float
    rank_memory: float

    @property
    def frames(self) -> int:
        """Frames of the longest run."""
        return max(one.frames for one in self.records)

    @property
    def members(self) -> Sequence[int]:
        """Frames of each member of the longest run over an ensemble; none of runs over one trajectory."""
        return max(self.records, key=lambda one: one.frames).members

    @property
    def most_ranks(self) -> int:
        """Ranks of the widest run."""
        return max(one.ranks for one in self.records)


def fit(records: Sequence[Observed], machine: Machine | None = None) -> Costs:
    """Fit the costs of runs of one kind, made on a machine whose network, if it is known, tells what travelling took.

    Raises
    ------
    UsageError
        If there is no record, or they are of different analyses.
    """
    _same_kind(records)
    frames = sum(one.frames for one in records)
    compute = sum(one.computing for one in records) / frames
    parts = np.sum([one.pair_bytes for one in records], axis=0)
    total = float(parts.sum())
    reduced = sum(float(one.of_ranks["reduce"].mean()) * one.ranks for one in records)
    reduce_byte = reduced / total if total else 0.0
    from_origin = [one for one in records if one.first and not one.mixed]
    from_cache = [one for one in records if not one.first and not one.mixed]
    return Costs(
        records=records,
        compute=compute,
        cpu_part=sum(one.cpu for one in records) / max(1e-12, sum(one.busy for one in records)),
        first=_reading(from_origin or records),
        again=_reading(from_cache or records),
        from_origin=bool(from_origin),
        from_cache=bool(from_cache),
        startup=_phase(records, "startup", [*MEETING_TERMS, "first"]),
        opening=_fit(records, [one.opening for one in records], [*MEETING_TERMS, "first"]),
        zazen=_phase(records, "zazen", MEETING_TERMS),
        after_map=_fit(records, [max(0.0, one.seconds["map"] - _longest(one)) for one in records], MEETING_TERMS),
        shuffle=_shuffle(records, machine or Machine(), total),
        reduce=_fit(records, [_beside(one, reduce_byte) for one in records], MEETING_TERMS),
        finish=_phase(records, "finish", ["keys", "one"]),
        rest=_rest(records),
        reduce_byte=reduce_byte,
        pair_bytes=total / frames,
        keys=_keys(records),
        parts=parts / total if total else parts,
        frame_spread=_frame_spread(records),
        rank_spread=_rank_spread(records),
        rank_memory=max(map(_rank_memory, records)),
    )


def _same_kind(records: Sequence[Observed]) -> None:
    if not records:
        raise UsageError("a plan needs the record of a run, run.json, at least one")
    first = records[0]
    for one in records[1:]:
        if (one.analyses, one.atoms) != (first.analyses, first.atoms):
            raise UsageError(
                f"{one.name} is of other analyses, parameters or atoms than {first.name}; plan one kind at a time"
            )
        if bool(one.members) != bool(first.members):
            raise UsageError(f"of {one.name} and {first.name} one is of an ensemble; plan one kind at a time")


def _longest(one: Observed) -> float:
    return float(one.of_ranks["busy"].max())


def _beside(one: Observed, reduce_byte: float) -> float:
    """Return what the reduce phase took beside reduce() itself on the rank with most to do."""
    return max(0.0, one.seconds["reduce"] - reduce_byte * float(loads(one.pair_bytes, one.ranks).max(initial=0.0)))


def _rank_memory(one: Observed) -> float:
    """Return what a rank took beside what grows with frames and pairs."""
    pairs = float(one.pair_bytes.sum()) / one.ranks
    held = held_memory(one.frames, max(1, one.ranks // one.nodes), pairs)
    return max(0.0, one.memory - pairs - held)


def _shuffle(records: Sequence[Observed], machine: Machine, total: float) -> Sum:
    """Fit the shuffle: what bytes cost a processor, and how much longer they travel than the network's rate says."""
    names = ["bytes", "one", "ranks", "others"] if total > FREE_PAIR_BYTES else ["one", "ranks", "others"]
    quantities = [_quantities(one) | {"travel": travel_seconds(one, machine)} for one in records]
    if any(values["travel"] > 0 for values in quantities):
        names = ["travel", *names]
    return fit_sum(quantities, [one.seconds["shuffle"] for one in records], names)


def travel_seconds(one: Observed, machine: Machine) -> float:
    """Return how long the pairs of a run travelled between its nodes; 0 if the network is not known."""
    if machine.network is None or one.nodes == 1:
        return 0.0
    parts = one.pair_bytes
    most = float(loads(parts, one.ranks).max(initial=0.0))
    return exchange_seconds(float(parts.sum()), one.nodes, one.ranks, machine.latency or 0.0, machine.network, most)


def processors(ranks: int, cores: float, hosts: int) -> float:
    """Return how many ranks can compute at a time."""
    return min(float(ranks), cores * hosts)


def _quantities(one: Observed) -> dict[str, float]:
    handled = float(one.pair_bytes.sum()) / processors(one.ranks, one.cores, one.hosts)
    return {
        "one": 1.0, "first": float(one.first), "steps": float(steps(one.ranks)),
        # Messages of ranks of one host go one after another; to those of others each rank sends on its own.
        "ranks": one.ranks / one.hosts, "others": one.ranks - one.ranks / one.hosts,
        "bytes": handled, "keys": _keys_of(one),
    }  # fmt: skip


def _phase(records: Sequence[Observed], phase: str, names: Sequence[str]) -> Sum:
    return _fit(records, [one.seconds[phase] for one in records], names)


def _fit(records: Sequence[Observed], seconds: Sequence[float], names: Sequence[str]) -> Sum:
    return fit_sum([_quantities(one) for one in records], seconds, names)


def fit_sum(quantities: Sequence[Mapping[str, float]], seconds: Sequence[float], names: Sequence[str]) -> Sum:
    """Fit seconds to a sum of the named quantities, no term of which is negative.

    Repeated runs count by their median. A sum of more terms is taken if it misses half of what one of fewer does,
    and of sums that fit equally well the one whose terms are named first: what one run alone cannot tell apart. As many
    terms as runs fit anything, so there are fewer, but for two.
    """
    rows: dict[tuple[float, ...], list[float]] = {}
    for values, value in zip(quantities, seconds, strict=True):
        rows.setdefault(tuple(values[name] for name in names), []).append(value)
    matrix, target = np.array(list(rows)), np.array([float(np.median(values)) for values in rows.values()])
    scale = np.where(matrix.max(axis=0) > 0, matrix.max(axis=0), 1.0)
    best, least = Sum({}), float(np.square(target).sum())
    for count in range(1, min(len(names), max(2, len(target) - 1), len(target)) + 1):
        for chosen in combinations(range(len(names)), count):
            columns = matrix[:, chosen] / scale[list(chosen)]
            factors, *_ = np.linalg.lstsq(columns, target, rcond=None)
            missed = float(np.square(columns @ factors - target).sum())
            # Another term must tell much: what it is fitted to has its own chance.
            bound = least * (1 - 1e-6 if count <= len(best.terms) or not best.terms else WORTHWHILE_FRACTION) - 1e-18
            if factors.min() >= 0 and missed < bound:
                best, least = Sum({names[i]: float(f / scale[i]) for i, f in zip(chosen, factors, strict=True)}), missed
    return best


def _rest(records: Sequence[Observed]) -> Sum:
    """Return what no phase counts: waiting between them; where ranks wait within one for another's, it is negative."""
    phases = ("startup", "zazen", "map", "shuffle", "reduce", "finish")
    values = [one.seconds["total"] - sum(one.seconds[phase] for phase in phases) for one in records]
    return Sum({"one": float(np.median(values))})


def _reading(records: Sequence[Observed]) -> Reading:
    alone = min(records, key=lambda one: (one.reading / one.frames, one.ranks))
    nbytes = (alone.origin_bytes + alone.cache_bytes) / alone.frames
    seen = max((one.origin_bytes + one.cache_bytes) / max(1e-9, one.seconds["map"]) for one in records)
    return Reading(alone.reading / alone.frames, nbytes, seen)


def _keys(records: Sequence[Observed]) -> Sum:
    """Return how many keys there are: as many in every run, or more where there are more frames."""
    quantities = [{"one": 1.0, "frames": float(one.frames)} for one in records]
    names = ["frames"] if records[0].members else ["one", "frames"]
    return fit_sum(quantities, [_keys_of(one) for one in records], names)


def _keys_of(one: Observed) -> float:
    """Return the keys of a run; of an ensemble what is joined, its members."""
    return float(len(one.members) or one.keys)


def _frame_spread(records: Sequence[Observed]) -> float:
    spreads = [float(np.std(one.frame_quantiles[:-1])) for one in records if len(one.frame_quantiles) > 2]
    return float(np.median(spreads)) if spreads else 0.0


def _rank_spread(records: Sequence[Observed]) -> float:
    """Return how ranks differ beyond what their frames' times do by chance."""
    found = []
    for one in records:
        mean = one.of_ranks["compute"][one.of_ranks["frames"] > 0]
        if len(mean) > 1 and mean.mean() > 0:
            chance = float(np.std(one.frame_quantiles[:-1]) / mean.mean() / np.sqrt(one.frames / one.ranks))
            found.append(max(0.0, float(mean.std(ddof=1) / mean.mean()) ** 2 - chance**2) ** 0.5)
    return float(np.median(found)) if found else 0.0
