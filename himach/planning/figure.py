"""The picture of a plan: time and efficiency over nodes, and what a run's time is made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from himach.output.figures.picture import canvas, png
from himach.output.figures.style import drawn_in_style
from himach.output.table import Table
from himach.planning.predict import PHASES

__all__ = ["drawn"]

SIZE_INCHES = (6.75, 2.8)  # over two columns of a journal
COLOURS = {"first": "C0", "second": "C1", "stage": "C2"}


def drawn(plan: Mapping[str, Table]) -> bytes:
    """Draw the tables of a plan; return the picture as a PNG."""
    with drawn_in_style():
        figure = canvas(SIZE_INCHES)
        left, right = figure.subplots(1, 2)
        _draw_times(plan, left)
        _draw_phases(plan, right)
    return png(figure)


def _rows(plan: Mapping[str, Table], kind: str) -> Any:
    return np.array([one == kind for one in plan["times"]["run"]])


def _draw_times(plan: Mapping[str, Table], axes: Any) -> None:
    """Draw the time of each kind of run over nodes, with its range, beside what ideal scaling would be."""
    times = plan["times"]
    for kind in dict.fromkeys(times["run"]):
        rows = _rows(plan, kind)
        nodes, total, low, high = (np.asarray(times[name], float)[rows] for name in ("nodes", "total", "low", "high"))
        axes.plot(nodes, total, "o-", color=COLOURS[kind], label=kind)
        axes.fill_between(nodes, low, high, color=COLOURS[kind], alpha=0.2, linewidth=0)
        axes.plot(nodes, total[0] * nodes[0] / nodes, ":", color=COLOURS[kind], linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="nodes", ylabel="total / s", title="time, and ideal scaling (dotted)")
    axes.grid(alpha=0.3)
    axes.legend()


def _draw_phases(plan: Mapping[str, Table], axes: Any) -> None:
    """Draw what the second run's time is made of (the first's, if there is no second)."""
    times, phases = plan["times"], plan["phases"]
    kind = "second" if "second" in times["run"] else times["run"][0]
    rows = _rows(plan, kind)
    nodes = [str(count) for count in np.asarray(times["nodes"])[rows]]
    bottom = np.zeros(len(nodes))
    for phase in PHASES:
        part = np.asarray(phases[phase], float)[rows]
        axes.bar(nodes, part, bottom=bottom, label=phase)
        bottom += part
    axes.set(
        xlabel="nodes", ylabel="s", title=f"{kind} run by phase", yscale="symlog" if bottom.max() > 1e3 else "linear"
    )
    axes.legend()
