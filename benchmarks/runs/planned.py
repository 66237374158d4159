"""Plans beside what they predict: runs on virtual hosts, some to fit to and the widest predicted blind.

A plan is fitted to the records of first and second runs on few hosts (`.virtual`) and never sees those on many, nor any
staging. To Zazen's rounds nothing is fitted: the links' rate and latency are measured, and the closed
forms do the rest. First runs keep no frames.
"""

import json
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from himach.planning import closed_forms as forms
from himach.planning.costs import PHASES, Costs, observe
from himach.planning.machine import Machine
from himach.planning.model import KINDS, Prediction, PredictionInput, predict

from ..harness.figures import report
from ..harness.options import DIRECTORY, PATH, only, repeats
from .accuracy import BAR, error, is_held
from .machine import combining
from .virtual import BLIND, CASES, FITTED, FRAMES, ROUND_FRAMES, Lines, measure

__all__ = ["main"]


@only("LightMap, HeavyMap or HeavyReduce")
@click.option(
    "--fitted", type=click.IntRange(min=1), default=3, show_default=True, help="Repeats of what is fitted to."
)  # fmt: skip
@click.option(
    "--short", is_flag=True, help="One turn without Zazen's rounds, in a few minutes: no spread is known then."
)  # fmt: skip
@click.option("--minutes", type=click.FloatRange(min=0), metavar="N", help="Begin no turn that would not end by then.")
@click.option(
    "--records",
    type=PATH,
    metavar="FILE",
    help="Add what is measured here, as it comes; what is there is not measured again.",
)
@click.option("--out", "-o", type=PATH, metavar="FILE", help="Leave predictions and errors here.")
@repeats(5)
@DIRECTORY
def main(
    repeats: int,
    fitted: int,
    only: Sequence[str],
    short: bool,
    minutes: float | None,
    records: Path | None,
    out: Path | None,
    directory: Path | None,
) -> None:
    """Predict runs on 8 and 16 virtual hosts from such on 1 to 4, and measure them; Zazen's rounds on up to 64.

    What is in `records` is not measured again, and what is measured is added to it at once.
    """
    cases = [name for name in CASES if not only or name in only]
    lines = Lines(None if records is None else records.absolute())
    end = float("inf") if minutes is None else time.monotonic() + 60 * minutes
    measure(lines, cases, 1 if short else repeats, 1 if short else fitted, not short, end, directory)
    machine = _machine(lines)
    rows = [row for name in cases for row in _compared(name, lines, machine)] + _rounds(lines)
    _print(rows, machine)
    if out is not None:
        about = {"date": time.strftime("%Y-%m-%d"), "cores": os.cpu_count(), "network": machine.network,
                 "latency": machine.latency, "origin": machine.origin}  # fmt: skip
        out.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")


def _machine(lines: Lines) -> Machine:
    """Return what was measured of the hosts, the median of all turns."""
    told = list(lines.machines())
    network, latency, origin, at_once = (
        statistics.median(one[name] for one in told) for name in ("network", "latency", "origin", "origin_at_once")
    )
    return Machine(
        cores=os.cpu_count(), network=network, latency=latency, origin=origin, origin_at_once=at_once or None,
        one_host=True,
    )  # fmt: skip


def _fitted(name: str, lines: Lines, machine: Machine) -> Costs:
    """Return what runs on few hosts cost."""
    records = [
        (f"{name} {hosts}", record)
        for hosts in FITTED for kind in ("first", "second") for record in lines.found(name, hosts, kind)
    ]  # fmt: skip
    return Costs([observe(record, where) for where, record in records], machine)


def _compared(name: str, lines: Lines, machine: Machine) -> list[dict[str, Any]]:
    """Return predictions for each number of hosts beside what was measured, fitted to those on few."""
    costs = _fitted(name, lines, machine)
    rows = []
    for hosts in (*FITTED, *BLIND):
        for kind in KINDS:
            found = lines.found(name, hosts, kind)
            if not found:
                continue
            one = predict(costs, machine, PredictionInput(hosts, 1, FRAMES * hosts), kind)
            assert not isinstance(one, str), one
            seconds = found if kind == "stage" else [record["seconds"]["total"] for record in found]
            rows.append(_row(name, kind, hosts, one["total"], seconds, one["limit"], blind=hosts in BLIND))
            if kind != "stage":
                rows[-1]["phases"] = _phases(one, found)
            if kind == "second" and name == "LightMap" and hosts > 1:
                shuffled = [record["seconds"]["shuffle"] for record in found]
                row = _row(name, "shuffle", hosts, one["shuffle"], shuffled, "network", blind=hosts in BLIND)
                rows.append(row)
    return rows


def _row(
    name: str, kind: str, hosts: int, predicted: float, found: Sequence[float], limit: str, blind: bool
) -> dict[str, Any]:
    middle = statistics.median(found)
    return {
        "analysis": name, "kind": kind, "nodes": hosts, "blind": blind,
        "predicted": round(predicted, 4), "measured": round(middle, 4),
        "spread": round((max(found) - min(found)) / 2 / middle, 4),
        "repeats": len(found), "limit": limit,
    }  # fmt: skip


def _phases(one: Prediction, found: Sequence[Any]) -> dict[str, list[float]]:
    """Return what was predicted and measured of each phase, the medians."""
    return {
        phase: [round(one[phase], 4), round(statistics.median(each["seconds"][phase] for each in found), 4)]
        for phase in PHASES
    }


def _rounds(lines: Lines) -> list[dict[str, Any]]:
    """Return what Zazen's rounds were predicted to take, on nothing but the links, beside what they took."""
    rows = []
    combine = combining()
    for line in lines.lines:
        if "rounds" in line:
            hosts, machine = line["rounds"], line["machine"]
            said = forms.zazen_seconds(hosts, ROUND_FRAMES, machine["latency"], machine["network"], combine)
            rows.append(_row("rounds", "rounds", hosts, said, line["seconds"], "network", blind=True))
    return rows


def _print(rows: Sequence[dict[str, Any]], machine: Machine) -> None:
    print(f"hosts' links {machine.network or 0:.4g} B/s, origin {machine.origin or 0:.4g} B/s, measured")
    for row in rows:
        bar = max(BAR, row["spread"])
        what = f"{row['analysis']}, {row['kind']}, {row['nodes']} hosts{'' if row['blind'] else ' (fitted)'}"
        if not row["blind"] and row["kind"] == "stage":
            what = what.replace("fitted", "blind too")
        value = f"{row['predicted']:.2f} of {row['measured']:.2f} s {error(row):+.1%}"
        report(what, f"{value} ± {row['spread']:.1%}", f"{bar:.1%}{'' if is_held(row) else ' MISSED'}")
