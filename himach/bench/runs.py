"""Runs with the frame store beside runs without: the second run of ``rmsd``, and the first, which fills the store.

`main` is a part of ``himach bench cache``: whole processes in turn, so that a drifting machine drifts for all alike.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from himach.bench.adk import adk

__all__ = ["main", "run_once"]

SPARE_BYTES = 1 << 30


def main(frames: int = 1000, ranks: int = 2, repeats: int = 5, directory: str | os.PathLike[str] | None = None) -> None:
    """Print how much faster a second run maps, and what filling the store costs a first run.

    Parameters
    ----------
    frames
        Frames of AdK (47,681 atoms).
    ranks
        Ranks of each run.
    repeats
        Turns behind each median; one more, before them, does not count.
    directory
        Scratch directory on the disk to measure; None for ``/var/tmp``.
    """
    base = Path(directory) if directory is not None else Path("/var/tmp")
    needed = frames * 47_681 * 12 + SPARE_BYTES
    free = shutil.disk_usage(base).free
    if free < needed:
        print(f"cannot be measured here: {base} has {free >> 20} MiB free and {needed >> 20} MiB are needed")
        return
    topology, trajectory = adk(frames)
    place = Path(tempfile.mkdtemp(prefix="himach-bench-", dir=base))
    words = [sys.executable, "-P", "-m", "himach", "run", "rmsd", "--trajectory", str(trajectory)]
    words += ["--topology", str(topology), "-p", "selection=name CA", "-n", str(ranks), "--quiet"]
    turns = []
    try:
        for _ in range(repeats + 1):
            shutil.rmtree(place / "store", ignore_errors=True)
            os.sync()  # what was written in the last turn must not slow this one
            turns.append(
                [run_once(words, cache, place / "out") for cache in ("off", str(place / "store"), str(place / "store"))]
            )
    finally:
        shutil.rmtree(place, ignore_errors=True)
    _report(turns[1:], frames, ranks)


def run_once(words: list[str], cache: str, out: Path, table: str = "rmsd") -> dict[str, Any]:
    """Run `words` once; return the record with the wall time of the process as ``wall`` and the table as ``table``."""
    begun = time.perf_counter()
    done = subprocess.run(
        [*words, "--cache", cache, "--out", str(out)],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    wall = time.perf_counter() - begun
    if done.returncode:
        raise RuntimeError(f"the run ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    record: dict[str, Any] = json.loads((out / "run.json").read_text())
    return {**record, "wall": wall, "table": (out / f"{table}.csv").read_bytes()}


def _report(turns: list[list[dict[str, Any]]], frames: int, ranks: int) -> None:
    from himach.bench.cache import report

    if any(run["table"] != off["table"] for off, *others in turns for run in others):
        raise AssertionError("outcomes with and without the store differ")
    title = f"rmsd, {frames} AdK frames, {ranks} ranks"
    origin = max(second["bytes"]["origin"] for _, _, second in turns)
    faster = statistics.median(off["seconds"]["map"] / second["seconds"]["map"] for off, _, second in turns)
    slower = statistics.median(first["wall"] / off["wall"] for off, first, _ in turns)
    seconds = statistics.median(second["seconds"]["map"] for _, _, second in turns)
    report(f"{title}, second run: bytes.origin", str(origin), "0")
    report(f"{title}, second run: map phase against --cache off", f"{faster:.1f} times ({seconds:.3f} s)", "5 times")
    report(f"{title}, first run: wall time against --cache off", f"{slower:.2f} times", "1.15 times")
    unkept = max(frames - second["assignment"]["alien"] for _, _, second in turns)
    if unkept:
        print(f"in one turn {unkept} frames were not kept, because the disk was slower than the analysis")


if __name__ == "__main__":
    main()
