"""Runs with the frame store beside runs without: the second run of ``rmsd``, and the first, which fills the store."""

import json
import os
import shutil
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from himach.io.store.store import Store

from ..harness.data import adk
from ..harness.figures import report
from ..harness.interleave import checked

__all__ = ["run_once", "runs"]

N_FRAMES = 1000
RANKS = 2
HIMACH = [sys.executable, "-P", "-m", "himach"]


def runs(place: Path, repeats: int, n: int = N_FRAMES) -> None:
    """Print how much faster a second run maps, and what filling the store costs a first run."""
    topology, trajectory = adk(n)
    words = ["rmsd", "--trajectory", str(trajectory), "--topology", str(topology), "-p", "selection=name CA"]
    store, turns = place / "runs", []
    for _ in range(repeats + 1):
        shutil.rmtree(store, ignore_errors=True)
        os.sync()  # what was written in the last turn must not slow this one
        off, first = (run_once(words, cache, place / "out", "rmsd") for cache in ("off", str(store)))
        kept = held(store)
        checked([*HIMACH, "stage", str(trajectory), "-s", str(topology), "--cache", str(store), "--quiet"])
        turns.append([off, {**first, "kept": kept}, run_once(words, str(store), place / "out", "rmsd")])
    del turns[0]
    if any(run["table"] != off["table"] for off, *others in turns for run in others):
        raise AssertionError("outcomes with and without the store differ")
    title = f"rmsd, {n} AdK frames, {RANKS} ranks"
    origin = max(second["bytes"]["origin"] for _, _, second in turns)
    faster = median(off["seconds"]["map"] / second["seconds"]["map"] for off, _, second in turns)
    slower = median(first["wall"] / off["wall"] for off, first, _ in turns)
    taken = median(second["seconds"]["map"] for _, _, second in turns)
    report(f"{title}, second run: bytes.origin", str(origin), "0")
    report(f"{title}, second run: map phase against --cache off", f"{faster:.1f} times ({taken:.3f} s)", "5 times")
    report(f"{title}, first run: wall time against --cache off", f"{slower:.2f} times", "1.15 times")
    kept = median(first["kept"] for _, first, _ in turns)
    report(f"{title}, first run: frames that it kept", f"{kept:.0f}")


def held(place: Path) -> int:
    """Return how many frames a store has that runs have kept."""
    store = Store(place)
    return sum(store.open_directory(directory).facts()["alien"] for directory in store.directories())


def run_once(words: list[str], cache: str, out: Path, table: str) -> dict[str, Any]:
    """Run once; return the record with the wall time of the process as ``wall`` and the table as ``table``."""
    command = [*HIMACH, "run", *words, "-n", str(RANKS), "--quiet"]
    begun = time.perf_counter()
    checked([*command, "--cache", cache, "--out", str(out)])
    wall = time.perf_counter() - begun
    record: dict[str, Any] = json.loads((out / "run.json").read_text())
    return {**record, "wall": wall, "table": (out / f"{table}.csv").read_bytes()}
