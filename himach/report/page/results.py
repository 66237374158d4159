"""Results in a line each: `result_lines()` of an analysis, by what its tables and the record say."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.errors import UsageError
from himach.output.cells import count
from himach.output.certainty import mean_line
from himach.output.record import MeanRecord
from himach.output.table import Table
from himach.report.record_shape import as_dict
from himach.report.run_folder import AnalysisFiles, RunFolder
from himach.uncertainty.estimate import in_figures

__all__ = ["number", "result_lines", "unit_of"]

#: A table of at most so many rows has a line for each.
FEW_ROWS = 6
#: Lines of a table, at most; names of columns in one; columns of a long table of named rows that have a line.
MOST_LINES, MOST_NAMES, MOST_NAMED = 6, 6, 2
#: Names of the built-ins' columns in a sentence, by built-in.
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
#: Curves of built-ins of which the first peak is told.
PEAKS = {("rdf", "g")}
#: Units that the name of a column ends in, and how they are written.
SUFFIXES = {"_ps": "ps", "_per_ns": "1/ns", "_cm2_s": "cm²/s", "_ns": "ns"}
#: Columns of a table of groups of an ensemble that are no places of a curve.
OF_GROUPS = {"group", "column", "mean", "low", "high", "n", "p", "p_exact"}


def result_lines(folder: RunFolder, analysis: AnalysisFiles) -> list[str]:
    """Return what came of an analysis, in a line for each result that has an interval; of others what there is."""
    source = str(analysis.entry.get("source"))
    lines: list[str] = []
    plain: list[str] = []
    for name in analysis.tables:
        try:
            of_table = _TableLines(folder.table(name), folder.uncertainty(name), source)
        except UsageError:  # which is said where the table would be
            continue
        title = name.partition("/")[2] or name
        own = list(of_table.lines())
        lines += own[:MOST_LINES]
        if len(own) > MOST_LINES:
            lines.append(f"{title}: {len(own) - MOST_LINES} more, in the table")
        if not own:
            columns = list(of_table.table)
            named = ", ".join(columns[:MOST_NAMES]) + (", ..." if len(columns) > MOST_NAMES else "")
            plain.append(f"{title}: {count(of_table.table.rows, 'row')} of {named}")
    return lines or plain or ["no table"]


def unit_of(column: str, table: Table) -> str:
    """Return the unit of a column, by the record or by the end of its name; "" for none."""
    return table.units.get(column) or next((unit for end, unit in SUFFIXES.items() if column.endswith(end)), "")


def number(value: Any, otherwise: float = math.nan) -> float:
    """Return what a record says as a number; it knows no nan, and infinities as text."""
    try:
        return otherwise if value is None or isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return otherwise


@dataclass(frozen=True)
class _TableLines:
    """The lines of one table: its cells, what the record says of how sure they are, and the source of its analysis."""

    table: Table
    told: Mapping[str, Any]
    source: str

    def lines(self) -> Iterator[str]:
        """Give them."""
        yield from self._means()
        if set(self.table) >= OF_GROUPS - {"n", "p", "p_exact"}:
            yield from self._groups()
        elif "member" not in self.table:
            columns = [name for name in self.table if f"{name}_low" in self.table and f"{name}_high" in self.table]
            keys = self._keys(columns)
            if self.table.rows > FEW_ROWS and not self._is_curve(keys) and len(columns) > MOST_NAMED:
                return
            for column in columns:
                yield from self._values(column, keys)

    def _title(self, column: str, short: bool = False) -> str:
        """Return a column's name in a sentence."""
        bare = next((column.removesuffix(end) for end in SUFFIXES if column.endswith(end)), column)
        return bare if short else NAMES.get(self.source, {}).get(column, bare.replace("_", " "))

    def _means(self) -> Iterator[str]:
        """Give a line for each mean in time that the record has."""
        for column, told in as_dict(self.told.get("means")).items():
            mean = as_dict(told)
            halves, start = mean.get("halves"), number(mean.get("start_ps"))
            record = MeanRecord(
                mean=number(mean.get("mean")),
                low=number(mean.get("low")),
                high=number(mean.get("high")),
                n_eff=number(mean.get("n_eff")),
                blocks=int(number(mean.get("blocks"), 0)),
                method=str(mean.get("method")),
                start_ps=None if math.isnan(start) else start,
                cut=bool(mean.get("cut")),
                halves=[number(one) for one in halves] if isinstance(halves, list) and len(halves) == 3 else None,
            )
            unit = unit_of(column, self.table)
            yield mean_line(
                f"{self._title(column)}{f' / {unit}' if unit else ''}", record, number(self.told.get("level"))
            )

    def _groups(self) -> Iterator[str]:
        """Give a line for each group of an ensemble, and of values for each difference of two."""
        places = [name for name in self.table if name not in OF_GROUPS]
        if places:  # each place of a curve has a row
            yield from self._group_curves(places)
            return
        for row in range(self.table.rows):
            mean, low, high = (number(self.table[name][row]) for name in ("mean", "low", "high"))
            value = in_figures(mean, low, high, interval=True)
            n = f", {int(self.table['n'][row])} members" if "n" in self.table else ""
            p = number(self.table["p"][row]) if "p" in self.table else math.nan
            column, unit = str(self.table["column"][row]), self.table.units.get("mean", "")
            more = "" if math.isnan(p) else f", p = {p:.2g}"
            yield f"{self._title(column)}, {self.table['group'][row]}: mean {_with_unit(value, unit)}{n}{more}"

    def _group_curves(self, places: list[str]) -> Iterator[str]:
        """Give a line for the curve of each group of an ensemble."""
        groups, columns = (np.asarray([str(cell) for cell in self.table[name]]) for name in ("group", "column"))
        for column, group in dict.fromkeys(zip(columns.tolist(), groups.tolist(), strict=True)):
            rows = np.flatnonzero((groups == group) & (columns == column))
            if "p" in self.table and np.isfinite([number(self.table["p"][row]) for row in rows]).any():
                continue  # a difference of two
            named = {column: "mean", f"{column}_low": "low", f"{column}_high": "high"}
            cells = {name: name for name in places} | named
            own = Table({name: [self.table[of][row] for row in rows] for name, of in cells.items()})
            own.units.update({name: unit for name, of in cells.items() if (unit := self.table.units.get(of))})
            for line in _TableLines(own, self.told, self.source)._values(column, places):
                title, _, rest = line.partition(": ")
                yield f"{title}, {group}: {rest}"

    def _keys(self, columns: list[str]) -> list[str]:
        """Return the columns that say of what a row is: those before the first one with an interval, texts if any."""
        before = list(itertools.takewhile(lambda name: name not in columns, self.table))
        texts = [name for name in before if not isinstance(self.table[name], np.ndarray)]
        return texts or (before if self.table.rows > 1 else [])

    def _is_curve(self, keys: list[str]) -> bool:
        """Tell whether rows are places along one axis."""
        places = self.table[keys[0]] if len(keys) == 1 else None
        return isinstance(places, np.ndarray) and places.dtype.kind == "f" and bool((np.diff(places) > 0).all())

    def _values(self, column: str, keys: list[str]) -> Iterator[str]:
        """Give a line for each value that has an interval in a small table, and one for a curve in a large one."""
        if not isinstance(self.table[column], np.ndarray):
            return
        if self.table.rows <= FEW_ROWS:
            for row in range(self.table.rows):
                which = "".join(f", {self._place(key, row)}" for key in keys)
                yield f"{self._title(column)}{which}: {self._with_limits(column, row)}{self._basis(column, row)}"
            return
        values = np.asarray(self.table[column], np.float64)
        good = np.flatnonzero(np.isfinite(values))
        if not len(good):
            yield f"{self._title(column)}: no finite values"
            return
        has_peak = (self.source, column) in PEAKS
        peak = _first_peak(values) if has_peak else int(good[np.argmax(values[good])])
        first, last = int(good[0]), int(good[-1])
        if has_peak or not self._is_curve(keys) or first < peak < last:
            what = "first peak" if has_peak else "largest"
            value, place = self._with_limits(column, peak), ", ".join(self._place(key, peak) for key in keys)
            yield f"{self._title(column)}: {what} {value} at {place or f'row {peak + 1}'}{self._basis(column, peak)}"
            return
        way = f"from {self._place(keys[0], first)} to {self._place(keys[0], last)}"
        value = f"{values[first]:.4g} to {self._with_limits(column, last)}"
        yield f"{self._title(column)}: {value}, {way}{self._basis(column, last)}"

    def _with_limits(self, column: str, row: int) -> str:
        """Return a value with its interval and unit."""
        value, low, high = (number(self.table[name][row]) for name in (column, f"{column}_low", f"{column}_high"))
        return _with_unit(in_figures(value, low, high, interval=True), unit_of(column, self.table))

    def _place(self, column: str, row: int) -> str:
        """Return a cell of a column that says where a value is."""
        cell = self.table[column][row]
        if not isinstance(self.table[column], np.ndarray):
            return str(cell)
        unit = unit_of(column, self.table)
        return f"{self._title(column, True)} {float(cell):.6g}{f' {unit}' if unit else ''}"

    def _basis(self, column: str, row: int) -> str:
        """Return what the interval of a value is made of, or why it has none."""
        level, blocks = number(self.told.get("level")), int(number(self.told.get("blocks"), 0))
        method = str(self.told.get("method", ""))
        if math.isnan(number(self.table[f"{column}_low"][row])):
            return f" (no interval{f': {why}' if (why := method.removeprefix('none: ')) != method else ''})"
        if math.isnan(level):
            return ""
        if method.startswith("none: "):  # of the least sure value, which this is not
            return f" ({100 * level:g} %)"
        return f" ({100 * level:g} %, {f'{blocks} blocks' if blocks else method})"


def _with_unit(value: str, unit: str) -> str:
    """Return ``1.2 [1.0, 1.4] (95 %)`` with the unit behind the value: ``1.2 Å [1.0, 1.4] (95 %)``."""
    bare, space, rest = value.partition(" ")
    return f"{bare.rstrip(',')} {unit}{',' if bare.endswith(',') else ''}{space}{rest}" if unit else value


def _first_peak(values: npt.NDArray[np.float64]) -> int:
    """Return where the first peak of g(r) is: the largest value of the first stretch above 1 that is no noise.

    Noise is what rises less than half as far above 1 as the highest value.
    """
    above = np.concatenate([[False], values > 1, [False]])
    begins, ends = np.flatnonzero(above[1:] & ~above[:-1]), np.flatnonzero(~above[1:] & above[:-1])
    highest = np.nanmax(values)
    for begin, end in zip(begins, ends, strict=True):
        peak = int(begin + np.argmax(values[begin:end]))
        if values[peak] - 1 >= (highest - 1) / 2:
            return peak
    return int(np.nanargmax(values))
