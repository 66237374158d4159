"""Figure of an ensemble's outcome: `EnsemblePlot` draws a line for each member and a band for each group."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from himach.analysis import FRAME, TIME, Analysis
from himach.io.datasets.member import Member
from himach.output.figures.plots import numeric
from himach.output.figures.time_series import column_means, draw_legend, time_axis
from himach.output.parts import parts
from himach.output.table import Table
from himach.runner.ensemble.groups import Roles, average, column_roles, common_places, group_positions, member_values
from himach.runner.ensemble.joint_outcome import MEMBER, own_columns

MOST_IN_LEGEND = 8  # lines; with more, only groups are named
MOST_LINES = 50  # of a group; with more members only some are drawn, but the band has all
MOST_LABELS = 12  # rows that an axis labels; with more, only some
THIN = 0.6  # width of a member's line, in points
ASIDE = 0.6  # fraction of a row's width that groups share

#: Places of a member's rows, and its figures.
Curve = tuple[Any, Any]


class EnsemblePlot(Analysis):
    """Draws the first table of an outcome with figures of members; tables with intervals come first."""

    def __init__(self, members: Sequence[Member] = (), level: float | None = 0.95) -> None:
        super().__init__()
        positions = group_positions(members)
        self.groups = {group: [members[at].name for at in own] for group, own in positions.items()}
        grouped = {at for own in positions.values() for at in own}
        self.ungrouped = [member.name for at, member in enumerate(members) if at not in grouped]
        self.n_own = 1 + len(own_columns(members))  # leading columns, which describe a member
        self.level = level  # of bands; None for no bands
        self.within = (-np.inf, np.inf)  # bounds of the bands' limits

    def plot(self, outcome: Any, axes: Any) -> None:
        """Draw a line for each member and a band for each group; for single values, draw points and bars."""
        joint = [thing for _, thing in parts(outcome, "") if isinstance(thing, Table) and MEMBER in thing]
        split = [(table, self._split_members(table)) for table in joint]
        drawable = [(table, data, column_roles(list(data.values()))) for table, data in split]
        drawable = sorted((item for item in drawable if item[2].values), key=lambda item: not item[2].sure)
        if not drawable:
            return
        table, data, roles = drawable[0]
        y = roles.values[0]
        self.within = table.note(y).within
        x = next((name for name in (TIME, FRAME) if name in table), None) if roles.in_time else self._axis(data, roles)
        if x is not None and max(own.rows for own in data.values()) > 1:
            scale, label = time_axis(table[x], "time") if x == TIME else (1.0, table.label(x) if x else "row")
            self._lines({name: (scale * _floats(own, x), _floats(own, y)) for name, own in data.items()}, axes)
            axes.set_xlabel(label)
        else:
            self._points(*member_values(list(data.values()), Roles(False, roles.keys, [y])), list(data), axes)
        axes.set_ylabel(table.label(y))
        axes.grid(alpha=0.3)

    def _split_members(self, table: Table) -> dict[str, Table]:
        rows: dict[str, list[int]] = {}
        for at, name in enumerate(table[MEMBER]):
            rows.setdefault(name, []).append(at)
        columns = dict([*table.items()][self.n_own :])

        def take(at: list[int]) -> Table:
            parts = (
                cells[at] if isinstance(cells, np.ndarray) else [cells[i] for i in at] for cells in columns.values()
            )
            own = Table(dict(zip(columns, parts, strict=True)))
            own.notes = table.notes
            return own

        return {member: take(at) for member, at in rows.items()}

    @staticmethod
    def _axis(data: Mapping[str, Table], roles: Roles) -> str | None:
        """Return the x column of rows that form a line; "" for the row number, None if they form no line."""
        if not roles.keys:
            return ""
        key, *more = roles.keys
        return key if not more and all(key in numeric(table) for table in data.values()) else None

    def _lines(self, curves: Mapping[str, Curve], axes: Any) -> None:
        alone = len(self.groups) == 1 and len(curves) <= MOST_IN_LEGEND
        for name in self.ungrouped:
            if name in curves:
                axes.plot(*column_means(axes, *curves[name], width=THIN), color="grey", alpha=0.4, linewidth=THIN)
        bands = []
        for i, (group, names) in enumerate(self.groups.items()):
            drawn = [name for name in names if name in curves]
            alpha = max(0.1, min(0.6, 6 / max(len(drawn), 1)))
            for number, name in enumerate(drawn[:: -(-len(drawn) // MOST_LINES) or 1]):
                colour, label = (f"C{number}", name) if alone else (f"C{i}", None)
                line = column_means(axes, *curves[name], width=THIN)
                axes.plot(*line, color=colour, alpha=alpha, linewidth=THIN, label=label)
            if drawn and (not alone or len(drawn) > 1):
                bands.append((group, [curves[name] for name in drawn], "black" if alone else f"C{i}"))
        low, high = axes.get_ylim()
        for band in bands:
            self._band(*band, axes)
        # Cut bands off: one of two members is so wide that lines would be indistinguishable.
        with_bands = axes.get_ylim()
        axes.set_ylim(max(with_bands[0], low - (high - low) / 2), min(with_bands[1], high + (high - low) / 2))
        draw_legend(axes)

    def _band(self, group: str, curves: Sequence[Curve], colour: str, axes: Any) -> None:
        """Draw the mean of a group and its limits at the places where all of its members have figures."""
        members = f"{group}: {len(curves)} member{'s' if len(curves) > 1 else ''}"
        xs, values = _stacked(curves)
        if len(curves) < 2 or self.level is None or len(xs) < 2:
            axes.plot([], [], color=colour, label=members)
            return
        means = average(values, self.level, self.within)
        label = f"{group}: mean of {len(curves)}, {100 * self.level:g} % interval"
        xs, mean, low, high = column_means(axes, xs, *(means[name] for name in ("mean", "low", "high")))
        axes.plot(xs, mean, color=colour, linewidth=1.5, label=label)
        axes.fill_between(xs, low, high, color=colour, alpha=0.2, linewidth=0, label=label)

    def _points(self, keys: Mapping[str, list[Any]], figures: Mapping[str, Any], names: list[str], axes: Any) -> None:
        """Draw a point for each member and, beside them, their group's mean with its limits, row by row."""
        (values,) = figures.values()
        several = values.shape[1] > 1
        step = ASIDE / len(self.groups)
        for i, (group, members) in enumerate(self.groups.items()):
            own = values[[names.index(name) for name in members if name in names]]
            places = np.arange(values.shape[1]) + (i - (len(self.groups) - 1) / 2) * step if several else np.array([i])
            for heights in own:
                axes.plot(places, heights, "o", color=f"C{i}", alpha=0.5, markersize=4)
            shifted = places + step / 4
            if self.level is not None:
                means = average(own, self.level, self.within)
                errors = np.abs(np.array([means["low"], means["high"]]) - means["mean"])
                finite = np.isfinite(errors).all(axis=0)
                bars = {"fmt": "s", "color": f"C{i}", "markersize": 4, "capsize": 3}
                label = f"{group}: mean, {100 * self.level:g} % interval"
                axes.errorbar(shifted[finite], means["mean"][finite], errors[:, finite], label=label, **bars)
        labels = [" ".join(map(str, row)) for row in zip(*keys.values(), strict=True)] if several else list(self.groups)
        labelled = range(0, len(labels), -(-len(labels) // MOST_LABELS))
        axes.set_xticks(labelled, [labels[at] for at in labelled], rotation=90 if several else 0)
        axes.set_xlim(-0.5, len(labels) - 0.5)
        if several:
            axes.set_xlabel(", ".join(keys))
        draw_legend(axes)


def _floats(table: Table, name: str) -> Any:
    """Return a column as floats; "" gives row numbers, a missing column nan."""
    if not name:
        return np.arange(table.rows, dtype=np.float64)
    return np.asarray(table[name] if name in table else np.full(table.rows, np.nan), np.float64)


def _stacked(curves: Sequence[Curve]) -> tuple[Any, Any]:
    """Return the places where all curves have figures, and the figures as (curves, places)."""
    axes = common_places([xs for xs, _ in curves])
    places = axes[0][np.isfinite(axes[0])]
    for axis in axes[1:]:
        places = np.intersect1d(places, axis)
    values = np.full((len(curves), len(places)), np.nan)
    for own, axis, (_, ys) in zip(values, axes, curves, strict=True):
        sources, targets = np.intersect1d(axis, places, return_indices=True)[1:]
        own[targets] = ys[sources]
    complete = np.isfinite(values).all(axis=0)
    return places[complete], values[:, complete]
