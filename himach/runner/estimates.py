"""Uncertainties of a run's tables: `add_estimates()`, for the columns that request them."""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.analysis import TIME
from himach.errors import UsageError
from himach.output.parts import collect_tables, tabulate
from himach.output.record import Record
from himach.output.table import Column, Estimated, Table
from himach.uncertainty import Estimate, count, halves, mean, of_blocks
from himach.uncertainty import equilibration as equilibrated_at

#: Most values that are used singly of a table with columns on the disk; of a longer one this many bins are averaged.
BINS = 1 << 16

NONE = Record(
    mean=math.nan, low=math.nan, high=math.nan, n_eff=0, blocks=0, method="none", start_ps=None, cut=False, halves=None
)


def add_estimates(
    labels: Sequence[str], outcomes: Sequence[Any], level: float | None, equilibration: str | float | None
) -> dict[str, Record]:
    """Add limits beside the columns that request them; return the estimates for the record, by table name."""
    for outcome in outcomes:
        for name, thing in outcome.items() if type(outcome) is dict else ():
            columns = thing.values() if type(thing) is dict else [thing]
            if any(isinstance(column, Column) and column.estimate is not False for column in columns):
                outcome[name] = tabulate(str(name), thing)  # only a `Table` can get columns
    records = {}
    for name, table in collect_tables(labels, outcomes).items():
        if table.estimates and level is not None:
            records[name] = _estimate_table(name, table, level, equilibration)
        table.estimates.clear()  # functions among them need not be sent to other ranks
    return records


def _estimate_table(name: str, table: Table, level: float, equilibration: str | float | None) -> Record:
    """Return a table's estimates for the record: means, and the method of the one with the least `n_eff`."""
    times = table.get(TIME)
    times = times if isinstance(times, np.ndarray) else None
    means, half_widths, records = {}, {}, []
    for column, request in list(table.estimates.items()):
        try:
            if request is True and not table.rows:
                records.append(NONE)
            elif request is True:
                means[column], table.means[column] = _mean(table, column, times, level, equilibration)
                half_widths[column] = _positive(table.means[column].half_width)
                records.append(means[column])
            else:
                records.append(_limits(table, column, request, level))
                if request != "count":  # its intervals do not shrink
                    values, low, high = (np.asarray(table[f"{column}{end}"]) for end in ("", "_low", "_high"))
                    widths = (high - low)[values != 0]  # values that are 0 have not changed
                    half_widths[column] = _positive(widths.max() / 2) if len(widths) else math.nan
        except UsageError as error:
            warnings.warn(f"{name}.{column} has no estimate: {error}", stacklevel=2)
            half_widths[column] = math.nan
            records.append(NONE)
    least = min(records, key=lambda record: record["n_eff"])
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


def _limits(table: Table, column: str, request: Estimated, level: float) -> Record:
    """Add limits beside a column: of counts, of a curve by blocks of frames, or as a function returns them."""
    if not table.rows:
        estimate, low, high = None, np.empty(0), np.empty(0)
    else:
        estimate = _evaluate(request, table[column], level)
        low, high = np.atleast_1d(estimate.low), np.atleast_1d(estimate.high)
        if not np.shape(low) == np.shape(high) == (table.rows,):
            raise UsageError(f"its limits have the shapes {low.shape}, {high.shape}, and the table {table.rows} rows")
        if isinstance(request, tuple):
            # Use distances: the estimate's value was summed in another order and has other last bits.
            values = np.asarray(table[column], np.float64)
            low, high = values - (estimate.value - low), values + (high - estimate.value)
        low, high = (np.clip(limit, *table.note(column).within) for limit in (low, high))
    columns = dict(table)
    table.clear()
    for name, cells in columns.items():
        table[name] = cells
        if name == column:
            table[f"{name}_low"], table[f"{name}_high"] = low, high
            table.level = level
    if column in table.units:
        table.units |= dict.fromkeys([f"{column}_low", f"{column}_high"], table.units[column])
    if estimate is None:
        return NONE
    return Record(**{**NONE, "n_eff": estimate.n_eff, "blocks": estimate.blocks, "method": estimate.method})


def _positive(half_width: float) -> float:
    return float(half_width) if half_width > 0 else math.nan


def _evaluate(request: Estimated, values: Any, level: float) -> Estimate[Any]:
    try:
        estimate: Any
        if callable(request):
            estimate = request(level)
        else:
            estimate = of_blocks(*request, level) if isinstance(request, tuple) else count(values, level)
    except UsageError:
        raise
    except Exception as error:  # a failed estimate must not lose the outcome
        raise UsageError(f"what tells it raised {type(error).__name__}: {error}") from error
    if not isinstance(estimate, Estimate):
        raise UsageError(f"what tells it returns a {type(estimate).__name__}, and must return an Estimate")
    return estimate


def _mean(
    table: Table,
    column: str,
    times: npt.NDArray[np.float64] | None,
    level: float,
    equilibration: str | float | None,
) -> tuple[Record, Estimate[float]]:
    """Return the mean of a time series, as a record and as an estimate."""
    values = table[column]
    if isinstance(values, np.memmap) or isinstance(times, np.memmap):  # else a column from finish() meets fewer times
        values, times = _thin(values, np.mean), None if times is None else _thin(times, itemgetter(0))
    if times is not None and times[0] > times[-1]:  # the selection runs backwards, but equilibration does not
        values, times = values[::-1], times[::-1]
    start, cut = equilibrated_at(values), 0
    if equilibration == "auto":
        cut = start
    elif equilibration is not None and times is not None:
        first_ps = float(equilibration)
        start = cut = int(np.searchsorted(times, first_ps - 1e-6 * abs(first_ps)))  # many files have 49.99999 for 50 ps
    result, (lowest, highest) = mean(values, level, start=cut), table.note(column).within
    result = replace(result, low=max(result.low, lowest), high=min(result.high, highest))
    if result.low == result.high:  # such as the share of a state that never occurred
        method = "none: all values are equal"
        result = replace(result, low=math.nan, high=math.nan, error=math.nan, blocks=0, method=method, converged=False)
    drift = halves(values, level, start=cut)
    record = Record(
        mean=result.value,
        low=result.low,
        high=result.high,
        n_eff=result.n_eff,
        blocks=result.blocks,
        method=result.method,
        start_ps=None if times is None else float(times[start]),
        cut=cut > 0,
        halves=[drift.value, drift.low, drift.high] if drift.converged else None,
    )
    return record, result


def _thin(cells: npt.NDArray[Any], statistic: Callable[[npt.NDArray[np.float64]], Any]) -> npt.NDArray[Any]:
    """Return cells, or of more than `BINS` a statistic of bins, which are short compared with blocks."""
    if len(cells) <= BINS:
        return cells
    edges = (np.arange(BINS + 1) * len(cells) // BINS).tolist()
    return np.array([statistic(cells[start:stop].astype(np.float64)) for start, stop in pairwise(edges)])
