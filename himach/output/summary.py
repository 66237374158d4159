"""Summary of a run, `summary()`, and lines on the uncertainty of its tables, `certainty()`."""

import math
import os

from himach.errors import printable
from himach.output.record import Record
from himach.output.table import Table
from himach.output.text import count
from himach.uncertainty.estimate import Estimate, in_figures, n_eff_text

MOST_FILES = 8  # named in a summary


def summary(record: Record, out: str | os.PathLike[str] | None = None) -> str:
    """Summarise a run: frames, ranks, seconds, frames per second, sources of frames, and files."""
    frames, ranks, nodes, seconds = record["frames"], record["ranks"], record["nodes"], record["seconds"]
    where = count(ranks, "rank") + (f" of {nodes} nodes" if nodes > 1 else "")
    line = f"{count(frames, 'frame')} on {where} in {_duration(seconds['whole'])}"
    mapped = frames - record["reused"]["frames"]
    if mapped and seconds["map"] > 0:
        rate = mapped / seconds["map"]
        line += f" (map: {_duration(seconds['map'])}, {f'{rate:.0f}' if rate >= 100 else f'{rate:.3g}'} frames/s)"
    cached = record["assignment"]["native"] + record["assignment"]["alien"]
    if cached:
        line += f", {cached} of them cached"
    lines = [line, *_reused(record), *(f"error: {error}" for error in record["errors"])]
    if out is not None:
        files = [*record.get("files", []), "run.json"]
        names = ", ".join(files) if len(files) <= MOST_FILES else count(len(files), "file")
        lines.append(f"written to {os.fspath(out)}: {names}")
    return "\n".join(lines)


def _reused(record: Record) -> list[str]:
    """Return how many frames were mapped before, or why all were mapped again; nothing without earlier runs."""
    total, reused, reason = record["frames"], record["reused"]["frames"], record["reused"]["reason"]
    subject = f"all {total:,} frames were" if total > 1 else "the frame was"
    if not reused:
        return [f"{subject} mapped again: {reason}"] if reason else []
    where = record["pairs_directory"]
    source = f"pairs in {where}" if where else "by updates" if "live" in record else "by a run that did not end"
    text = f"mapped before ({'; '.join(filter(None, [source, reason]))})"
    if reused == total:
        return [f"{subject} {text}"]
    return [f"{reused:,} of {total:,} frames were {text}, {total - reused:,} now"]


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def certainty(name: str, table: Table, record: Record) -> list[str]:
    """Return lines on the uncertainty of a table from a record: each mean, and the intervals."""
    limits = [column for column in table if f"{column}_low" in table]
    if not limits:
        return mean_lines(table, record)
    intervals = f"intervals of {', '.join(map(printable, limits))} in {printable(name)}"
    if record["method"].startswith("none"):
        return [*mean_lines(table, record), f"{intervals}: not converged ({n_eff_text(record['n_eff'])})"]
    basis = f"{record['blocks']} blocks, {n_eff_text(record['n_eff'])}" if record["blocks"] else record["method"]
    return [*mean_lines(table, record), f"{intervals}: {100 * record['level']:g} %, {basis}"]


def mean_lines(table: Table, record: Record) -> list[str]:
    """Return a line for each mean of a table.

    It has the interval, its basis, the start of equilibration, and whether the halves agree.
    """
    return [mean_line(table.label(column), mean, record["level"]) for column, mean in record["means"].items()]


def mean_line(label: str, mean: Record, level: float) -> str:
    """Return the line of one mean."""
    fields = {name: mean[name] for name in ("low", "high", "n_eff", "blocks", "method")}
    estimate = Estimate(value=mean["mean"], level=level, error=math.nan, converged=mean["blocks"] > 0, **fields)
    line = f"mean of {printable(label)}: {estimate}"
    if mean["start_ps"] is not None and mean["blocks"]:
        since = f"from {mean['start_ps']:g} ps"
        line += f", {since} on" if mean["cut"] else f", equilibrated {since}"
    return line + _halves(mean.get("halves"))


def _halves(difference: list[float] | None) -> str:
    if difference is None:
        return ""
    value, low, high = difference
    if low <= 0 <= high:
        return "; first and second half agree"
    return f"; the second half differs from the first by {in_figures(value, low, high, True)}"
