"""`observe()`: a run's record as input of a plan; `Costs`: costs of runs, fitted to their records.

A phase's time is a sum of a few nonnegative terms: a constant, a cost per step of the trees by which ranks communicate,
a cost per byte of pairs. `fit_terms()` is nonnegative least squares (Lawson and Hanson, Solving Least Squares Problems,
1974, chapter 23), with one row per record.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import nnls

from himach.engine.reducing import SHARD_GROUPS
from himach.errors import UsageError
from himach.planning.closed_forms import exchange_seconds, held_memory, loads, steps, stored_bytes
from himach.planning.machine import Machine

PHASES = ("startup", "zazen", "map", "shuffle", "reduce", "finish")
#: Part of a run's frames that may come from another place than the rest.
MIXED = 0.02
MEETING = ("one", "steps")  # terms of a phase in which ranks mainly synchronise
#: Terms by phase. If the records cannot distinguish terms, the first takes all.
TERMS = {
    "startup": (*MEETING, "first"), "opening": (*MEETING, "first"), "zazen": MEETING, "after_map": MEETING,
    "shuffle": ("travel", "bytes", "one", "ranks", "others"), "reduce": MEETING, "finish": ("keys", "one"),
}  # fmt: skip
#: Bytes of pairs below which their cost cannot be distinguished from that of an empty shuffle.
FREE_PAIR_BYTES = 1e6


class ObservedRun:
    """A past run, from the field ``planning`` of its record."""

    def __init__(self, record: Mapping[str, Any], name: str) -> None:
        planning, assignment = record["planning"], record["assignment"]
        totals = planning["totals"]
        self.name = name
        self.analyses = [{key: entry[key] for key in ("name", "source", "parameters", "then") if key in entry}
                         for entry in record["analyses"]]  # fmt: skip
        self.atoms, self.frames = int(record["dataset"]["atoms"]), int(totals["frames"]["sum"])
        self.ranks, self.nodes = int(record["ranks"]), int(record["nodes"])
        self.hosts, self.cores = int(planning["hosts"]), int(planning["cores"])
        #: Part of the frames that came from the cache. A mixed run had frames from both and describes neither.
        self.cached = (assignment["native"] + assignment["alien"]) / max(1, sum(assignment.values()))
        self.mixed = MIXED < self.cached < 1 - MIXED
        self.first = self.cached < 0.5
        self.nbytes = int(record["bytes"]["cache"]) + int(record["bytes"]["origin"])
        self.seconds = {phase: float(record["seconds"][phase]) for phase in (*PHASES, "total")}
        self.of_ranks = {column: np.asarray(cells, float) for column, cells in planning["ranks"].items()}
        self.keys = int(totals["keys"]["sum"])
        self.frame_quantiles = np.asarray(planning["frame_seconds"], float)
        self.pair_bytes = np.asarray(planning["pair_bytes"], float)
        self.memory, self.opening = float(totals["memory"]["most"]), float(totals["opening"]["most"])
        self.uncertainty: Mapping[str, Any] = dict(record.get("uncertainty") or {})
        self.reused = int((record.get("reused") or {}).get("frames", 0))
        if min(self.ranks, self.nodes, self.hosts, self.cores) < 1:
            raise ValueError("no ranks, nodes, hosts or cores")
        rows = {len(self.of_ranks[column]) for column in ("frames", "busy", "read", "compute", "reduce")}
        if len(rows) != 1 or 0 in rows:
            raise ValueError("a table of ranks without rows, or of uneven columns")
        if len(self.pair_bytes) != SHARD_GROUPS:
            raise ValueError(f"pair_bytes has {len(self.pair_bytes)} parts, not {SHARD_GROUPS}")
        # Timed frames give the ratio of map() to reading in the ranks' time; tasks give the whole time.
        read, compute = (float(self.of_ranks[part] @ self.of_ranks["frames"]) for part in ("read", "compute"))
        self.busy, self.cpu = float(totals["busy"]["sum"]), float(totals["cpu"]["sum"])
        self.computing = self.busy * compute / (read + compute) if read + compute else 0.0
        self.reading = self.busy - self.computing
        self.longest = float(self.of_ranks["busy"].max())


def observe(record: Any, name: str) -> ObservedRun:
    """Return a plan's input from a record; raise a UsageError that names the run to make if the record lacks it."""
    rerun = f"himach run --rerun {name} --out DIR"
    if not isinstance(record, dict) or "analyses" not in record or "seconds" not in record:
        raise UsageError(f"{name}: no record of a run; a run with --out leaves one, run.json")
    if "live" in record:
        raise UsageError(
            f"{name}: a live run's times are those of frames that came; a run over them when all are there tells more"
        )
    if "ensemble" in record:
        raise UsageError(f"{name}: a run over an ensemble is not planned; the run of a member tells what that costs")
    if "planning" not in record:
        raise UsageError(f"{name}: it does not tell what its ranks did; '{rerun}' gives one that does")
    try:
        observed = ObservedRun(record, name)
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"{name}: its field 'planning' cannot be read ({error!r}); '{rerun}' gives another") from error
    if not observed.frames:
        raise UsageError(f"{name}: no frame was mapped, all pairs were kept ones; '{rerun} --reuse never' maps them")
    if observed.reused:
        raise UsageError(
            f"{name}: the pairs of {observed.reused} frames were kept ones, so it does not tell what these cost; "
            f"'{rerun} --reuse never' maps all"
        )
    return observed


Terms = dict[str, float]


class ReadCost(NamedTuple):
    """Seconds per frame in the run with the least waiting, bytes per frame, and the highest bytes a second of a run."""

    seconds: float
    nbytes: float
    rate: float


class Costs:
    """Costs of runs of one kind; the machine's network, if known, gives the time of travelling pairs."""

    def __init__(self, records: Sequence[ObservedRun], machine: Machine | None = None) -> None:
        _check_kind(records)
        longest = max(records, key=lambda run: run.frames)
        total, frames = sum(run.pair_bytes.sum() for run in records), sum(run.frames for run in records)
        self.records, self.frames = records, longest.frames
        self.most_ranks = max(run.ranks for run in records)
        #: Seconds of map() per frame; the part of a rank's task time in which its processor is busy.
        self.compute = sum(run.computing for run in records) / frames
        self.cpu_part = sum(run.cpu for run in records) / max(1e-12, sum(run.busy for run in records))
        #: Reading from the origin and from the cache; if no run did so for all its frames, reading of any run.
        from_origin, from_cache = ([run for run in records if run.first == first and not run.mixed]
                                   for first in (True, False))  # fmt: skip
        self.from_origin, self.from_cache = bool(from_origin), bool(from_cache)
        self.first, self.second = _reading(from_origin or records), _reading(from_cache or records)
        #: Bytes of a stored frame.
        least = 0.0 if from_origin else stored_bytes(records[0].atoms, None)
        self.stored = max(self.first.nbytes, self.second.nbytes, least)
        #: Seconds of reduce() per byte of pairs, bytes of pairs per frame, and fractions by part of the key space.
        reduced = sum(float(run.of_ranks["reduce"].mean()) * run.ranks for run in records)
        self.reduce_byte = reduced / total if total else 0.0
        self.pair_bytes = float(total) / frames
        self.parts = np.sum([run.pair_bytes for run in records], axis=0) / (total or 1.0)
        #: Terms by phase, and keys over all ranks, which grow with frames if the records show that.
        rows = [_quantities(run, machine or Machine(), float(total)) for run in records]
        self.terms = {phase: fit_terms(rows, [self._remainder(run, phase) for run in records], names)
                      for phase, names in TERMS.items()}  # fmt: skip
        self.keys = fit_terms(rows, [float(run.keys) for run in records], ("one", "frames"))
        #: Time in no phase: waiting between phases; negative if ranks wait within one phase for another's.
        self.rest = float(np.median([run.seconds["total"] - sum(run.seconds[name] for name in PHASES)
                                     for run in records]))  # fmt: skip
        #: Standard deviation of a frame's time in map(); relative deviation of a rank's mean beyond that of frames.
        deviations = [float(np.std(run.frame_quantiles[:-1])) for run in records if len(run.frame_quantiles) > 2]
        self.frame_spread = float(np.median(deviations)) if deviations else 0.0
        spreads = [spread for run in records if (spread := _rank_spread(run)) is not None]
        self.rank_spread = float(np.median(spreads)) if spreads else 0.0
        #: Bytes of a rank that do not grow with frames or pairs.
        self.rank_memory = max(map(_rank_memory, records))

    def _remainder(self, run: ObservedRun, phase: str) -> float:
        """Return the seconds of a phase without map() and reduce() themselves."""
        if phase == "opening":
            return run.opening
        if phase == "after_map":
            return max(0.0, run.seconds["map"] - run.longest)
        accounted = self.reduce_byte * _heaviest(run) if phase == "reduce" else 0.0
        return max(0.0, run.seconds[phase] - accounted)


def evaluate(terms: Terms, quantities: Mapping[str, float]) -> float:
    """Return the sum of terms for given quantities."""
    return sum(factor * quantities[name] for name, factor in terms.items())


def fit_terms(rows: Sequence[Mapping[str, float]], values: Sequence[float], names: Sequence[str]) -> Terms:
    """Return the cost per unit of each named quantity, fitted so that sums over rows approximate the values."""
    matrix = np.array([[row[name] for name in names] for row in rows])
    scale = np.where(matrix.max(axis=0) > 0, matrix.max(axis=0), 1.0)
    factors, _ = nnls(matrix / scale, np.asarray(values, float))
    return dict(zip(names, (factors / scale).tolist(), strict=True))


def _check_kind(records: Sequence[ObservedRun]) -> None:
    if not records:
        raise UsageError("a plan needs the record of a run, run.json, at least one")
    first = records[0]
    for run in records[1:]:
        if (run.analyses, run.atoms) != (first.analyses, first.atoms):
            raise UsageError(
                f"{run.name} is of other analyses, parameters or atoms than {first.name}; plan one kind at a time"
            )


def _quantities(run: ObservedRun, machine: Machine, pairs: float) -> dict[str, float]:
    """Return a run's row: the quantities to which its phases are assumed proportional."""
    handled = float(run.pair_bytes.sum()) / min(run.ranks, run.cores * run.hosts) if pairs > FREE_PAIR_BYTES else 0.0
    travel = 0.0
    if machine.network is not None:
        ranks, latency = run.ranks, machine.latency or 0.0
        travel = exchange_seconds(run.pair_bytes.sum(), run.nodes, ranks, latency, machine.network, _heaviest(run))
    return {
        "one": 1.0, "first": float(run.first), "steps": float(steps(run.ranks)), "frames": float(run.frames),
        # Messages between ranks of one host are serial; to ranks of other hosts each rank sends independently.
        "ranks": run.ranks / run.hosts, "others": run.ranks - run.ranks / run.hosts,
        "bytes": handled, "keys": float(run.keys), "travel": travel,
    }  # fmt: skip


def _heaviest(run: ObservedRun) -> float:
    return float(loads(run.pair_bytes, run.ranks).max(initial=0.0))


def _reading(records: Sequence[ObservedRun]) -> ReadCost:
    alone = min(records, key=lambda run: (run.reading / run.frames, run.ranks))
    rate = max(run.nbytes / max(1e-9, run.seconds["map"]) for run in records)
    return ReadCost(alone.reading / alone.frames, alone.nbytes / alone.frames, rate)


def _rank_memory(run: ObservedRun) -> float:
    pairs = float(run.pair_bytes.sum()) / run.ranks
    return max(0.0, run.memory - pairs - held_memory(run.frames, max(1, run.ranks // run.nodes), pairs))


def _rank_spread(run: ObservedRun) -> float | None:
    means = run.of_ranks["compute"][run.of_ranks["frames"] > 0]
    if len(means) < 2 or means.mean() <= 0:
        return None
    chance = float(np.std(run.frame_quantiles[:-1]) / means.mean() / np.sqrt(run.frames / run.ranks))
    return float(max(0.0, (means.std(ddof=1) / means.mean()) ** 2 - chance**2) ** 0.5)
