"""`Observed`: what a plan takes from the record of a run; `observe()` refuses records that do not carry it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.engine.reducing import SHARD_GROUPS
from himach.errors import UsageError

__all__ = ["Observed", "observe", "read_records"]

Floats = npt.NDArray[np.float64]

#: The part of a run's frames that may come from elsewhere than the rest.
MIXED = 0.02


@dataclass(frozen=True)
class Observed:
    """A run that was made.

    Attributes
    ----------
    name
        What it is called in messages.
    analyses, dataset
        What was run over what, to tell whether two runs are of one kind.
    frames
        That it mapped.
    atoms
        Of a frame.
    ranks, nodes, hosts, cores
        How many there were; cores of a host.
    cached
        Part of the frames that came from the cache.
    cache_bytes, origin_bytes
        Bytes that were read.
    seconds
        By phase.
    of_ranks
        Columns of the table of ranks, arrays.
    mapped, busy, computing, cpu
        Frames; seconds of all ranks together in their tasks, of these in map(), and of their processors.
    reading
        Seconds of all ranks together for reading frames.
    frame_quantiles
        Of the times of frames in map().
    pair_bytes
        Bytes of pairs by part of the key space.
    memory
        High-water mark of a rank.
    keys
        Over all ranks.
    drift
        See `himach.engine.clock.RankTimes`: of the median rank.
    members
        Frames of each member of an ensemble; none of one trajectory.
    uncertainty
        How sure the tables are, as the record has it.
    opening
        Seconds from the start until frames can be read, before the topology is known.
    """

    name: str
    analyses: str
    dataset: str
    frames: int
    atoms: int
    ranks: int
    nodes: int
    hosts: int
    cores: int
    cached: float
    cache_bytes: int
    origin_bytes: int
    seconds: Mapping[str, float]
    of_ranks: Mapping[str, Floats]
    mapped: int
    busy: float
    computing: float
    reading: float
    cpu: float
    frame_quantiles: Floats
    pair_bytes: Floats
    memory: float
    keys: int
    drift: float
    opening: float
    uncertainty: Mapping[str, Any]
    members: Sequence[int] = ()

    @property
    def first(self) -> bool:
        """Whether most of its frames came from the origin."""
        return self.cached < 0.5

    @property
    def mixed(self) -> bool:
        """Whether frames came from both, so that it tells of neither what reading costs."""
        return MIXED < self.cached < 1 - MIXED


def read_records(paths: Sequence[Path]) -> list[Observed]:
    """Read records of runs, each a file run.json or the folder that it is in."""
    found = []
    for path in paths:
        file = path / "run.json" if path.is_dir() else path
        try:
            record = json.loads(file.read_text())
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise UsageError(f"{file}: no record of a run ({why}); a run with --out leaves one") from error
        found.append(observe(record, str(file)))
    return found


def observe(record: Any, name: str) -> Observed:
    """Return what a plan takes from a record.

    Raises
    ------
    UsageError
        If the record does not carry it; the message says which run gives one that does.
    """
    again = f"himach run --again {name} --out DIR"
    if not isinstance(record, dict) or "analyses" not in record or "seconds" not in record:
        raise UsageError(f"{name}: no record of a run; a run with --out leaves one, run.json")
    if "live" in record:
        raise UsageError(
            f"{name}: a live run's times are those of frames that came; a run over them when all are there tells more"
        )
    if "planning" not in record:
        raise UsageError(f"{name}: it does not tell what its ranks did; '{again}' gives one that does")
    told = record["planning"]
    try:
        observed = _observed(record, told, name)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise UsageError(f"{name}: its field 'planning' cannot be read ({error!r}); '{again}' gives another") from error
    if not observed.mapped:
        raise UsageError(f"{name}: no frame was mapped, all pairs were kept ones; '{again} --reuse never' maps them")
    if reused := int((record.get("reused") or {}).get("frames", 0)):
        raise UsageError(
            f"{name}: the pairs of {reused} frames were kept ones, so it does not tell what these cost; "
            f"'{again} --reuse never' maps all"
        )
    return observed


def _check(record: Mapping[str, Any], told: Mapping[str, Any], ranks: Mapping[str, Any]) -> None:
    """Raise KeyError, TypeError or ValueError where something is missing, or cannot be."""
    for phase in ("startup", "zazen", "map", "shuffle", "reduce", "finish", "total"):
        float(record["seconds"][phase])
    if min(record["ranks"], record["nodes"], told["hosts"], told["cores"]) < 1:
        raise ValueError("no ranks, nodes, hosts or cores")
    listed = {len(ranks[column]) for column in ("frames", "busy", "read", "compute", "reduce")}
    if len(listed) != 1 or 0 in listed:
        raise ValueError("a table of ranks without rows, or of uneven columns")
    if len(told["pair_bytes"]) != SHARD_GROUPS:
        raise ValueError(f"pair_bytes has {len(told['pair_bytes'])} parts, not {SHARD_GROUPS}")


def _observed(record: Mapping[str, Any], told: Mapping[str, Any], name: str) -> Observed:
    totals, given = told["totals"], record["assignment"]
    ranks = {column: np.asarray(cells, float) for column, cells in told["ranks"].items()}
    _check(record, told, ranks)
    seconds = {phase: float(value) for phase, value in record["seconds"].items()}
    members = [int(one["frames"]) for one in record.get("ensemble") or () if one["frames"]]
    if members:
        seconds |= _of_ensemble(float(totals["startup"]["median"]), float(ranks["busy"].max()), seconds["total"])
    mapped = int(totals["frames"]["sum"])
    read, compute = ranks["read"] * ranks["frames"], ranks["compute"] * ranks["frames"]
    listed = float(read.sum() + compute.sum())
    busy = float(totals["busy"]["sum"])
    # Frames that were timed tell how the time divides; tasks tell how much of it there was.
    computing = busy * float(compute.sum()) / listed if listed else 0.0
    return Observed(
        name=name,
        analyses=json.dumps([_asked(one) for one in record["analyses"]], sort_keys=True),
        dataset=str(record["dataset"]["path"]),
        frames=mapped,
        atoms=int(record["dataset"]["atoms"]),
        ranks=int(record["ranks"]),
        nodes=int(record["nodes"]),
        hosts=int(told["hosts"]),
        cores=int(told["cores"]),
        cached=(given["native"] + given["alien"]) / max(1, sum(given.values())),
        cache_bytes=int(record["bytes"]["cache"]),
        origin_bytes=int(record["bytes"]["origin"]),
        seconds=seconds,
        of_ranks=ranks,
        mapped=mapped,
        busy=busy,
        computing=computing,
        reading=busy - computing,
        cpu=float(totals["cpu"]["sum"]),
        frame_quantiles=np.asarray(told["frame_seconds"], float),
        pair_bytes=np.asarray(told["pair_bytes"], float),
        memory=float(totals["memory"]["most"]),
        keys=int(totals["keys"]["sum"]),
        drift=float(totals["drift"]["median"]),
        opening=float(totals["opening"]["most"]),
        uncertainty=dict(record.get("uncertainty") or {}),
        members=members,
    )


def _asked(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry of a record without what its run says in words, such as intervals."""
    return {name: entry[name] for name in ("name", "source", "parameters", "then") if name in entry}


def _of_ensemble(startup: float, busy: float, total: float) -> dict[str, float]:
    """Return the phases of a run of an ensemble: all of a member is map(), as ranks run other ones meanwhile."""
    return {
        "startup": startup, "zazen": 0.0, "map": busy, "shuffle": 0.0, "reduce": 0.0,
        "finish": max(0.0, total - startup - busy),
    }  # fmt: skip
