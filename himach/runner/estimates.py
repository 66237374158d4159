"""What a run says of how sure its tables are: `estimates_of()`, for the record; of the columns that ask for it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.analysis import TIME
from himach.errors import UsageError
from himach.output.parts import tables_of
from himach.output.record import MeanRecord, Uncertainty
from himach.output.table import Table

__all__ = ["estimates_of"]


def estimates_of(
    labels: Sequence[str], outcomes: Sequence[Any], level: float, equilibration: str | float | None
) -> dict[str, Uncertainty]:
    """Return the means of the columns with ``estimate=True``, by the name of their table.

    Parameters
    ----------
    labels, outcomes
        Of every analysis.
    level
        Confidence of the intervals.
    equilibration
        None: all values count; ``"auto"``: those from where the column is equilibrated; or the time, in ps, from which
        they do.

    Warns
    -----
    UserWarning
        Of a column whose mean has no interval because its values are none that can have one.
    """
    return {
        name: _of_table(name, table, level, equilibration)
        for name, table in tables_of(labels, outcomes).items()
        if table.estimated and table.rows
    }


def _of_table(name: str, table: Table, level: float, equilibration: str | float | None) -> Uncertainty:
    """Return what a table tells of itself: the means, and, of the one that is least sure, how it was estimated."""
    times = table.get(TIME)
    times = times if isinstance(times, np.ndarray) else None
    means = {column: _mean(f"{name}.{column}", table[column], times, level, equilibration) for column in table.estimated}
    least = min(means.values(), key=lambda mean: mean["n_eff"])
    return Uncertainty(
        method=least["method"],
        level=level,
        blocks=least["blocks"],
        n_eff=least["n_eff"],
        start_ps=least["start_ps"],
        replicas=None,
        means=means,
    )


def _mean(
    column: str,
    values: Any,
    times: npt.NDArray[np.float64] | None,
    level: float,
    equilibration: str | float | None,
) -> MeanRecord:
    from himach.uncertainty import equilibration as equilibrated_at
    from himach.uncertainty import mean

    if times is not None and times[0] > times[-1]:  # the selection runs backwards, as no equilibration does
        values, times = values[::-1], times[::-1]
    try:
        start = equilibrated_at(values)
        cut = 0
        if equilibration == "auto":
            cut = start
        elif equilibration is not None and times is not None:
            start = cut = int(np.searchsorted(times, float(equilibration)))
        found = mean(values, level, start=cut)
    except UsageError as error:
        warnings.warn(f"{column}: its mean is not estimated: {error}", stacklevel=2)
        nothing = math.nan
        return MeanRecord(
            mean=nothing, low=nothing, high=nothing, n_eff=0.0, blocks=0, method="none", start_ps=None, cut=False
        )
    return MeanRecord(
        mean=found.value,
        low=found.low,
        high=found.high,
        n_eff=found.n_eff,
        blocks=found.blocks,
        method=found.method,
        start_ps=None if times is None else float(times[start]),
        cut=cut > 0,
    )
