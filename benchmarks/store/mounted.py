"""A mounted dataset: what other tools find in its files, beside the XTC it was staged from; how fast it is read."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import perf_counter

import click
import numpy as np

from himach.errors import HimachError

from .. import FOLDER
from ..harness.data import adk, folder, samples
from ..harness.figures import report
from ..harness.interleave import checked, scratch
from ..harness.options import DIRECTORY, only, repeats
from ..harness.tools import Tool, here, prepare

__all__ = ["main"]

SUFFIXES = ("trr", "dcd", "nc")
TOOLS = ("MDAnalysis", "MDTraj", "chemfiles")
UNITS_BAR = 2.0  # of the last place
SPEED_BAR = 1e9  # bytes a second
COMPARED = 50  # frames
REQUEST = 1 << 20
GROUPS = b"4 4\n"  # of gmx: the backbone, fitted to itself


@only("tools or speed")
@click.option("--frames", type=click.IntRange(min=10), default=1000, show_default=True, help="Frames of AdK to read.")
@click.option("--installed", is_flag=True, help="Compare with the tools of this environment; install nothing.")
@repeats(7)
@DIRECTORY
def main(frames: int, repeats: int, installed: bool, only: tuple[str, ...], directory: Path | None) -> None:
    """Read mounted files by other tools, beside the XTC; tell how fast they are read."""
    with scratch(directory) as place:
        os.environ["HIMACH_CACHE"] = str(place / "store")
        if not only or "tools" in only:
            _tools(place, here() if installed else prepare(folder() / "tools", ["newest"]))
        if not only or "speed" in only:
            _speed(place, frames, repeats)


@contextlib.contextmanager
def _mounted(place: Path, topology: Path, trajectory: Path) -> Iterator[tuple[Path, int]]:
    """Stage a trajectory, mount the store, and give the folder of the dataset and the process that serves it."""
    himach = [sys.executable, "-P", "-m", "himach"]
    words = [str(trajectory), "--topology", str(topology), "--dataset", trajectory.stem]
    checked([*himach, "stage", *words, "--quiet"])
    process = subprocess.Popen([*himach, "mount", str(place / "mount")], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        said = process.stderr.readline()
        if "is mounted" not in said:
            raise HimachError(f"himach mount: {said}{process.stderr.read()}")
        yield place / "mount" / trajectory.stem, process.pid
    finally:
        process.terminate()
        process.wait()


def _tools(place: Path, tools: dict[str, Tool]) -> None:
    topology, trajectory = adk(COMPARED)
    print(f"AdK, {COMPARED} frames of 47,681 atoms: the mounted files beside the XTC, read by the same tool")
    with _mounted(place, topology, trajectory) as (mounted, _):
        _gmx(place, tools["gmx"], mounted, trajectory)
        for name in TOOLS:
            for suffix in SUFFIXES:
                what = f"{name} {tools[name].version}, .{suffix}: positions apart, last places"
                if tools[name].command is None:
                    report(what, "not here", f"≤ {UNITS_BAR:g}")
                    continue
                script = str(FOLDER / "peers" / "positions.py")
                files = [str(mounted / "topology.gro"), str(mounted / f"trajectory.{suffix}"), str(trajectory)]
                lines = checked([str(tools[name].command), script, name, *files]).splitlines()
                found, apart, late = json.loads([line for line in lines if line.startswith("[")][-1])
                report(what, f"{apart:.2f}, {found} frames, {late:.0e} ps", f"≤ {UNITS_BAR:g}, {COMPARED}")


def _gmx(place: Path, tool: Tool, mounted: Path, trajectory: Path) -> None:
    if tool.command is None:
        report("gmx check, gmx rms", tool.version, "the XTC's")
        return
    files = {"trr": mounted / "trajectory.trr", "xtc": trajectory}
    rows = {}
    for kind, file in files.items():
        done = subprocess.run([tool.command, "-quiet", "check", "-f", file], capture_output=True, text=True, check=True)
        counted = re.search(r"^Coords\s+(\d+)\s+(\S+)", done.stderr + done.stdout, re.MULTILINE)
        out = place / f"rms-{kind}.xvg"
        words = [tool.command, "-quiet", "rms", "-s", samples()[1], "-f", str(file), "-o", str(out)]
        subprocess.run(words, input=GROUPS, capture_output=True, check=True)
        rows[kind] = counted.groups() if counted else (), np.loadtxt(out, comments=("#", "@"))
    same = "frames, dt: " + ", ".join(rows["trr"][0])
    report(f"gmx {tool.version} check, .trr", same, "frames, dt: " + ", ".join(rows["xtc"][0]))
    apart = float(np.abs(rows["trr"][1] - rows["xtc"][1]).max())
    report("gmx rms, .trr: backbone's RMSD apart, nm", f"{apart:.1e}", "≤ 1e-06")


def _speed(place: Path, frames: int, repeats: int) -> None:
    topology, trajectory = adk(frames)
    print(f"AdK, {frames} cached frames of 47,681 atoms: sequential reads of 1 MiB; nothing of the files is in memory")
    buffer = memoryview(bytearray(REQUEST))
    with _mounted(place, topology, trajectory) as (mounted, process):
        shutil.copy(mounted / "trajectory.trr", place / "plain.trr")
        files = {f".{suffix}": mounted / f"trajectory.{suffix}" for suffix in SUFFIXES}
        files["a plain file that is in memory"] = place / "plain.trr"
        speeds: dict[str, list[float]] = {name: [] for name in files}
        spent: dict[str, list[float]] = {name: [] for name in files}
        for _ in range(repeats):
            for name, file in files.items():
                before = _processor(process)
                speeds[name].append(_read(file, buffer, forget=name.startswith(".")))
                spent[name].append((_processor(process) - before) / file.stat().st_size * 1e9)
    for name, found in speeds.items():
        bar = f"≥ {SPEED_BAR / 1e9:g}" if name.startswith(".") else "none"
        spread = f"{min(found) / 1e9:.2f} to {max(found) / 1e9:.2f}"
        report(f"{name}, GB/s", f"{median(found) / 1e9:.2f} ({spread})", bar)
        report(f"{name}, processor's seconds a GB, of both sides", f"{median(spent[name]):.2f}")


def _processor(process: int) -> float:
    """Return the seconds of a processor that this process and another one have taken."""
    ticks = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(os.times()[:2]) + sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def _read(file: Path, buffer: memoryview, forget: bool) -> float:
    """Return the bytes of a file that are read a second, from the first to the last."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        if forget:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        begun, total = perf_counter(), 0
        while n_bytes := os.readv(descriptor, [buffer]):
            total += n_bytes
        return total / (perf_counter() - begun)
    finally:
        os.close(descriptor)
