"""Results in a line each: `result_lines()` of an analysis, from its tables and the record.

`trust()` judges the results of a run, in rows for each mean, curve and group.
"""

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.analysis import TIME
from himach.errors import UsageError
from himach.output.summary import mean_line
from himach.output.table import Table
from himach.output.text import count
from himach.report.convergence import ENOUGH, Convergence, Doubt, assess_convergence
from himach.report.folder import AnalysisFiles, RunFolder
from himach.uncertainty.estimate import in_figures

#: Tables of at most this many rows have a line for each.
FEW_ROWS = 6
#: Limits: lines of a table; names of columns in one; columns with a line in a long table of named rows.
MOST_LINES, MOST_NAMES, MOST_NAMED = 6, 6, 2
#: Names of columns in sentences, by built-in analysis.
NAMES: dict[str, dict[str, str]] = {
    "rdf": {"g": "g(r)", "n": "coordination number n(r)"},
    "rmsd": {"rmsd": "RMSD"},
    "rmsf": {"rmsf": "RMSF", "bfactor": "B-factor"},
    "radius-of-gyration": {"rg": "radius of gyration"},
    "sasa": {"sasa": "solvent-accessible surface"},
    "msd": {"msd": "mean square displacement", "d_cm2_s": "D", "yeh_hummer_cm2_s": "D without images (Yeh, Hummer)"},
    "velocity-autocorrelation": {"c": "velocity autocorrelation", "d_cm2_s": "D", "density": "spectrum"},
    "dielectric": {"epsilon": "relative permittivity"},
    "water-residence": {"mean_ps": "mean residence time", "lasting": "stays that last"},
    "hydrogen-bonds": {"mean_ps": "mean lifetime of a bond", "bonds": "number of bonds", "lasting": "bonds that last"},
    "contacts": {"contacts": "number of contacts", "mean_ps": "mean lifetime of a contact"},
    "ion-permeation": {"events": "passages", "rate_per_ns": "rate of passages"},
    "lipid-order": {"s_ch": "order S_CH"},
}
#: Curves of built-ins whose first peak is reported.
PEAKS = {("rdf", "g")}
#: Units at the ends of column names, and how they are written.
SUFFIXES = {"_ps": "ps", "_per_ns": "1/ns", "_cm2_s": "cm²/s", "_ns": "ns"}
#: Columns of all group tables of ensembles, and of some; other columns are places of a curve.
OF_GROUPS = {"group", "column", "mean", "low", "high"}
OF_SOME_GROUPS = {"n", "p", "p_exact"}


def result_lines(folder: RunFolder, analysis: AnalysisFiles) -> list[str]:
    """Return a line for each result that has an interval; without any, a line for each table."""
    lines: list[str] = []
    summaries: list[str] = []
    for name in analysis.tables:
        try:
            table_lines = _TableLines(folder.table(name), folder.uncertainty(name), str(analysis.entry.get("source")))
        except UsageError:  # the page shows the error in place of the table
            continue
        title = name.partition("/")[2] or name
        table_results = list(table_lines.lines())
        lines += table_results[:MOST_LINES]
        if len(table_results) > MOST_LINES:
            lines.append(f"{title}: {len(table_results) - MOST_LINES} more, in the table")
        columns = list(table_lines.table)
        column_names = ", ".join(columns[:MOST_NAMES]) + (", ..." if len(columns) > MOST_NAMES else "")
        summaries += [] if table_results else [f"{title}: {count(table_lines.table.rows, 'row')} of {column_names}"]
    return lines or summaries or ["no table"]


def column_unit(column: str, table: Table) -> str:
    """Return the unit of a column from the record or the end of its name; "" for none."""
    return table.units.get(column) or next((unit for end, unit in SUFFIXES.items() if column.endswith(end)), "")


@dataclass(frozen=True)
class _TableLines:
    """Lines of a table from its cells, its recorded uncertainty, and the source of its analysis."""

    table: Table
    uncertainty: Mapping[str, Any]
    source: str

    def lines(self) -> Iterator[str]:
        for column, mean in self.uncertainty["means"].items():
            unit = column_unit(column, self.table)
            yield mean_line(f"{self._title(column)}{f' / {unit}' if unit else ''}", mean, self.uncertainty["level"])
        if set(self.table) >= OF_GROUPS:
            yield from self._groups()
        elif "member" not in self.table:
            columns = [name for name in self.table if {f"{name}_low", f"{name}_high"} <= set(self.table)]
            keys = self._keys(columns)
            if self.table.rows <= FEW_ROWS or self._is_curve(keys) or len(columns) <= MOST_NAMED:
                for column in columns:
                    yield from self._values(column, keys)

    def _title(self, column: str, short: bool = False) -> str:
        """Return a column's name for a sentence."""
        stem = next((column.removesuffix(end) for end in SUFFIXES if column.endswith(end)), column)
        return stem if short else NAMES.get(self.source, {}).get(column, stem.replace("_", " "))

    def _number(self, column: str, row: int) -> float:
        return float(self.table[column][row]) if isinstance(self.table.get(column), np.ndarray) else math.nan

    def _groups(self) -> Iterator[str]:
        """Yield a line for each group of an ensemble, and for each difference of two, except of curves."""
        places = [name for name in self.table if name not in OF_GROUPS | OF_SOME_GROUPS]
        if places:  # each place of a curve has a row
            yield from self._group_curves(places)
            return
        for row in range(self.table.rows):
            mean, low, high = (self._number(name, row) for name in ("mean", "low", "high"))
            value = _with_unit(in_figures(mean, low, high, interval=True), self.table.units.get("mean", ""))
            n, p = (self._number(name, row) for name in ("n", "p"))
            more = f", {n:.0f} members" * (not math.isnan(n)) + f", p = {p:.2g}" * (not math.isnan(p))
            column = self._title(str(self.table["column"][row]))
            yield f"{column}, {self.table['group'][row]}: mean {value}{more}"

    def _group_curves(self, places: list[str]) -> Iterator[str]:
        """Yield a line for the curve of each group of an ensemble, none for differences of two."""
        groups, columns = (np.asarray([str(cell) for cell in self.table[name]]) for name in ("group", "column"))
        for column, group in dict.fromkeys(zip(columns.tolist(), groups.tolist(), strict=True)):
            rows = np.flatnonzero((groups == group) & (columns == column)).tolist()
            if all(math.isnan(self._number("p", row)) for row in rows):
                cells = {name: name for name in places} | {
                    column: "mean", f"{column}_low": "low", f"{column}_high": "high"
                }  # fmt: skip
                curve = Table({name: [self.table[of][row] for row in rows] for name, of in cells.items()})
                curve.units.update({name: self.table.units[of] for name, of in cells.items() if of in self.table.units})
                for line in _TableLines(curve, self.uncertainty, self.source)._values(column, places):
                    title, _, rest = line.partition(": ")
                    yield f"{title}, {group}: {rest}"

    def _keys(self, columns: list[str]) -> list[str]:
        """Return the columns that name a row: those before the first one with an interval, texts if any."""
        before = list(itertools.takewhile(lambda name: name not in columns, self.table))
        texts = [name for name in before if not isinstance(self.table[name], np.ndarray)]
        return texts or (before if self.table.rows > 1 else [])

    def _is_curve(self, keys: list[str]) -> bool:
        """Tell whether rows are places along one axis."""
        places = self.table[keys[0]] if len(keys) == 1 else None
        return isinstance(places, np.ndarray) and places.dtype.kind == "f" and bool((np.diff(places) > 0).all())

    def _values(self, column: str, keys: list[str]) -> Iterator[str]:
        """Yield a line for each value that has an interval in a small table, and for each curve in a large one."""
        if not isinstance(self.table[column], np.ndarray):
            return
        if self.table.rows <= FEW_ROWS:
            for row in range(self.table.rows):
                row_label = "".join(f", {self._place(key, row)}" for key in keys)
                yield f"{self._title(column)}{row_label}: {self._with_limits(column, row)}{self._basis(column, row)}"
            return
        values = np.asarray(self.table[column], np.float64)
        finite = np.flatnonzero(np.isfinite(values))
        if not len(finite):
            yield f"{self._title(column)}: no finite values"
            return
        has_peak = (self.source, column) in PEAKS
        peak = _first_peak(values) if has_peak else int(finite[np.argmax(values[finite])])
        first, last = int(finite[0]), int(finite[-1])
        if has_peak or not self._is_curve(keys) or first < peak < last:
            location = ", ".join(self._place(key, peak) for key in keys) or f"row {peak + 1}"
            value = f"{'first peak' if has_peak else 'largest'} {self._with_limits(column, peak)} at {location}"
            yield f"{self._title(column)}: {value}{self._basis(column, peak)}"
            return
        span = f"from {self._place(keys[0], first)} to {self._place(keys[0], last)}"
        value = f"{values[first]:.4g} to {self._with_limits(column, last)}"
        yield f"{self._title(column)}: {value}, {span}{self._basis(column, last)}"

    def _with_limits(self, column: str, row: int) -> str:
        """Return a value with its interval and unit."""
        value, low, high = (self._number(name, row) for name in (column, f"{column}_low", f"{column}_high"))
        return _with_unit(in_figures(value, low, high, interval=True), column_unit(column, self.table))

    def _place(self, column: str, row: int) -> str:
        """Return the cell that locates a value, as text."""
        cell = self.table[column][row]
        if not isinstance(self.table[column], np.ndarray):
            return str(cell)
        return f"{self._title(column, True)} {float(cell):.6g} {column_unit(column, self.table)}".rstrip()

    def _basis(self, column: str, row: int) -> str:
        """Return the basis of the interval of a value, or why there is none."""
        level, blocks, method = self.uncertainty["level"], self.uncertainty["blocks"], self.uncertainty["method"]
        why = method.removeprefix("none: ")
        if math.isnan(self._number(f"{column}_low", row)):
            return f" (no interval{f': {why}' if why != method else ''})"
        if math.isnan(level):
            return ""
        # A method of none is that of the least certain value, not of this one.
        return f" ({100 * level:g} %" + (f", {f'{blocks} blocks' if blocks else method}" if why == method else "") + ")"


def _with_unit(value: str, unit: str) -> str:
    """Return ``1.2 [1.0, 1.4] (95 %)`` with the unit behind the value: ``1.2 Å [1.0, 1.4] (95 %)``."""
    number, space, rest = value.partition(" ")
    return f"{number.rstrip(',')} {unit}{',' if number.endswith(',') else ''}{space}{rest}" if unit else value


def _first_peak(values: npt.NDArray[np.float64]) -> int:
    """Return the index of the first peak of g(r): the largest value of the first stretch above 1 that is no noise.

    Noise rises less than half as far above 1 as the highest value.
    """
    above = np.concatenate([[False], values > 1, [False]])
    starts, stops = np.flatnonzero(above[1:] & ~above[:-1]), np.flatnonzero(~above[1:] & above[:-1])
    highest = np.nanmax(values)
    peaks = [int(start + np.argmax(values[start:stop])) for start, stop in zip(starts, stops, strict=True)]
    return next((peak for peak in peaks if values[peak] - 1 >= (highest - 1) / 2), int(np.nanargmax(values)))


#: Limits: judged columns of a table, means of members on the page, columns with widths on it.
MOST_COLUMNS, MOST_MEANS, MOST_WIDTHS = 12, 48, 6
HISTOGRAM_BINS = 20
#: Columns that are no results.
NO_RESULTS = {TIME, "frame", "member", "group"}
LEVEL = 0.95
NONE = "\N{EN DASH}"
#: Independent simulations per condition that Communications Biology 6, 268 requires.
ENOUGH_MEMBERS = 3
#: Verdicts, the best first.
SOUND, DOUBTFUL, BAD = VERDICTS = ("sound", "doubtful", "without interval")


@dataclass(frozen=True)
class ReportRow:
    """A row of verdicts: the cells of a curve, or the checks of a mean with its unit and its times."""

    title: str
    verdict: str
    doubts: Sequence[Doubt] = ()
    cells: Sequence[str] = ()
    checks: Convergence | None = None
    unit: str = ""
    times: Sequence[float] = ()
    member: str = ""


def trust(folder: RunFolder) -> dict[str, Any]:
    """Return the verdicts on a run: ``counts`` as text, ``means``, ``groups``, ``others``, ``hidden`` means."""
    means = [
        row
        for analysis in folder.analyses
        for name in analysis.tables
        for row in _mean_rows(folder, name, bool(folder.members) or ":" in str(analysis.entry.get("source")))
    ]
    curves = [row for name in folder.tables for row in (*_curve_rows(folder, name), *_group_rows(folder, name))]
    counts, groups, hidden = _counts([*means, *curves]), list(_group_means(folder, means)), []
    if folder.members:  # the worst first
        means.sort(key=lambda row: VERDICTS.index(row.verdict), reverse=True)
        means, hidden = means[:MOST_MEANS], means[MOST_MEANS:]
    rest = {"hidden": len(hidden), "hidden_counts": _counts(hidden)}
    return {"counts": counts, "means": means, "groups": groups, "others": curves, **rest}


def _group_means(folder: RunFolder, rows: Sequence[ReportRow]) -> Iterator[dict[str, Any]]:
    """Yield the means of the members of each group, ascending, with a histogram whose bins all groups share."""
    groups = {member["name"]: member["group"] or "" for member in folder.members}
    means: defaultdict[tuple[str, str], defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.member and row.checks is not None:
            means[row.title, row.unit][groups.get(row.member, "")].append(row.checks.estimate.value)
    for (title, unit), values in means.items():
        every = np.concatenate([*values.values()])
        margin = 1e-9 * np.abs(every).max() or 1.0  # bins of means that differ by less would have no width
        edges = np.linspace(every.min() - margin, every.max() + margin, HISTOGRAM_BINS + 1)
        for group, numbers in sorted(values.items()):
            steps = np.repeat(edges, 2), np.repeat([0, *np.histogram(numbers, edges)[0], 0], 2)[1:-1]
            yield {"title": title, "unit": unit, "group": group, "means": sorted(numbers), "histogram": steps}


def _counts(rows: Sequence[ReportRow]) -> str:
    counts = Counter(row.verdict for row in rows)
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])


def _mean_rows(folder: RunFolder, name: str, by_user: bool) -> Iterator[ReportRow]:
    """Yield a row for each column in time of a table; in an ensemble, for each member."""
    try:
        table, uncertainty = folder.table(name), folder.uncertainty(name)
    except UsageError:
        return
    if not isinstance(table.get(TIME), np.ndarray) or not table.rows:
        return
    columns = [column for column in uncertainty["means"] if column in table] or (_numbers(table) if by_user else [])
    level = LEVEL if math.isnan(uncertainty["level"]) else uncertainty["level"]
    for column in columns[:MOST_COLUMNS]:
        start = mean["start_ps"] if (mean := uncertainty["means"].get(column)) and mean["cut"] else None
        title = f"{name}: {column}" if name.rpartition("/")[2] != column else name
        for member, values, times in _series(table, column):
            try:
                first = int(np.searchsorted(times, -math.inf if start is None else start))
                checks = assess_convergence(values, level, first)
            except UsageError as error:
                yield ReportRow(title, BAD, [(str(error), {})], member=member)
                continue
            verdict = BAD if not checks.estimate.converged else DOUBTFUL if checks.doubts else SOUND
            unit = column_unit(column, table)
            yield ReportRow(title, verdict, checks.doubts, (), checks, unit, times, member)
    if len(columns) > MOST_COLUMNS:
        yield ReportRow(name, BAD, [("columns", {"n": len(columns) - MOST_COLUMNS})])


def _numbers(table: Table) -> list[str]:
    """Return the columns of floats of a table without recorded uncertainty."""
    floats = [name for name, cells in table.items() if isinstance(cells, np.ndarray) and cells.dtype.kind == "f"]
    return [name for name in floats if name not in NO_RESULTS and not name.endswith(("_low", "_high"))]


def _series(table: Table, column: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield the values of a column in time order with their times; in an ensemble, for each member."""
    values, times = np.asarray(table[column]), np.asarray(table[TIME])
    if "member" not in table:
        order = slice(None, None, -1 if times[0] > times[-1] else 1)
        yield "", values[order], times[order]
        return
    names = np.asarray([str(member) for member in table["member"]])
    for name in dict.fromkeys(names.tolist()):
        yield name, values[names == name], times[names == name]


def _curve_rows(folder: RunFolder, name: str) -> Iterator[ReportRow]:
    """Yield a row for a table with limits beside its values."""
    record = folder.uncertainty(name)
    widths = {column: width for column, width in record["half_widths"].items() if column not in record["means"]}
    if not widths:
        return
    n_eff, method = record["n_eff"], record["method"]
    reason = method.removeprefix("none: ")
    doubts: list[Doubt] = []
    if method.startswith("none"):
        doubts = [(reason, {})]
    elif record["blocks"] and n_eff < ENOUGH:
        doubts = [("blocks", {"n_eff": n_eff, "enough": ENOUGH})]
    texts = [f"{column} \N{PLUS-MINUS SIGN} {half:.3g}" for column, half in widths.items() if not math.isnan(half)]
    lacking = [column for column, half in widths.items() if math.isnan(half)]
    columns = ", ".join(lacking[:MOST_WIDTHS]) + ", ..." * (len(lacking) > MOST_WIDTHS)
    texts = texts[:MOST_WIDTHS] + [f"without interval in places: {columns}"] * bool(lacking)
    effective = f"{n_eff:.0f}" if n_eff >= 100 else f"{n_eff:.3g}"
    cells = [", ".join(texts), f"{100 * record['level']:g} %", str(record["blocks"] or NONE), effective, reason]
    yield ReportRow(name, BAD if method.startswith("none") else DOUBTFUL if doubts else SOUND, doubts, cells)


def _group_rows(folder: RunFolder, name: str) -> Iterator[ReportRow]:
    """Yield a row for the groups of an ensemble, with the number of independent simulations in each."""
    try:
        table = folder.table(name) if folder.members and name.endswith("_groups") else Table({})
    except UsageError:
        return
    if not {"group", "low", "high"} <= set(table) or not table.rows or not isinstance(table.get("n"), np.ndarray):
        return
    members = dict(zip(map(str, table["group"]), np.nan_to_num(table["n"]).astype(int).tolist(), strict=True))
    few_members = ", ".join(f"{group}: {n}" for group, n in members.items() if n < ENOUGH_MEMBERS)
    counts = ", ".join(f"{group}: {n} members" for group, n in members.items())
    method = "Student's t over members" + "; differences by Welch's, corrected by Holm" * (len(members) > 1)
    level = folder.record.get("confidence")
    cells = [counts, f"{100 * (level if isinstance(level, float) else LEVEL):g} %", NONE, NONE, method]
    doubts = [("members", {"enough": ENOUGH_MEMBERS, "groups": few_members})] if few_members else []
    yield ReportRow(name, DOUBTFUL if few_members else SOUND, doubts, cells)
