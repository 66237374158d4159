"""`plan()`: tables of predicted costs on other nodes, from records of runs; `Plan` shows and saves them."""

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from himach.errors import UsageError
from himach.files import write_bytes
from himach.output.directory import make_folder
from himach.output.figures.picture import canvas, png, style_context
from himach.output.outcome_files import content
from himach.output.parts import parts_html, parts_text
from himach.output.record import read_record
from himach.output.table import Column, Table
from himach.planning.costs import PHASES, Costs, ObservedRun, observe
from himach.planning.half_width import HalfWidth
from himach.planning.machine import Machine, read_machine
from himach.planning.model import ACCURACY, KINDS, LOOSE, Kind, Prediction, PredictionInput, predict

NODES = (1, 2, 4, 8, 16, 32, 64)
KIND_WORDS = {"first": "a first run", "second": "a second run", "stage": "staging"}
#: Units and columns of tables, after ``run`` and ``nodes``. For staging, ``map`` is the filling of stores.
TABLES: dict[str, tuple[str, Sequence[str]]] = {
    "times": ("s", ("ranks", "total", "low", "high", "efficiency", "limit")),
    "phases": ("s", PHASES),
    "nodes": ("GB", ("origin_gb", "node_memory_gb", "node_disk_gb")),
}
#: For more than MANY times the frames of the longest record, its ranks must have mapped for at least SHORT seconds.
MANY, SHORT = 10, 0.1

PathLike = str | os.PathLike[str]


class Plan(dict[str, Table]):
    """Tables of a plan by name: ``times``, ``phases`` and ``nodes``.

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
        out = Path(out)
        make_folder(out)
        files = {f"{name}.csv": content(table) for name, table in self.items()}
        files |= {"notes.txt": "".join(f"{note}\n" for note in self.notes).encode(), "plan.png": self._picture()}
        for name, data in files.items():
            write_bytes(out / name, data)
        return list(files)

    def __str__(self) -> str:
        return "\n".join([parts_text(list(self.items())), *([""] if self.notes else []), *self.notes])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return parts_html(list(self.items())) + "".join(f"<p>{note}</p>" for note in self.notes)

    def _picture(self) -> bytes:
        """Draw time over nodes with ideal scaling, and the phases of the second run (else of the first)."""
        times, phases = self["times"], self["phases"]
        kinds = np.array(times["run"])
        with style_context():
            figure = canvas((6.75, 2.8))  # inches, over two columns of a journal
            left, right = figure.subplots(1, 2)
            for kind in dict.fromkeys(times["run"]):
                colour = f"C{KINDS.index(kind)}"
                nodes, total, low, high = (np.asarray(times[name], float)[kinds == kind]
                                           for name in ("nodes", "total", "low", "high"))  # fmt: skip
                left.plot(nodes, total, "o-", color=colour, label=kind)
                left.fill_between(nodes, low, high, color=colour, alpha=0.2, linewidth=0)
                left.plot(nodes, total[0] * nodes[0] / nodes, ":", color=colour, linewidth=0.8)
            kind = "second" if "second" in kinds else kinds[0]
            names = [str(count) for count in np.asarray(times["nodes"])[kinds == kind]]
            bottom = np.zeros(len(names))
            for phase in PHASES:
                part = np.asarray(phases[phase], float)[kinds == kind]
                right.bar(names, part, bottom=bottom, label=phase)
                bottom += part
            title = "time, and ideal scaling (dotted)"
            left.set(xscale="log", yscale="log", xlabel="nodes", ylabel="total / s", title=title)
            left.grid(alpha=0.3)
            scale = "symlog" if bottom.max() > 1e3 else "linear"
            right.set(xlabel="nodes", ylabel="s", title=f"{kind} run by phase", yscale=scale)
            for axes in (left, right):
                axes.legend()
        return png(figure)


def plan(
    records: PathLike | Mapping[str, Any] | Sequence[PathLike | Mapping[str, Any]],
    *,
    nodes: int | Sequence[int] | Sequence[str] = NODES,
    ranks_per_node: int | None = None,
    frames: float | None = None,
    until: str | None = None,
    machine: PathLike | Machine | None = None,
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

    Examples
    --------
    >>> record = himach.run("rmsd", u, selection="name CA").record
    >>> list(himach.plan(record, nodes=[1, 2]))
    ['times', 'phases', 'nodes']
    """
    counts = [_whole_number("nodes", count) for count in np.atleast_1d(np.asarray(nodes, object)).tolist()]
    if not counts:
        raise UsageError("nodes: give one number at least")
    ranks_per_node = None if ranks_per_node is None else _whole_number("ranks a node", ranks_per_node)
    frames = None if frames is None else _whole_number("frames", frames)
    sources: Any = [records] if isinstance(records, str | os.PathLike | Mapping) else records
    named = [(source, f"record {number}") if isinstance(source, Mapping) else (read_record(source), str(source))
             for number, source in enumerate(sources, 1)]  # fmt: skip
    runs = [observe(record, name) for record, name in named]
    target = machine if isinstance(machine, Machine) else Machine() if machine is None else read_machine(Path(machine))
    try:
        costs = Costs(runs, target)
        needed = None if until is None else _length_needed(until, max(runs, key=lambda run: run.frames))
        check_length(costs, frames)
        per_node = ranks_per_node or max(1, round(runs[0].ranks / runs[0].nodes))
        requests = [PredictionInput(count, per_node, frames or costs.frames) for count in counts]
        result = project(costs, target, requests, KINDS)
    except (ArithmeticError, TypeError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        names = ", ".join(run.name for run in runs)
        raise UsageError(f"{names}: what is recorded cannot be ({error}); run it again") from error
    if needed is not None:
        result["until"], note = needed
        result.notes.insert(0, note)
    if out is not None:
        result.save(out)
    return result


def _length_needed(until: str, run: ObservedRun) -> tuple[Table, str]:
    """Return a table of the required length of simulation, from the record of a run over a part of it, and a note."""
    half_width = HalfWidth.parse(until)
    times, reason = half_width.times_as_long(run.uncertainty)
    finite = math.isfinite(times)
    table = Table({
        "column": [f"{half_width.table}.{half_width.column}"],
        "half_width": [_short(half_width.observed(run.uncertainty))],
        "wanted": [half_width.most],
        "frames": [run.frames],
        "times_as_long": [_short(times) if finite else None],
        "frames_needed": [math.ceil(times * run.frames) if finite else None],
    })  # fmt: skip
    return table, f"{run.name}: {reason}; intervals shrink with the root of the time, as of one long simulation"


def _whole_number(label: str, value: Any) -> int:
    """Return a positive integer, which may be given as 2.5e6, or as text."""
    try:
        number = float(value) if isinstance(value, str) else value
        if number == int(number) >= 1:
            return int(number)
    except (TypeError, ValueError, OverflowError):
        pass
    raise UsageError(f"{label}: {value} is no whole number from 1 on")


def check_length(costs: Costs, frames: int | None) -> None:
    """Raise UsageError for many frames if the records are too short to separate costs of frames from those of a run."""
    busy = max(run.busy for run in costs.records)
    if frames is not None and frames > MANY * costs.frames and busy < SHORT:
        longer = round(costs.frames * SHORT / max(busy, 1e-3)) + 1
        raise UsageError(
            f"{costs.records[0].name}: its ranks were in map() for {busy:.2g} s in all, which does not tell what "
            f"{frames:,} frames cost; a run over {longer:,} frames or more does"
        )


def project(costs: Costs, machine: Machine, requests: Sequence[PredictionInput], kinds: Sequence[Kind]) -> Plan:
    """Return the plan for some requests."""
    rows: list[Prediction] = []
    notes: list[str] = []
    for kind in kinds:
        outcomes = [(request.nodes, predict(costs, machine, request, kind)) for request in requests]
        predictions = [outcome for _, outcome in outcomes if not isinstance(outcome, str)]
        notes += _on_nodes(kind, "is not predicted", [(nodes, why) for nodes, why in outcomes if isinstance(why, str)])
        notes += _on_nodes(
            kind, "is a guess in part", [(row["nodes"], why) for row in predictions for why in row["unknown"]]
        )
        alone = predict(costs, machine, replace(requests[0], nodes=1), kind)
        base = min(predictions, key=lambda row: row["nodes"], default=None) if isinstance(alone, str) else alone
        for row in predictions:
            assert base is not None
            row["efficiency"] = round(base["total"] * base["nodes"] / row["nodes"] / row["total"], 4)
        rows += predictions
    if not rows:
        raise UsageError("; ".join(notes))
    tables = {}
    for name, (unit, columns) in TABLES.items():
        cells: dict[str, Any] = {key: [row[key] for row in rows] for key in ("run", "nodes", *columns)}
        amounts = [key for key in columns if key not in ("ranks", "efficiency", "limit")]
        tables[name] = Table(cells | {key: Column([*map(_short, cells[key])], unit=unit) for key in amounts})
    return Plan(tables, [*notes, *_coverage_notes(costs, rows)])


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _on_nodes(kind: Kind, text: str, reasons: Sequence[tuple[int, str]]) -> list[str]:
    """Return notes with numbers of nodes and reasons; merge reasons that differ only in their numbers."""
    groups: dict[str, list[tuple[int, str]]] = {}
    for nodes, reason in reasons:
        groups.setdefault(re.sub(r"[\d.,]+( [kMGTP]?B)?", "", reason), []).append((nodes, reason))
    counts = [(", ".join(f"{nodes:,}" for nodes, _ in group), group[0][1]) for group in groups.values()]
    return [f"{KIND_WORDS[kind]} on {count} node{'s' * (count != '1')} {text}: {reason}" for count, reason in counts]


def _coverage_notes(costs: Costs, rows: Sequence[Prediction]) -> list[str]:
    """Return notes on the accuracy of such predictions, on doubts, and on cases that no record covers."""
    most, ranks, longest = (max(row[name] for row in rows) for name in ("nodes", "ranks", "frames"))
    recorded = {run.ranks for run in costs.records}
    kinds = {row["run"] for row in rows if row["error"] < LOOSE}
    spilled = max((row["nodes"] for row in rows if row["spills"]), default=0)
    notes = [
        *((kind in kinds, f"error of predictions of {KIND_WORDS[kind]}: {text}") for kind, text in ACCURACY.items()),
        (any(row["error"] >= LOOSE for row in rows),
         f"such predictions were off by up to {LOOSE:.0%}, so low and high are at least so far from total. Records of "
         "first and second runs on 1, 2 and 4 nodes, and 'himach bench machine', tell more"),
        (spilled > 0,
         f"not covered by the model: on {spilled:,} nodes and fewer, pairs are more than a quarter of a node's memory, "
         "and go by way of its disk"),
    ]  # fmt: skip
    by_record = [
        (longest > 4 * costs.frames,
         f"{longest:,} frames, {longest / costs.frames:.3g} times those of the longest run (pairs are taken to grow "
         "with frames, and keys as in the records)"),
        (len(recorded) == 1 and ranks > max(recorded),
         f"more than {max(recorded)} ranks (starting and meeting are taken to last as long)"),
        (ranks // most > max(recorded), f"{ranks // most} ranks of one node, which share its memory's bandwidth"),
    ]  # fmt: skip
    several = "; ".join(text for applies, text in by_record if applies)
    notes.append((bool(several), f"not covered by any record: {several}"))
    return [note for applies, note in notes if applies]
