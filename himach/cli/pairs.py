"""``himach pairs``: directories of kept pairs; `describe_pairs()`, the text of ``himach info`` on one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from himach.cli.command_group import CommandGroup
from himach.cli.shared import PATH, columns, echo, format_minute, named_lines
from himach.io.store.sizes import show_size

if TYPE_CHECKING:
    from himach.checkpoint.listing import Entry, KeptFrames

directory_argument = click.argument("directory", type=PATH, metavar="DIR")


@click.group(cls=CommandGroup)
def pairs() -> None:
    """Look after the pairs that runs keep for later ones (himach run --pairs DIR)."""


@pairs.command("list")
@directory_argument
@click.option("--verify", is_flag=True, help="Read all of it again and check it: exit code 1 if anything is bad.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; sizes are in bytes.")
def list_(directory: Path, verify: bool, as_json: bool) -> None:
    """List what is kept: analyses, generations, frames, pairs, bytes, last use.

    A generation has the pairs of one map: of the same code, parameters and data. DIR may also be the --out of a run
    that did not end. Of an ensemble DIR has those of all members, and DIR/MEMBER those of one.
    """
    from himach.checkpoint.listing import entries

    place = _open_existing(directory)
    items = [] if place is None else entries(place.path, verify)
    if as_json:
        report = {"directory": str(directory), "in_use": place.holder if place else "", "kept": [*map(_to_json, items)]}
        echo(json.dumps(report, indent=2))
    elif place is None:
        echo(f"no pairs are kept in {directory}")
    else:
        echo(_table(items))
        for item in items:
            for reason in item.bad:
                prefix = f"member {item.member}: " if item.member else ""
                echo(f"{prefix}{item.analysis}, generation {item.generation}: bad: {reason}")
        if place.holder:
            echo(f"a run is under way: {place.holder}")
    if verify and any(item.bad for item in items):
        raise click.exceptions.Exit(1)


@pairs.command()
@directory_argument
@click.argument("analysis", required=False)
@click.option("--generation", type=click.IntRange(min=1), metavar="N", help="Only this generation.")
@click.option("--older", is_flag=True, help="All generations but the one of each analysis that was used last.")
@click.option("--all", "everything", is_flag=True, help="All that is kept.")
def evict(directory: Path, analysis: str | None, generation: int | None, older: bool, everything: bool) -> None:
    """Delete kept pairs, whole generations at a time; of an ensemble those of all members.

    It is refused while a run has DIR.
    """
    from himach.checkpoint.listing import evict_chosen

    if analysis is None and generation is None and not (older or everything):
        raise click.UsageError(
            "say what to evict: an ANALYSIS ('himach pairs list' shows them), --generation, --older or --all"
        )
    choices = [f"--generation {generation}"] * (generation is not None) + ["--older"] * older + ["--all"] * everything
    if len(choices) > 1 or (everything and analysis is not None):
        raise click.UsageError(f"either {' or '.join(choices if analysis is None else [analysis, *choices])}")
    if _open_existing(directory) is None:
        echo(f"nothing to evict: no pairs are kept in {directory}")
        return
    freed = evict_chosen(directory, analysis, generation, older=older)
    echo(f"freed {show_size(freed.nbytes)} in whole generations: {freed.generations}")


def describe_pairs(place: KeptFrames) -> str:
    """Return a description of kept pairs, as lines."""
    from himach.checkpoint.listing import entries, format_frames

    lines = [("pairs", str(place.path if place.out is None else place.out))]
    if place.holder:
        lines += [("in use", f"a run is under way: {place.holder}")]
    elif place.out is not None:
        lines += [("unfinished", "a run did not end; the same command goes on from what is here")]
    for item in entries(place.path):
        lines += [
            ("", ""),
            *([("member", item.member)] if item.member else []),
            ("analysis", f"{item.analysis}, generation {item.generation}"),
            ("frames", format_frames(item)),
            ("pairs", f"{item.pairs:,}"),
            ("size", f"{show_size(item.nbytes)}, in parts: {item.parts:,}"),
            ("last used", format_minute(item.used)),
            *(("trajectory", path) for path in item.trajectory),
            *(("parameter", f"{name} = {text}") for name, text in item.parameters.items()),
            *(("since then", text) for text in item.differs),
            *(("bad", text) for text in item.bad),
        ]
    return named_lines(lines)


def _open_existing(directory: Path) -> KeptFrames | None:
    """Return where pairs are kept in an existing directory."""
    from himach.checkpoint.listing import find_kept_frames

    if not directory.exists():
        raise click.UsageError(f"there is no directory {directory}")
    if not directory.is_dir():
        raise click.UsageError(f"{directory} is a file; name a directory of kept pairs")
    return find_kept_frames(directory)


def _table(entries: Sequence[Entry]) -> str:
    """Return a line for each entry below the names of its columns."""
    from himach.checkpoint.listing import format_frames

    rows = [("member", "analysis", "generation", "frames", "pairs", "size", "last used")]
    for entry in entries:
        amounts = f"{entry.pairs:,}", show_size(entry.nbytes), format_minute(entry.used)
        rows.append((entry.member, entry.analysis, f"{entry.generation}", format_frames(entry), *amounts))
    if any(entry.member for entry in entries):
        return columns(rows, left=frozenset([0, 1, 3, 6]))
    return columns([row[1:] for row in rows], left=frozenset([0, 2, 5]))


def _to_json(entry: Entry) -> dict[str, Any]:
    """Return an entry as an object for JSON."""
    from himach.checkpoint.listing import stretches

    step, runs = stretches(entry.covered)
    ranges = [[first, first + (count - 1) * step, step] for first, count in runs.tolist()]
    return {
        **({"member": entry.member} if entry.member else {}),
        "analysis": entry.analysis,
        "generation": entry.generation,
        "used_last": entry.last,
        "frames": len(entry.covered),
        "ranges": ranges,  # each with first, last and step
        "trajectory_frames": entry.n_frames,
        "pairs": entry.pairs,
        "parts": entry.parts,
        "bytes": entry.nbytes,
        "last_used": datetime.fromtimestamp(entry.used).astimezone().isoformat(timespec="seconds"),
        "parameters": entry.parameters,
        "trajectory": list(entry.trajectory),
        "differs": entry.differs,
        "bad": entry.bad,
    }
