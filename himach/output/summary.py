"""What sums up a run: `summary()`, some lines."""

from __future__ import annotations

import os
from collections.abc import Sequence

from himach.output.cells import count
from himach.output.record import Record

__all__ = ["summary"]

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
    written = [] if out is None else [_written(os.fspath(out), [*record.get("files", []), "run.json"])]
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


def _written(out: str, files: Sequence[str]) -> str:
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
