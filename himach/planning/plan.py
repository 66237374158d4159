"""`plan()`: tables of what runs would take on other nodes, from records of runs; `Plan`, which shows and saves them."""

from __future__ import annotations

import math
import operator
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from himach.errors import UsageError
from himach.files import write_bytes
from himach.output.formats import content
from himach.output.show import parts_html, parts_text
from himach.output.table import Column, Table
from himach.planning.fitting import Costs, fit
from himach.planning.half_width import HalfWidth
from himach.planning.machine import Machine, read_machine
from himach.planning.predict import ACCURACY, KINDS, LOOSE, PHASES, Kind, Prediction, PredictionInput, predict
from himach.planning.records import Observed, observe, read_records

__all__ = ["NODES", "Plan", "check_length", "plan", "planned"]

#: Frames, as a multiple of those of the longest record, for which its ranks must have mapped for so many seconds.
MANY, SHORT = 10, 0.1

#: Beyond how many times as long, at the end of a run as at its beginning, frames do not cost the same; below which part
#: of map() a processor was not its own.
DRIFT, BUSY = 1.25, 0.8

#: The part of a node's memory that pairs take, at most (`himach.launch.memory.default_memory`).
MEMORY_PART = 4

NODES = (1, 2, 4, 8, 16, 32, 64)

PathLike = str | os.PathLike[str]


class Plan(dict[str, Table]):
    """Tables of a plan by name: ``times``, ``phases``, ``nodes`` and, where a rate of failures is known, ``failures``.

    Attributes
    ----------
    notes
        What is not predicted and why, what no measurement covers, and how well such predictions have done.
    """

    def __init__(self, tables: Mapping[str, Table], notes: Sequence[str]) -> None:
        super().__init__(tables)
        self.notes = list(notes)

    def save(self, out: PathLike) -> list[str]:
        """Write a CSV for each table, notes.txt and plan.png to a folder; return their names."""
        from himach.planning.figure import drawn

        out = Path(out)
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"output directory {out} cannot be made ({error.strerror})") from None
        files = {f"{name}.csv": content(table) for name, table in self.items()}
        files |= {"notes.txt": "".join(f"{note}\n" for note in self.notes).encode(), "plan.png": drawn(self)}
        for name, data in files.items():
            write_bytes(out / name, data)
        return list(files)

    def __str__(self) -> str:
        return "\n".join([parts_text(list(self.items())), *([""] if self.notes else []), *self.notes])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        notes = "".join(f"<p>{note}</p>" for note in self.notes)
        return parts_html(list(self.items())) + notes


def plan(
    records: PathLike | Mapping[str, Any] | Sequence[PathLike | Mapping[str, Any]],
    *,
    nodes: int | Sequence[int] = NODES,
    ranks_per_node: int | None = None,
    frames: float | None = None,
    until: str | None = None,
    machine: PathLike | Machine | None = None,
    seed: int = 0,
    out: PathLike | None = None,
) -> Plan:
    """Tell what a run would take on other nodes.

    Parameters
    ----------
    records
        What runs of these analyses left: run.json, its folder, or `Result.record`; one or several. Runs over more nodes
        and of both kinds, from the origin and from the cache, tell more.
    nodes
        Numbers of nodes, or one.
    ranks_per_node
        Ranks of each; None: as many as the records had.
    frames
        Frames of the run; None: as many as the longest of the records.
    until
        A condition such as ``"rdf.g<0.02"``: how long the simulation must be for intervals of that column of that table
        to be within that half-width is told, too, by the longest of the records.
    machine
        A `himach.planning.machine.Machine` or its file, which ``himach bench machine`` writes.
    seed
        Of what is drawn: the same seed gives the same plan.
    out
        Folder for a CSV of each table and a picture.

    Returns
    -------
    Plan
        A dict of tables (`himach.Table`), which prints itself.

    Raises
    ------
    UsageError
        If records do not carry what a plan needs, or differ in kind: the message says which run would. If what is asked
        for is no number of its kind.
    """
    counts = [_whole("nodes", count) for count in np.atleast_1d(np.asarray(nodes, object)).tolist()]
    if not counts:
        raise UsageError("nodes: give one number at least")
    ranks_per_node = None if ranks_per_node is None else _whole("ranks a node", ranks_per_node)
    frames = None if frames is None else _whole("frames", frames)
    seed = _whole("seed", seed, least=0)
    observed = _observed(records)
    wanted = None if until is None else HalfWidth.of(until)
    known = machine if isinstance(machine, Machine) else Machine() if machine is None else read_machine(Path(machine))
    costs = fit(observed, known)
    per_node = ranks_per_node or max(1, round(observed[0].ranks / observed[0].nodes))
    needed = None if wanted is None else _needed(wanted, max(observed, key=lambda one: one.frames))
    check_length(costs, frames)
    askeds = [PredictionInput(count, per_node, frames or costs.frames, seed) for count in counts]
    found = planned(costs, known, askeds, KINDS[:2] if costs.members else KINDS)  # nobody stages an ensemble at once
    if needed is not None:
        found["until"], note = needed
        found.notes.insert(0, note)
    if out is not None:
        found.save(out)
    return found


def _needed(wanted: HalfWidth, record: Observed) -> tuple[Table, str]:
    """Return how long a simulation must be, by the record of a run over a part of it, and why."""
    times, why = wanted.times_as_long(record.uncertainty)
    known = math.isfinite(times)
    table = Table({
        "column": [f"{wanted.table}.{wanted.column}"],
        "half_width": [_short(wanted.seen(record.uncertainty))],
        "wanted": [wanted.most],
        "frames": [record.frames],
        "times_as_long": [_short(times) if known else None],
        "frames_needed": [math.ceil(times * record.frames) if known else None],
    })  # fmt: skip
    note = f"{record.name}: {why}; intervals are taken to shrink with the root of the time, as of one long simulation"
    return table, note


def _observed(records: Any) -> list[Observed]:
    several = isinstance(records, Sequence) and not isinstance(records, (str, os.PathLike))
    found: list[Observed] = []
    for one in records if several else [records]:
        if isinstance(one, Mapping):
            found.append(observe(one, f"record {len(found) + 1}"))
        else:
            found += read_records([Path(one)])
    return found


def _whole(what: str, value: Any, least: int = 1) -> int:
    """Return a whole number, which may be written as 2.5e6."""
    try:
        number = operator.index(value) if not isinstance(value, float) else int(value) if value.is_integer() else -1
    except TypeError:
        number = -1
    if number < least:
        raise UsageError(f"{what}: {value} is no whole number from {least} on")
    return number


def check_length(costs: Costs, frames: int | None) -> None:
    """Refuse many frames where the records are so short that what a frame costs cannot be told from what a run does."""
    busy = max(one.busy for one in costs.records)
    if frames is not None and frames > MANY * costs.frames and busy < SHORT:
        longer = round(costs.frames * SHORT / max(busy, 1e-3)) + 1
        raise UsageError(
            f"{costs.records[0].name}: its ranks were in map() for {busy:.2g} s in all, which does not tell what "
            f"{frames:,} frames cost; a run over {longer:,} frames or more does"
        )


def planned(costs: Costs, machine: Machine, askeds: Sequence[PredictionInput], kinds: Sequence[Kind] = KINDS) -> Plan:
    """Return the tables of what is asked."""
    found: list[Prediction] = []
    alone: dict[Kind, float] = {}
    notes: list[str] = []
    for kind in kinds:
        missing: list[tuple[int, str]] = []
        of_kind: list[Prediction] = []
        for asked in askeds:
            one = predict(costs, machine, asked, kind)
            if isinstance(one, str):
                missing.append((asked.nodes, one))
            else:
                of_kind.append(one)
        notes += _on_nodes(kind, "is not predicted", missing)
        notes += _on_nodes(
            kind, "is a guess in part", [(one.asked.nodes, why) for one in of_kind for why in one.unknown]
        )
        base = predict(costs, machine, replace(askeds[0], nodes=1), kind)
        fewest = min(of_kind, key=lambda one: one.asked.nodes, default=None)
        if not isinstance(base, str):
            alone[kind] = base.total
        elif fewest is not None:
            alone[kind] = fewest.total * fewest.asked.nodes
        found += of_kind
    if not found:
        raise UsageError("; ".join(notes))
    tables = {"times": _times(found, alone), "phases": _phases(found), "nodes": _nodes(found)}
    if any(one.restarted is not None for one in found):
        tables["failures"] = _failures(found)
    return Plan(tables, [*notes, *_covered(costs, machine, found)])


def _on_nodes(kind: Kind, what: str, told: Sequence[tuple[int, str]]) -> list[str]:
    """Say what is so on how many nodes, and why: reasons that differ in their numbers alone are one."""
    reasons: dict[str, list[tuple[int, str]]] = {}
    for nodes, why in told:
        reasons.setdefault(re.sub(r"[\d.,]+( [GM]B)?", "", why), []).append((nodes, why))
    notes = []
    for several in reasons.values():
        counts = ", ".join(f"{nodes:,}" for nodes, _ in several)
        notes.append(f"{_words(kind)} on {counts} node{'s' * (counts != '1')} {what}: {several[0][1]}")
    return notes


def _words(kind: str) -> str:
    return {"first": "a first run", "second": "a second run", "stage": "staging"}[kind]


def _times(found: Sequence[Prediction], alone: Mapping[Kind, float]) -> Table:
    columns: dict[str, Any] = {
        "run": [one.kind for one in found],
        "nodes": [one.asked.nodes for one in found],
        "ranks": [one.asked.ranks for one in found],
    }
    columns |= {
        "total": Column([_short(one.total) for one in found], unit="s"),
        "error": [f"±{one.error:.0%}" for one in found],
        "efficiency": [
            round(alone[one.kind] / one.asked.nodes / one.total, 4) if one.kind in alone else None for one in found
        ],
        "limit": [one.limit for one in found],
        "low": Column([_short(one.low) for one in found], unit="s"),
        "high": Column([_short(one.high) for one in found], unit="s"),
    }
    return Table(columns)


def _phases(found: Sequence[Prediction]) -> Table:
    """Return what each total is made of; of staging, the filling of stores stands under ``map``."""
    columns: dict[str, Any] = {"run": [one.kind for one in found], "nodes": [one.asked.nodes for one in found]}
    for phase in PHASES:
        columns[phase] = Column([_short(one.phases.get(phase, 0.0)) for one in found], unit="s")
    return Table(columns)


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _nodes(found: Sequence[Prediction]) -> Table:
    return Table({
        "run": [one.kind for one in found],
        "nodes": [one.asked.nodes for one in found],
        "origin_gb": Column([_short(one.origin_bytes / 1e9) for one in found], unit="GB"),
        "node_memory_gb": Column([_short(one.node_memory / 1e9) for one in found], unit="GB"),
        "node_disk_gb": Column([_short(one.node_disk / 1e9) for one in found], unit="GB"),
    })  # fmt: skip


def _failures(found: Sequence[Prediction]) -> Table:
    rows = [one for one in found if one.restarted is not None]
    return Table({
        "run": [one.kind for one in rows],
        "nodes": [one.asked.nodes for one in rows],
        "total": Column([_short(one.total) for one in rows], unit="s"),
        "restarted": Column([_short(one.restarted or 0.0) for one in rows], unit="s"),
        "kept_pairs": Column([_short(one.resumed or 0.0) for one in rows], unit="s"),
    })  # fmt: skip


def _noticed(records: Sequence[Observed]) -> list[str]:
    """Say what of the records makes a frame's cost doubtful."""
    notes = []
    for one in records:
        if not 1 / DRIFT < one.drift < DRIFT:
            notes.append(
                f"{one.name}: the last frames that a rank mapped took {one.drift:.2g} times as long in map() as its "
                "first ones; other frames may cost more or less than the mean that is taken"
            )
        if one.cpu < BUSY * one.computing:
            notes.append(
                f"{one.name}: processors were busy for {one.cpu / one.computing:.0%} of map(); unless map() waits "
                "itself, others used the machine, and on a free one it takes less"
            )
    return notes


def _covered(costs: Costs, machine: Machine, found: Sequence[Prediction]) -> list[str]:
    """Say how well such predictions have done, and what of these no measurement covers."""
    kinds = {one.kind for one in found if one.error < LOOSE}
    notes = [f"error of predictions of {_words(kind)}: {seen}" for kind, seen in ACCURACY.items() if kind in kinds]
    if any(one.error >= LOOSE for one in found):
        notes.append(
            f"±{LOOSE:.0%}: so far off were such predictions at most. Records of first and second runs on 1, 2 and 4 "
            "nodes, and 'himach bench machine', tell more"
        )
    notes += _noticed(costs.records)
    most = max(one.asked.nodes for one in found)
    seen = max(one.nodes for one in ACCURACY.values())
    if most > seen:
        notes.append(f"not covered by any measurement: more than {seen} nodes")
    if not machine.one_host and most > 1:
        notes.append("not covered by any measurement: nodes that are machines of their own, and their network")
    if any(one.kind == "first" for one in found):
        notes.append("not covered by any measurement: first runs that keep the frames they read")
    longest = max(one.asked.frames for one in found)
    if costs.members and longest != costs.frames:
        notes.append(f"{longest:,} frames: members are taken to be as long as in the records, and more or fewer")
    if longest > 4 * costs.frames:
        notes.append(
            f"not covered by any record: {longest:,} frames, {longest / costs.frames:.3g} times those of the longest "
            "run; pairs are taken to grow with frames, and keys as in the records"
        )
    counts = {one.ranks for one in costs.records}
    if len(counts) == 1 and any(one.asked.ranks > max(counts) for one in found):
        notes.append(
            f"not covered by any record: more than {max(counts)} ranks; starting and meeting are taken to last as long"
        )
    per_node = max(one.asked.ranks_per_node for one in found)
    if per_node > max(one.ranks for one in costs.records):
        notes.append(f"not covered by any record: {per_node} ranks of one node, which share its memory's bandwidth")
    spilled = [one.asked.nodes for one in found if machine.memory and one.node_pairs > machine.memory / MEMORY_PART]
    if spilled:
        notes.append(
            f"not covered by the model: on {max(spilled):,} nodes and fewer, pairs are more than a quarter of a node's "
            "memory, and go by way of its disk"
        )
    if machine.node_mtbf is not None:
        notes.append("not covered by any measurement: failures, which are taken to come at a constant rate")
    return notes
