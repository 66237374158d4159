"""``himach pairs``: looking after directories of kept pairs; `described()`, what ``himach info`` says of one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from himach.cli.command_group import CommandGroup
from himach.cli.options import PATH
from himach.cli.text import columns, echo, minute, named_lines
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

    kept = _existing(directory)
    found = [] if kept is None else entries(kept.path, verify)
    if as_json:
        listed = {"directory": str(directory), "in_use": kept.holder if kept else "", "kept": [*map(_plain, found)]}
        echo(json.dumps(listed, indent=2))
    elif kept is None:
        echo(f"no pairs are kept in {directory}")
    else:
        echo(_rows(found, bool(kept.members)))
        for one in found:
            for reason in one.bad:
                of = f"member {one.member}: " if one.member else ""
                echo(f"{of}{one.analysis}, generation {one.generation}: bad: {reason}")
        if kept.holder:
            echo(f"a run is under way: {kept.holder}")
    if verify and any(one.bad for one in found):
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
    named = [f"--generation {generation}"] * (generation is not None) + ["--older"] * older + ["--all"] * everything
    if len(named) > 1 or (everything and analysis is not None):
        raise click.UsageError(f"either {' or '.join(named if analysis is None else [analysis, *named])}")
    if _existing(directory) is None:
        echo(f"nothing to evict: no pairs are kept in {directory}")
        return
    freed = evict_chosen(directory, analysis, generation, older=older)
    echo(f"freed {show_size(freed.nbytes)} in whole generations: {freed.generations}")


def described(kept: KeptFrames) -> str:
    """Return what there is to say of kept pairs, as lines."""
    from himach.checkpoint.listing import entries, shown_frames

    lines = [("pairs", str(kept.path if kept.out is None else kept.out))]
    if kept.holder:
        lines += [("in use", f"a run is under way: {kept.holder}")]
    elif kept.out is not None:
        lines += [("unfinished", "a run did not end; the same command goes on from what is here")]
    found = entries(kept.path)
    if kept.members:
        lines += [line for name in sorted({one.analysis for one in found}) for line in _of_ensemble(name, found)]
        return f"{named_lines(lines)}\n\n{_rows(found, True)}"
    for one in found:
        lines += [
            ("", ""),
            ("analysis", f"{one.analysis}, generation {one.generation}"),
            ("frames", shown_frames(one)),
            ("pairs", f"{one.pairs:,}"),
            ("size", f"{show_size(one.nbytes)}, in parts: {one.parts:,}"),
            ("last used", minute(one.used)),
            *(("trajectory", path) for path in one.trajectory),
            *(("parameter", f"{name} = {text}") for name, text in one.parameters.items()),
            *(("since then", text) for text in one.differs),
            *(("bad", text) for text in one.bad),
        ]
    return named_lines(lines)


def _existing(directory: Path) -> KeptFrames | None:
    """Return where pairs are kept in a directory that is there."""
    from himach.checkpoint.listing import kept_in

    if not directory.exists():
        raise click.UsageError(f"there is no directory {directory}")
    if not directory.is_dir():
        raise click.UsageError(f"{directory} is a file; name a directory of kept pairs")
    return kept_in(directory)


def _of_ensemble(analysis: str, found: Sequence[Entry]) -> list[tuple[str, str]]:
    """Return what there is to say of an analysis's pairs of all members: of the generations that were used last."""
    used = [one for one in found if one.analysis == analysis and one.last]
    of = [len(one.covered) if one.of is None else one.of for one in used]
    bad = [one.member for one in used if one.bad]
    return [
        ("", ""),
        ("analysis", analysis),
        ("members", f"{len(used):,}"),
        ("frames", f"{sum(len(one.covered) for one in used):,} of {sum(of):,}"),
        ("pairs", f"{sum(one.pairs for one in used):,}"),
        ("size", show_size(sum(one.nbytes for one in used))),
        ("last used", minute(max(one.used for one in used))),
        *(("parameter", text) for text in _common([[f"{n} = {v}" for n, v in one.parameters.items()] for one in used])),
        *([("bad", f"parts of {', '.join(bad)}")] if bad else []),
    ]


def _common(lists: Sequence[Sequence[str]]) -> list[str]:
    """Return what all lists have."""
    return [each for each in lists[0] if all(each in others for others in lists)]


def _rows(found: Sequence[Entry], members: bool) -> str:
    """Return a line for each entry below the names of its columns."""
    from himach.checkpoint.listing import shown_frames

    names = ("analysis", "generation", "frames", "pairs", "size", "last used")
    rows = [
        (
            one.analysis,
            f"{one.generation}",
            shown_frames(one),
            f"{one.pairs:,}",
            show_size(one.nbytes),
            minute(one.used),
        )
        for one in found
    ]
    if not members:
        return columns([names, *rows], left=frozenset([0, 2, 5]))
    with_members = [(one.member, *row) for one, row in zip(found, rows, strict=True)]
    return columns([("member", *names), *with_members], left=frozenset([0, 1, 3, 6]))


def _plain(one: Entry) -> dict[str, Any]:
    """Return an entry as JSON has it."""
    from himach.checkpoint.parts.frames import stretches

    step, runs = stretches(one.covered)
    ranges = [[first, first + (count - 1) * step, step] for first, count in runs.tolist()]
    return {
        **({"member": one.member} if one.member else {}),
        "analysis": one.analysis,
        "generation": one.generation,
        "used_last": one.last,
        "frames": len(one.covered),
        "ranges": ranges,  # each with first, last and step
        "trajectory_frames": one.of,
        "pairs": one.pairs,
        "parts": one.parts,
        "bytes": one.nbytes,
        "last_used": datetime.fromtimestamp(one.used).astimezone().isoformat(timespec="seconds"),
        "parameters": one.parameters,
        "trajectory": list(one.trajectory),
        "differs": one.differs,
        "bad": one.bad,
    }
