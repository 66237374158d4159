"""Lines that sum up a run, `summary()`, and that tell how sure its tables are, `certainty()`."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

from himach.errors import printable
from himach.output.record import Record
from himach.output.table import Table
from himach.output.text import count
from himach.uncertainty.estimate import Estimate, in_figures, n_eff_text

MOST_FILES = 8  # that a summary names


def summary(record: Record, out: str | os.PathLike[str] | None = None) -> str:
    """Return what sums up a run: frames, ranks, seconds, frames a second, where frames came from and files went."""
    frames, ranks, nodes, seconds = record["frames"], record["ranks"], record["nodes"], record["seconds"]
    where = count(ranks, "rank") + (f" of {nodes} nodes" if nodes > 1 else "")
    line = f"{count(frames, 'frame')} on {where} in {_duration(seconds['whole'])}"
    mapped = frames - record["reused"]["frames"]
    if mapped and seconds["map"] > 0:
        line += f" (map: {_duration(seconds['map'])}, {_rate(mapped / seconds['map'])} frames/s)"
    cached = record["assignment"]["native"] + record["assignment"]["alien"]
    if cached:
        line += f", {cached} of them cached"
    written = [] if out is None else [_files_text(os.fspath(out), [*record.get("files", []), "run.json"])]
    return "\n".join([line, *_reused(record), *(f"error: {error}" for error in record["errors"]), *written])


def _reused(record: Record) -> list[str]:
    """Say how many frames earlier runs had mapped, or why all were mapped again; nothing if there were none."""
    total, reused, reason = record["frames"], record["reused"]["frames"], record["reused"]["reason"]
    every = f"all {total:,} frames were" if total > 1 else "the frame was"
    if not reused:
        return [f"{every} mapped again: {reason}"] if reason else []
    where = record["pairs_directory"]
    before = f"pairs in {where}" if where else "by updates" if "live" in record else "by a run that did not end"
    told = f"mapped before ({'; '.join(filter(None, [before, reason]))})"
    if reused == total:
        return [f"{every} {told}"]
    return [f"{reused:,} of {total:,} frames were {told}, {total - reused:,} now"]


def _files_text(out: str, files: Sequence[str]) -> str:
    """Say where a run left its files, and which; in a folder of many, how many."""
    return f"written to {out}: {', '.join(files) if len(files) <= MOST_FILES else count(len(files), 'file')}"


def _rate(rate: float) -> str:
    return f"{rate:.0f}" if rate >= 100 else f"{rate:.3g}"


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def certainty(name: str, table: Table, told: Record) -> list[str]:
    """Return what a record tells of how sure a table is, in lines: of each mean, and of the intervals in it."""
    limits = [column for column in table if f"{column}_low" in table]
    if not limits:
        return mean_lines(table, told)
    named = f"intervals of {', '.join(map(printable, limits))} in {printable(name)}"
    if told["method"].startswith("none"):
        return [*mean_lines(table, told), f"{named}: not converged ({n_eff_text(told['n_eff'])})"]
    basis = f"{told['blocks']} blocks, {n_eff_text(told['n_eff'])}" if told["blocks"] else told["method"]
    return [*mean_lines(table, told), f"{named}: {100 * told['level']:g} %, {basis}"]


def mean_lines(table: Table, told: Record) -> list[str]:
    """Return a line for each mean of a table.

    It has the interval, what that is made of, from when the column is equilibrated, and whether its halves agree.
    """
    return [mean_line(table.label(column), mean, told["level"]) for column, mean in told["means"].items()]


def mean_line(label: str, mean: Record, level: float) -> str:
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
