"""What a run says of how sure its tables are: `add_estimates()`, of the columns that ask for it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from himach.analysis import TIME
from himach.errors import UsageError
from himach.output.cells import LongCells
from himach.output.parts import tabled, tables_of
from himach.output.record import Record
from himach.output.table import Column, Estimated, Table

if TYPE_CHECKING:
    from himach.uncertainty import Estimate

#: Values that are looked at one by one, at most, of a column that is not in memory; of more, means of so many bins are.
BINS = 1 << 16

NONE = Record(
    mean=math.nan, low=math.nan, high=math.nan, n_eff=0, blocks=0, method="none", start_ps=None, cut=False, halves=None
)


def add_estimates(
    labels: Sequence[str], outcomes: Sequence[Any], level: float | None, equilibration: str | float | None
) -> dict[str, Record]:
    """Put limits beside the columns that ask for them, and return what the record says, by the name of the table."""
    for outcome in outcomes:
        if type(outcome) is dict:  # its tables need not be `Table`, which alone can get columns
            outcome.update({name: tabled(str(name), thing) for name, thing in outcome.items() if _asks(thing)})
    told = {}
    for name, table in tables_of(labels, outcomes).items():
        if table.estimates and level is not None:
            told[name] = _of_table(name, table, level, equilibration)
        table.estimates.clear()  # functions among them need not travel
    return told


def _asks(thing: Any) -> bool:
    """Tell whether a part of an outcome that is no `Table` yet is one that asks for estimates."""
    columns = thing.values() if type(thing) is dict else [thing]
    return any(isinstance(column, Column) and column.estimate is not False for column in columns)


def _of_table(name: str, table: Table, level: float, equilibration: str | float | None) -> Record:
    """Return what a table tells of itself: the means, and how the least sure of its estimates was made."""
    times = table.get(TIME)
    times = times if isinstance(times, np.ndarray | LongCells) else None
    means, half_widths, every = {}, {}, []
    for column, asked in list(table.estimates.items()):
        try:
            if asked is True and not table.rows:
                every.append(NONE)
            elif asked is True:
                means[column], table.means[column] = _mean(table, column, times, level, equilibration)
                half_widths[column] = _positive(table.means[column].half_width)
                every.append(means[column])
            else:
                every.append(_limits(table, column, asked, level))
                if asked != "count":  # whose intervals do not shrink
                    half_widths[column] = _widest(table, column)
        except UsageError as error:
            warnings.warn(f"{name}.{column} has no estimate: {error}", stacklevel=2)
            half_widths[column] = math.nan
            every.append(NONE)
    least = min(every, key=lambda one: one["n_eff"])
    return Record(
        method=least["method"],
        level=level,
        blocks=least["blocks"],
        n_eff=least["n_eff"],
        start_ps=least["start_ps"],
        replicas=None,
        means=means,
        half_widths=half_widths,
    )


def _limits(table: Table, column: str, asked: Estimated, level: float) -> Record:
    """Put limits beside a column that has them: of counts, of a curve by blocks of frames, of what a function says."""
    if table.long is not None:
        raise UsageError(f"it has {table.rows:,} rows, too many for limits beside them")
    if not table.rows:
        found, low, high = None, np.empty(0), np.empty(0)
    else:
        found = _said(asked, table[column], level)
        low, high = np.atleast_1d(found.low), np.atleast_1d(found.high)
        if not np.shape(low) == np.shape(high) == (table.rows,):
            raise UsageError(f"its limits have the shapes {low.shape}, {high.shape}, and the table {table.rows} rows")
        if isinstance(asked, tuple):
            # By its distance: the value itself was added up in another order, and has other last bits.
            values = np.asarray(table[column], np.float64)
            low, high = values - (found.value - low), values + (high - found.value)
        low, high = (np.clip(each, *table.note(column).within) for each in (low, high))
    columns = dict(table)
    table.clear()
    for name, cells in columns.items():
        table[name] = cells
        if name == column:
            table[f"{name}_low"], table[f"{name}_high"] = low, high
            table.level = level
    if column in table.units:
        table.units |= dict.fromkeys([f"{column}_low", f"{column}_high"], table.units[column])
    if found is None:
        return NONE
    return Record(**{**NONE, "n_eff": found.n_eff, "blocks": found.blocks, "method": found.method})


def _widest(table: Table, column: str) -> float:
    """Return half the width of the widest interval of values other than 0, which have changed; nan if there is none."""
    seen = np.asarray(table[column]) != 0
    widths = np.asarray(table[f"{column}_high"])[seen] - np.asarray(table[f"{column}_low"])[seen]
    return _positive(widths.max() / 2) if len(widths) else math.nan


def _positive(half_width: float) -> float:
    return float(half_width) if half_width > 0 else math.nan


def _said(asked: Estimated, values: Any, level: float) -> Estimate[Any]:
    """Return the estimate that a column asks for."""
    from himach.uncertainty import Estimate, count, of_blocks

    try:
        found: Any
        if callable(asked):
            found = asked(level)
        else:
            found = of_blocks(*asked, level) if isinstance(asked, tuple) else count(values, level)
    except UsageError:
        raise
    except Exception as error:  # no outcome is lost because it is not known how sure it is
        raise UsageError(f"what tells it raised {type(error).__name__}: {error}") from error
    if not isinstance(found, Estimate):
        raise UsageError(f"what tells it returns a {type(found).__name__}, and must return an Estimate")
    return found


def _mean(
    table: Table,
    column: str,
    times: npt.NDArray[np.float64] | LongCells | None,
    level: float,
    equilibration: str | float | None,
) -> tuple[Record, Estimate[float]]:
    """Return the mean of what comes in time, as the record tells it and as it is."""
    from himach.uncertainty import equilibration as equilibrated_at
    from himach.uncertainty import halves, mean

    values, times = _together(table[column]), _firsts(times)
    if times is not None and times[0] > times[-1]:  # the selection runs backwards, as no equilibration does
        values, times = values[::-1], times[::-1]
    start, cut = equilibrated_at(values), 0
    if equilibration == "auto":
        cut = start
    elif equilibration is not None and times is not None:
        begin = float(equilibration)
        start = cut = int(np.searchsorted(times, begin - 1e-6 * abs(begin)))  # 50 ps are 49.99999 in many a file
    found, (least, most) = mean(values, level, start=cut), table.note(column).within
    found = replace(found, low=max(found.low, least), high=min(found.high, most))
    if found.low == found.high:  # such as the share of a state that never occurred
        method = "none: all values are equal"
        found = replace(found, low=math.nan, high=math.nan, error=math.nan, blocks=0, method=method, converged=False)
    between = halves(values, level, start=cut)
    told = Record(
        mean=found.value,
        low=found.low,
        high=found.high,
        n_eff=found.n_eff,
        blocks=found.blocks,
        method=found.method,
        start_ps=None if times is None else float(times[start]),
        cut=cut > 0,
        halves=[between.value, between.low, between.high] if between.converged else None,
    )
    return told, found


def _together(values: Any) -> Any:
    """Return values in memory: of more than `BINS` the means of bins, which are short beside blocks of an interval."""
    if not isinstance(values, LongCells):
        return values
    return np.asarray(values) if len(values) <= BINS else values.bins(BINS).means


def _firsts(times: npt.NDArray[np.float64] | LongCells | None) -> npt.NDArray[np.float64] | None:
    """Return the times of these."""
    if not isinstance(times, LongCells):
        return times
    return np.asarray(times if len(times) <= BINS else times.bins(BINS).firsts)
