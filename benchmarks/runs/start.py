"""How long a run takes to start: from the command to the first map() of the last rank, over cached frames.

`main` prints the seconds for 1, 4 and 16 ranks, and how many files each process had opened by then (by Python: folders
that it looks into for modules count, too; what libraries in C open does not), each beside its bar.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

import click

from himach.errors import HimachError

from .. import FOLDER
from ..harness.contest import Contest, Data
from ..harness.interleave import scratch
from ..harness.options import DIRECTORY, repeats

__all__ = ["main"]

FRAMES = 1000
SCRIPT = FOLDER / "analyses" / "begins.py"
#: Seconds to the first map() of the last rank, by ranks.
BARS = {1: 0.40, 4: 0.8, 16: 1.6}
#: Files that a rank opens, after the first one.
FILES = 200
#: Put where Python looks when it starts: counts what a process opens, from its start or from the fork that made it.
COUNTING = """
import os, sys
process, count = os.getpid(), 0

def hook(event, words):
    global process, count
    if event in ("open", "os.listdir", "os.scandir") or event == "import" and words[1]:
        if os.getpid() != process:
            process, count = os.getpid(), 0
        count += 1

sys.files_opened = lambda: count if os.getpid() == process else 0
sys.addaudithook(hook)
"""


class Start(NamedTuple):
    """One start: seconds to the first map() of the last rank and files that each rank had opened by then."""

    seconds: float
    files: list[int]


@click.option("-n", "ranks", multiple=True, type=click.IntRange(min=1), metavar="RANKS", help="This alone.  [1, 4, 16]")
@repeats(5)
@DIRECTORY
def main(ranks: tuple[int, ...], repeats: int, directory: Path | None) -> None:
    """Time a run's start, from the command to the last rank's first map(), and count the files a rank opens."""
    with scratch(directory) as place:
        contest = Contest(place, {})
        data = contest.data(FRAMES)
        store = contest.store(data)
        hook = place / "hook"
        hook.mkdir()
        (hook / "sitecustomize.py").write_text(COUNTING)
        numbers = ranks or tuple(BARS)
        for n in numbers:
            _start(n, data, store, hook)  # uncounted
        starts: dict[int, list[Start]] = {n: [] for n in numbers}
        for _ in range(repeats):
            for n in numbers:
                starts[n].append(_start(n, data, store, hook))
    print(
        f"from the command to the first map() of the last rank, {data.frames:,} cached frames, {os.cpu_count()} cores"
    )
    for n, found in starts.items():
        _print(n, found)


def _start(ranks: int, data: Data, store: Path, hook: Path) -> Start:
    """Start a run and return what its ranks say."""
    with tempfile.TemporaryDirectory(dir=hook.parent) as folder:
        words = ["run", f"{SCRIPT}:Begins", "-p", f"folder={folder}", "-p", f"ranks={ranks}", "--quiet"]
        words += ["-t", str(data.trajectory), "-s", str(data.topology), "--cache", str(store), "-n", str(ranks)]
        words += ["--oversubscribe", "--out", f"{folder}/run.out"]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(hook), os.environ.get("PYTHONPATH")]))}
        began = time.time()
        command = [sys.executable, "-P", "-m", "himach", *words]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        if done.returncode:
            raise HimachError(f"{' '.join(command)} failed: {done.stderr}")
        told = [Path(folder, str(rank)).read_text().split() for rank in range(ranks)]
    return Start(max(float(when) for when, _ in told) - began, [int(files) for _, files in told])


def _print(ranks: int, starts: list[Start]) -> None:
    seconds = sorted(start.seconds for start in starts)
    typical, bar = median(seconds), BARS.get(ranks)
    held = "" if bar is None else f" ({'holds' if typical <= bar else 'above'} {bar} s)"
    print(f"  -n {ranks}: {typical:.3f} s{held}, {seconds[0]:.3f} to {seconds[-1]:.3f} s")
    first, *others = [max(each) for each in zip(*(start.files for start in starts), strict=True)]
    if others:
        most = max(others)
        print(
            f"    files opened: rank 0 {first}, others {most} at most ({'holds' if most < FILES else 'above'} {FILES})"
        )
    else:
        print(f"    files opened: {first}")
