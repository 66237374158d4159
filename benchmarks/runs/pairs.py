"""``himach bench pairs``: what keeping pairs costs a run, and what it saves the next.

Each part runs whole processes in turn and prints the medians of their ratios beside the bars that they are held to.
Directories of pairs are emptied, or brought back to what an earlier run left, off the clock.
"""

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

import click

from himach.io.store.sizes import show_size
from himach.io.trajectories.xdr_index import read_index
from himach.ranks.launch.memory import default_memory

from .. import FOLDER
from ..harness.contest import Contest, Data, Question
from ..harness.figures import report
from ..harness.interleave import Contender, Times, checked, scratch
from ..harness.options import DIRECTORY, RANKS, count, only, repeats
from ..harness.results import chosen

__all__ = ["main"]

QUESTIONS: Mapping[str, Question] = {
    "water residence": Question("water-residence", {"water": "name OW", "solute": "protein"}),
    "C-alpha RMSD": Question("rmsd", {"selection": "name CA"}),
}
VALUES = FOLDER / "analyses" / "values.py"
PER_FRAME = 1_000_000
#: Of so many keys: with more of them, reduce() takes longer.
KEYS = (100_000, 1_000_000)
#: The pairs that the default memory is meant for, bytes of one of them, and how often they are on the disk at most.
FULL, PAIR, TIMES = 500_000_000, 16, 3
#: A new trajectory has this part of its frames more than before.
GROWN = 0.01
#: Frames whose run is the start of a run, and little else.
FEW = 10

#: The bars.
WHOLE, WRITTEN, MAPPED, REDUCED = 1.03, 1.3, 0.02, 1.2
STARTED, AGAIN = 0.020, 0.3


@dataclass(frozen=True)
class Bench:
    """The numbers of things that are measured."""

    contest: Contest
    frames: int
    values: int
    kept: int

    @property
    def place(self) -> Path:
        """Return the scratch folder."""
        return self.contest.place

    def values_data(self, pairs: int) -> Data:
        """Return so many frames that each yields `PER_FRAME` pairs."""
        data = self.contest.data(FULL // PER_FRAME)
        return data.first(max(FEW, pairs // PER_FRAME))


@only("start, whole, values, grown or reduced")
@click.option("--frames", type=click.IntRange(min=100), default=10_000, show_default=True, help="Frames of AdK.")
@click.option("--values", type=count, default="5e8", show_default=True, help="Pairs with values that a run keeps.")
@click.option("--kept", type=count, default="1e8", show_default=True, help="Kept pairs for another reduce().")
@RANKS
@repeats(5)
@DIRECTORY
def main(
    only: Sequence[str], frames: int, values: int, kept: int, ranks: int, repeats: int, directory: Path | None
) -> None:
    """Time what keeping pairs costs a run, and what it saves the next."""
    names = chosen("part", only, PARTS)
    most = max([values] * ("values" in names) + [kept] * ("reduced" in names) + [0])
    with scratch(directory, TIMES * PAIR * most) as place:
        load = os.getloadavg()[0]
        print(f"{os.cpu_count()} cores, {load:.1f} processes wanted them in the last minute", flush=True)
        bench = Bench(Contest(place, {}, ranks, repeats), frames, values, kept)
        for name in names:
            PARTS[name](bench)


def start(bench: Bench) -> None:
    """Print what a run's start costs more where a directory is named and nothing is kept in it."""
    data = bench.contest.data(bench.frames).first(FEW)
    for what, question in QUESTIONS.items():
        times = bench.contest.run(_beside(bench, bench.contest.himach("without", question, data)))
        _seconds(f"{what}, {FEW} frames: with --pairs, more than without", _differences(times), STARTED)


def whole(bench: Bench) -> None:
    """Print what keeping costs water residence over cached frames."""
    data = bench.contest.data(bench.frames)
    side = bench.contest.himach("without", QUESTIONS["water residence"], data)
    _ratio(f"water residence, {data.frames:,} frames: whole run", bench.contest.run(_beside(bench, side)), WHOLE)


def values(bench: Bench) -> None:
    """Print what keeping costs where there are so many pairs with values that not all fit into memory."""
    data = bench.values_data(bench.values)
    memory = int(default_memory() * min(1.0, data.frames * PER_FRAME / FULL))
    side = bench.contest.himach("without", _values(VALUES), data)
    side = replace(side, command=[*side.command, "--memory", str(memory)], warm=False)
    what = f"{data.frames * PER_FRAME:,} values in {show_size(memory)}: whole run"
    _ratio(what, bench.contest.run(_beside(bench, side)), WRITTEN)


def grown(bench: Bench) -> None:
    """Print what it takes where a trajectory has one per cent more frames than when its pairs were kept."""
    whole = bench.contest.data(bench.frames)
    trajectory = bench.place / "grows.xtc"
    data = whole._replace(trajectory=trajectory)
    before = int(whole.frames / (1 + GROWN))
    end = read_index(str(whole.trajectory), "XTC").place(before)[0]
    kept = {what: bench.place / f"kept-{question.analysis}" for what, question in QUESTIONS.items()}
    _copy(whole.trajectory, trajectory, 0, end)
    bench.contest.store(data._replace(frames=before))
    for what, question in QUESTIONS.items():
        first = bench.contest.himach("first", question, data._replace(frames=before))
        checked([*first.command, "--pairs", str(kept[what])])
    _copy(whole.trajectory, trajectory, end, os.path.getsize(whole.trajectory))
    words = [str(trajectory), "-s", str(data.topology), "--cache", str(bench.contest.store(data)), "--quiet"]
    checked(bench.contest.command("stage", *words).command)
    for what, question in QUESTIONS.items():
        again = partial(_again, bench, kept[what])
        times = bench.contest.run(
            [
                bench.contest.himach("first", question, data.first(before), out=f"first-{question.analysis}"),
                again(bench.contest.himach("map", question, data, out=f"again-{question.analysis}")),
                bench.contest.himach("few", question, data.first(FEW)),
                again(bench.contest.himach("again", question, data)),
            ]
        )
        part = median(a / b for a, b in zip(times["map"]["map"], times["first"]["map"], strict=True))
        title = f"{what}, {before:,} frames, now {whole.frames:,}"
        report(f"{title}: map phase", f"{part:.1%} of the first", f"{MAPPED:.0%}")
        more = [a - b for a, b in zip(times["again"]["wall"], times["few"]["wall"], strict=True)]
        _seconds(f"{title}: whole process, more than of {FEW}", more, AGAIN)


def reduced(bench: Bench) -> None:
    """Print what a new reduce() takes over pairs that are kept."""
    data = bench.values_data(bench.kept)
    changed = bench.place / "changed" / VALUES.name
    changed.parent.mkdir()
    changed.write_text(VALUES.read_text().replace("np.add.reduce", "np.max"))
    for keys in KEYS:
        kept = bench.place / f"kept-{keys}"
        checked([*bench.contest.himach("first", _values(VALUES, keys), data).command, "--pairs", str(kept)])
        once = bench.contest.himach("once", _values(changed, keys), data, out="once")
        again = bench.contest.himach("again", _values(changed, keys), data)
        times = bench.contest.run([once, replace(again, command=[*again.command, "--pairs", str(kept)])])
        phases = [sum(both) for both in zip(times["once"]["shuffle"], times["once"]["reduce"], strict=True)]
        what = f"{data.frames * PER_FRAME:,} values of {keys:,} keys kept, reduce() changed"
        beside = {"without": {"wall": phases}, "with": times["again"]}
        _ratio(f"{what}: whole process", beside, REDUCED, "shuffle and reduce of a run in one go")
        shutil.rmtree(kept)


#: What is measured, by name.
PARTS: Mapping[str, Callable[[Bench], None]] = {
    "start": start,
    "whole": whole,
    "values": values,
    "grown": grown,
    "reduced": reduced,
}


def _values(script: Path, keys: int = KEYS[0]) -> Question:
    return Question(str(script), {"pairs": PER_FRAME, "keys": keys})


def _beside(bench: Bench, side: Contender) -> list[Contender]:
    """Return a run and the same with an empty directory of pairs."""
    fresh = bench.place / "fresh"

    def empty() -> None:
        shutil.rmtree(fresh, ignore_errors=True)
        os.sync()  # what was written in the last turn must not slow this one

    words = [*side.command, "--pairs", str(fresh)]
    return [replace(side, before=empty), replace(side, name="with", command=words, before=empty)]


def _again(bench: Bench, kept: Path, side: Contender) -> Contender:
    """Return the same run with the pairs that were kept before the trajectory grew."""
    fresh = bench.place / "fresh"

    def restore() -> None:
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.copytree(kept, fresh)

    return replace(side, command=[*side.command, "--pairs", str(fresh)], before=restore)


def _copy(source: Path, target: Path, start: int, stop: int) -> None:
    """Copy some bytes of a file to the same place of another."""
    target.touch()
    with source.open("rb") as read, target.open("r+b") as write:
        read.seek(start)
        write.seek(start)
        while piece := read.read(min(1 << 24, stop - read.tell())):
            write.write(piece)


def _differences(times: Times) -> list[float]:
    return [a - b for a, b in zip(times["with"]["wall"], times["without"]["wall"], strict=True)]


def _ratio(what: str, times: Times, bar: float, beside: str = "the same without") -> None:
    ours, theirs = times["with"]["wall"], times["without"]["wall"]
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
    report(what, f"{median(ratios):.3f} times ({spread})", f"{bar} times")
    print(f"  {median(ours):.2f} s, {beside} {median(theirs):.2f} s", flush=True)


def _seconds(what: str, values: Sequence[float], bar: float) -> None:
    spread = f"{1e3 * min(values):.0f} to {1e3 * max(values):.0f}"
    report(what, f"{1e3 * median(values):.0f} ms ({spread})", f"{1e3 * bar:.0f} ms")
