"""Rows of ``himach bench peers`` on the same command again, and again: what runs leave in the cache for the next ones.

Nothing is staged. Whole processes, as a user types them, with ``--out`` and a plot.
"""

import json
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

from himach.errors import HimachError

from ..harness.contest import Contest, Data, Question
from ..harness.figures import Figure, Row
from ..harness.interleave import Contender

__all__ = ["again", "ten_analyses", "ten_runs"]

FIRST, SECOND, BARE, OFF = "first run", "second run", "second run without --out", "--cache off"
RMSD = Question("rmsd", {"selection": "name CA"})
N_ALPHAS = 214
#: What ten runs ask for: the first one for what all of them need.
PARTS = ("all", "name CA", "backbone", "name CB", *(f"resid {start}:{start + 34}" for start in range(1, 211, 35)))


def again(contest: Contest) -> Row:
    """C-alpha RMSD twice, from an empty cache, beside no cache and MDAnalysis's multiprocessing."""
    data = contest.data(10_000)
    store, out = contest.place / "again", contest.place / "again-out"
    empty = partial(shutil.rmtree, store, ignore_errors=True)
    first = replace(_run(contest, FIRST, RMSD, data, store, out), before=empty)
    second = _run(contest, SECOND, RMSD, data, store, out)
    sides = [
        first,
        replace(second, phases=partial(_cached, out)),
        _run(contest, BARE, RMSD, data, store),
        _run(contest, OFF, RMSD, data, "off", out),
        *contest.peer("MDAnalysis", "rmsd.py", *data[:2], contest.ranks, contest.place / "again.txt"),
    ]
    times = contest.run(sides)
    figures = [Figure(FIRST, times[FIRST]["wall"], OFF, times[OFF]["wall"], "times", 1.15)]
    if "MDAnalysis" in times:
        peer = times["MDAnalysis"]["wall"]
        figures = [
            Figure(SECOND, times[SECOND]["wall"], "MDAnalysis, whole process", peer, bar=8),
            Figure(FIRST, times[FIRST]["wall"], "MDAnalysis, whole process", peer, bar=4),
            *figures,
        ]
    pairs = zip(times[SECOND]["wall"], times[BARE]["wall"], strict=True)
    with_plot = median(drawn - bare for drawn, bare in pairs)
    parts = [path.parent for path in store.rglob("x-atoms")]
    held = sum(path.stat().st_size for part in parts for path in part.glob("*.seg"))
    notes = [
        f"--out with a plot takes {with_plot:.2f} s more than without (at most 0.15).",
        f"Atoms that were asked for take {held / data.frames / N_ALPHAS:.1f} bytes an atom and frame in the cache (at "
        "most 15.6).",
        "The second run reads no byte of the trajectory.",
        *contest.missing("MDAnalysis"),
    ]
    return Row(f"C-alpha RMSD again, nothing staged, {data.frames:,} frames", figures, (), times, notes)


def ten_runs(contest: Contest) -> Row:
    """Ten runs of one analysis in a row, from an empty cache, beside ten without a cache: processor time."""
    data = contest.data(10_000)
    return _ten(contest, "Ten runs of C-alpha RMSD in a row", data, [RMSD] * 10, "cpu", 0.35)


def ten_analyses(contest: Contest) -> Row:
    """Ten analyses of the protein's atoms in a row, from an empty cache, beside ten without a cache: wall time."""
    data = contest.data(10_000)
    questions = [Question("rmsd", {"selection": f"protein and ({part})"}) for part in PARTS]
    return _ten(contest, "Ten analyses of the protein's atoms in a row", data, questions, "wall", 0.4)


def _ten(contest: Contest, title: str, data: Data, questions: Sequence[Question], phase: str, bar: float) -> Row:
    store = contest.place / "ten"
    kept = _in_a_row("ten runs", [_run(contest, "", question, data, store) for question in questions])
    off = _in_a_row("ten with --cache off", [_run(contest, "", question, data, "off") for question in questions])
    times = contest.run([replace(kept, before=partial(shutil.rmtree, store, ignore_errors=True)), off])
    what = {"cpu": "processor time", "wall": "whole processes"}[phase]
    figure = Figure(f"{kept.name}, {what}", times[kept.name][phase], off.name, times[off.name][phase], "times", bar)
    return Row(f"{title}, {data.frames:,} frames", [figure], (), times)


def _run(
    contest: Contest, name: str, question: Question, data: Data, cache: Path | str, out: Path | None = None
) -> Contender:  # fmt: skip
    """Return a run with this cache, which leaves its files in `out`."""
    side = contest.himach(name, question, data, "off")
    command = list(side.command)
    command[command.index("--cache") + 1] = str(cache)
    return replace(side, command=[*command, *([] if out is None else ["--out", str(out)])], twin=None)


def _in_a_row(name: str, runs: Sequence[Contender]) -> Contender:
    return Contender(name, ["sh", "-ec", "\n".join(shlex.join(run.command) for run in runs)], warm=False)


def _cached(out: Path, output: str) -> Mapping[str, float]:
    """Refuse a run that has read from the origin; return nothing."""
    origin = json.loads((out / "run.json").read_text())["bytes"]["origin"]
    if origin:
        raise HimachError(f"the second run read {origin} bytes of the trajectory")
    return {}
