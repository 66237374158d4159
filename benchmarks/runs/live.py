"""Runs over the frames of an engine: what they cost it, and how soon there is a table of a fast stream."""

import filecmp
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import click

from ..harness.engine import ATOM_STYLE, Lammps
from ..harness.figures import report
from ..harness.interleave import scratch
from ..harness.options import DIRECTORY, RANKS, only, repeats

__all__ = ["main"]

EACH = 10  # steps of LAMMPS between frames
EVERY = 100  # frames between outcomes
ENGINE_BAR = 1.1
STREAM_ATOMS, STREAM_RATE = 50_000, 200
TABLE_BAR = 2.0  # seconds from the first frame to the first table
MEMORY_BAR = 400e6  # bytes of the process that receives
LINE = "    1RES     CA    1   0.000   0.000   0.000\n"


@only("lammps or stream")
@click.option("--steps", type=click.IntRange(min=100), default=4000, show_default=True, help="Steps of LAMMPS.")
@click.option("--frames", type=click.IntRange(min=100), default=2000, show_default=True, help="Frames of the stream.")
@RANKS
@repeats(3)
@DIRECTORY
def main(only: tuple[str, ...], steps: int, frames: int, ranks: int, repeats: int, directory: Path | None) -> None:
    """Tell what runs over the frames of a running engine cost it, and how soon there is a table of a fast stream."""
    with scratch(directory) as place:
        os.environ["HIMACH_CACHE"] = str(place / "store")
        if not only or "lammps" in only:
            _lammps(place, steps, ranks, repeats)
        if not only or "stream" in only:
            _stream(place, frames, ranks)


def _lammps(place: Path, steps: int, ranks: int, repeats: int) -> None:
    alone, live = [], []
    for turn in range(repeats):
        engine = Lammps(place, steps, EACH)
        _program("receive", engine.port, engine.atoms).wait()
        alone.append(engine.end())
        engine = Lammps(place, steps, EACH)
        words = ["rmsd", "-s", engine.topology, "--universe", ATOM_STYLE, "-p", "selection=all"]
        out, again = place / f"out-{turn}", place / f"again-{turn}"
        stream = ["-t", engine.address, "--dataset", f"lammps-{turn}", "--every", EVERY, "-n", ranks]
        _himach("follow", *words, *stream, "--out", out).wait()
        live.append(engine.end())
        _himach("run", *words, "-t", f"lammps-{turn}", "--out", again).wait()
        same = filecmp.cmp(out / "rmsd.csv", again / "rmsd.csv", shallow=False)
    print(f"LAMMPS, {Lammps.atoms:,} atoms, {steps:,} steps, a frame every {EACH}; RMSD on {ranks} ranks every {EVERY}")
    for number, (what, bar) in enumerate((("by the clock", f"≤ {ENGINE_BAR}"), ("of a processor", "none"))):
        ratios = [mine[number] / others[number] for mine, others in zip(live, alone, strict=True)]
        seconds = f"{median(one[number] for one in live):.2f} s / {median(one[number] for one in alone):.2f} s"
        report(f"engine's time {what}, beside a client that only receives", f"{median(ratios):.3f} ({seconds})", bar)
    report("the last outcome is that of a run over the kept dataset", str(same), "True")


def _stream(place: Path, frames: int, ranks: int) -> None:
    topology = place / "stream.gro"
    topology.write_text(f"\n{STREAM_ATOMS}\n" + STREAM_ATOMS * LINE + "8 8 8\n")
    engine = _program(frames, STREAM_ATOMS, STREAM_RATE)
    assert engine.stdout is not None
    port = engine.stdout.readline().strip()
    out = place / "out-stream"
    words = ["follow", "rmsd", "-t", f"imd://127.0.0.1:{port}", "-s", topology, "-p", "selection=index 0:999"]
    run = _himach(*words, "--dataset", "stream", "--every", EVERY, "-n", ranks, "--out", out)
    table, most = 0.0, 0
    while run.poll() is None:
        most = max(most, _peak(run.pid))
        if not table and (out / "run.json").exists():
            table = (out / "run.json").stat().st_mtime
        time.sleep(0.02)
    told = json.loads(engine.stdout.readline())
    engine.wait()
    record = json.loads((out / "run.json").read_text())
    print(f"a stream of {frames:,} frames of {STREAM_ATOMS:,} atoms at {STREAM_RATE} a second")
    report("frames in the outcome", f"{record['frames']:,} of {frames:,}", f"{frames:,}")
    report("frames a second that the engine sent", f"{frames / told['seconds']:.0f}", f"{STREAM_RATE}")
    report("first frame to first table", f"{table - told['first']:.2f} s", f"≤ {TABLE_BAR} s")
    report("most memory of the process that receives", f"{most / 1e6:.0f} MB", f"≤ {MEMORY_BAR / 1e6:.0f} MB")
    report("the engine was paused", f"{record['live']['pauses']} times", "0")


def _program(*words: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "himach.benchmarks.harness.engine", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _himach(*words: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-m", "himach", *map(str, words), "--quiet"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, text=True)


def _peak(process: int) -> int:
    """Return the most memory, in bytes, that the program which receives for a process has had."""
    for path in Path("/proc", str(process), "task").glob("*/children"):
        for child in path.read_text().split():
            try:
                if b"himach.runner.live.receiver" in Path("/proc", child, "cmdline").read_bytes():
                    lines = Path("/proc", child, "status").read_text().splitlines()
                    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)
            except OSError:
                continue
    return 0
