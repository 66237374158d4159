"""How sure a table is, in words: `certainty()`, a line for each mean and one for its intervals."""

from __future__ import annotations

import math

from himach.errors import printable
from himach.output.record import MeanRecord, Uncertainty
from himach.output.table import Table
from himach.uncertainty.estimate import Estimate, in_figures, n_eff_text

__all__ = ["certainty", "mean_line", "mean_lines"]


def certainty(name: str, table: Table, told: Uncertainty) -> list[str]:
    """Return what a record tells of how sure a table is, in lines: of each mean, and of the intervals in it."""
    limits = [column for column in table if f"{column}_low" in table]
    if not limits:
        return mean_lines(table, told)
    named = f"intervals of {', '.join(map(printable, limits))} in {printable(name)}"
    if told["method"].startswith("none"):
        return [*mean_lines(table, told), f"{named}: not converged ({n_eff_text(told['n_eff'])})"]
    basis = f"{told['blocks']} blocks, {n_eff_text(told['n_eff'])}" if told["blocks"] else told["method"]
    return [*mean_lines(table, told), f"{named}: {100 * told['level']:g} %, {basis}"]


def mean_lines(table: Table, told: Uncertainty) -> list[str]:
    """Return a line for each mean of a table.

    It has the interval, what that is made of, from when the column is equilibrated, and whether its halves agree.
    """
    return [mean_line(table.label(column), mean, told["level"]) for column, mean in told["means"].items()]


def mean_line(label: str, mean: MeanRecord, level: float) -> str:
    """Return the line of one mean."""
    estimate = Estimate(
        value=mean["mean"],
        low=mean["low"],
        high=mean["high"],
        level=level,
        error=math.nan,
        n_eff=mean["n_eff"],
        blocks=mean["blocks"],
        method=mean["method"],
        converged=mean["blocks"] > 0,
    )
    line = f"mean of {printable(label)}: {estimate}"
    if mean["start_ps"] is not None and mean["blocks"]:
        since = f"from {mean['start_ps']:g} ps"
        line += f", {since} on" if mean["cut"] else f", equilibrated {since}"
    return line + _halves(mean.get("halves"))


def _halves(between: list[float] | None) -> str:
    if between is None:
        return ""
    value, low, high = between
    if low <= 0 <= high:
        return "; first and second half agree"
    return f"; the second half differs from the first by {in_figures(value, low, high, True)}"
