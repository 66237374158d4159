"""A picture of an ensemble's outcome: `EnsemblePlot` draws a line for each member and a band for each group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from himach.analysis import TIME, Analysis
from himach.opening.member import Member
from himach.output.parts import parts
from himach.output.plots import numeric
from himach.output.table import Table
from himach.runner.ensemble.columns import roles_of
from himach.runner.ensemble.groups import groups_of
from himach.uncertainty import replicas

__all__ = ["EnsemblePlot"]

MOST_IN_LEGEND = 8  # lines; of more the groups are named alone


class EnsemblePlot(Analysis):
    """Draws the first table of an outcome in which members have figures.

    Attributes
    ----------
    groups
        Names of the members of each group.
    """

    groups: ClassVar[Mapping[str, Sequence[str]]] = {}

    @classmethod
    def of(cls, members: Sequence[Member]) -> EnsemblePlot:
        """Return what draws outcomes of these members."""
        made = cls()
        made.__dict__["groups"] = {name: [members[at].name for at in of] for name, of in groups_of(members).items()}
        return made

    def plot(self, outcome: Any, axes: Any) -> None:
        """Draw a line for each member and a band for each group over its members; of single values, points and bars."""
        tables = [(thing, _figures(thing)) for _, thing in parts(outcome, "") if isinstance(thing, Table)]
        table, (x, y) = next(((one, figures) for one, figures in tables if figures[1]), (Table({}), ("", "")))
        if not y:
            return
        rows, ys = _rows_of(table), np.asarray(table[y], np.float64)
        if x and max(map(len, rows.values()), default=0) > 1:
            xs = np.asarray(table[x])
            self._lines({name: (xs[of], ys[of]) for name, of in rows.items()}, axes)
            axes.set_xlabel(table.label(x))
        else:
            self._points({name: float(ys[of[0]]) for name, of in rows.items()}, axes)
        axes.set_ylabel(table.label(y))
        axes.grid(alpha=0.3)

    def _lines(self, cells: Mapping[str, tuple[Any, Any]], axes: Any) -> None:
        few = sum(map(len, self.groups.values())) <= MOST_IN_LEGEND
        for i, (group, names) in enumerate(self.groups.items()):
            there = [cells[name] for name in names if name in cells]
            colour = f"C{i}"
            for name, (xs, ys) in zip(names, there, strict=False):
                own = f"C{names.index(name)}" if len(self.groups) == 1 and few else colour
                label = name if few and len(self.groups) == 1 else None
                axes.plot(xs, ys, color=own, alpha=max(0.1, min(0.6, 6 / len(names))), linewidth=0.8, label=label)
            self._band(group, there, colour, axes)
        axes.legend()

    def _band(self, group: str, there: Sequence[tuple[Any, Any]], colour: str, axes: Any) -> None:
        """Draw the mean of a group with its limits where all of its members have figures at the same places."""
        if len(there) < 2 or any(not np.array_equal(xs, there[0][0]) for xs, _ in there):
            axes.plot([], [], color=colour, label=f"{group}: {len(there)} members")
            return
        found = replicas(np.array([ys for _, ys in there], np.float64))
        xs = there[0][0]
        colour = "black" if len(self.groups) == 1 else colour
        axes.plot(xs, found.value, color=colour, linewidth=1.5, label=f"{group}: mean of {len(there)}, 95 %")
        axes.fill_between(xs, found.low, found.high, color=colour, alpha=0.2, linewidth=0)

    def _points(self, values: Mapping[str, float], axes: Any) -> None:
        for i, names in enumerate(self.groups.values()):
            own = [values[name] for name in names if np.isfinite(values.get(name, np.nan))]
            axes.plot([i] * len(own), own, "o", color=f"C{i}", alpha=0.5, markersize=4)
            if len(own) > 1:
                found = replicas(own)
                error = [[found.value - found.low], [found.high - found.value]]
                axes.errorbar([i + 0.15], [found.value], error, fmt="s", color=f"C{i}", capsize=4)
        axes.set_xticks(range(len(self.groups)), list(self.groups))
        axes.set_xlim(-0.5, len(self.groups) - 0.5)


def _figures(table: Table) -> tuple[str, str]:
    """Return the columns of places and of figures that are drawn; "" for the first where rows have none, for both."""
    if "member" not in table:
        return "", ""
    own = Table({name: cells for name, cells in table.items() if name not in ("member", "group")})
    real = numeric(own)
    roles = roles_of([own])
    if not roles.values:
        return "", ""
    x = TIME if roles.in_time and TIME in real else next((name for name in roles.keys if name in real), "")
    return x, roles.values[0]


def _rows_of(table: Table) -> dict[str, list[int]]:
    """Return the rows of each member."""
    found: dict[str, list[int]] = {}
    for at, name in enumerate(table["member"]):
        found.setdefault(name, []).append(at)
    return found
