"""Where a comparison takes place: the data, the stores, and himach and its peers as processes to be timed in turn.

A benchmark asks its `Contest` for data of so many frames, for a store that holds them, and for contenders, which
`run()` times in turn and `once()` runs off the clock.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import himach.benchmarks
from himach.bench.adk import adk
from himach.bench.tools import Tool
from himach.bench.whole import Contender, Times, run_in_turn
from himach.errors import HimachError

__all__ = ["Contest", "Data", "Question"]

PEERS = himach.benchmarks.FOLDER / "peers"
HIMACH = [sys.executable, "-P", "-m", "himach"]


class Data(NamedTuple):
    """A topology, a trajectory, how many frames of it are meant, and whether that is fewer than it has."""

    topology: Path
    trajectory: Path
    frames: int
    cut: bool = False

    def first(self, n: int) -> Data:
        """Return the first `n` frames."""
        return self._replace(frames=n, cut=True)


class Question(NamedTuple):
    """An analysis, by the name that the command line takes, and its parameters."""

    analysis: str
    parameters: Mapping[str, object]


@dataclass(frozen=True)
class Contest:
    """Where a comparison takes place.

    Attributes
    ----------
    place
        Scratch folder on a local disk.
    tools
        The tools to compare with, by name.
    ranks
        Ranks of himach, and workers of those peers that can have several.
    repeats
        Turns.
    most
        The most frames that any benchmark may use; None for as many as it wants.
    """

    place: Path
    tools: Mapping[str, Tool]
    ranks: int = 2
    repeats: int = 3
    most: int | None = None

    def data(self, frames: int, suffix: str = ".xtc") -> Data:
        """Return AdK in water of so many frames, fewer if the contest allows no more."""
        frames = min(frames, self.most or frames)
        return Data(*adk(frames, suffix), frames)

    def store(self, data: Data) -> Path:
        """Return a store that has every frame of `data`."""
        store = self.place / f"store-{data.trajectory.name}"
        if not store.exists():
            needed, free = data.frames * 47_681 * 12 + (1 << 30), shutil.disk_usage(self.place).free
            if free < needed:
                raise HimachError(f"{self.place} has {free >> 20} MiB free, {needed >> 20} MiB are needed")
            words = ["stage", str(data.trajectory), "-s", str(data.topology), "--cache", str(store), "--quiet"]
            _checked([*HIMACH, *words])
        return store

    def himach(
        self,
        name: str,
        question: Question,
        data: Data,
        cache: str | Path,
        *,
        ranks: int | None = None,
        out: str | None = None,
        before: Callable[[], object] = lambda: None,
    ) -> Contender:
        """Return a run of himach.

        With `out`, the name of a folder below the scratch folder, the run leaves its files there, the seconds of its
        phases are read from its record, and it fails if it reads from the origin. Without, it prints its tables: the
        whole process then does what peers do, which draw no plot.
        """
        ranks = ranks or self.ranks
        words = [*HIMACH, "run", question.analysis, "--trajectory", str(data.trajectory)]
        words += ["--topology", str(data.topology), "--cache", str(cache), "--quiet"]
        words += ["-n", str(ranks)] if ranks > 1 else []
        words += ["--stop", str(data.frames)] if data.cut else []
        for parameter, value in question.parameters.items():
            words += ["-p", f"{parameter}={value}"]
        if out is None:
            return Contender(name, words, before)
        folder = self.place / out
        return Contender(name, [*words, "--out", str(folder)], before, lambda output: _phases(folder, data))

    def peer(self, tool: str, script: str, *words: object, warm: bool = True) -> list[Contender]:
        """Return a script of ``benchmarks/peers`` that prints its inner seconds; nothing if its tool is not here."""
        python = self.tools[tool].command
        if python is None:
            return []
        command = [python, "-W", "ignore", str(PEERS / script), *map(str, words)]
        return [Contender(tool, command, phases=_inside, warm=warm)]

    def missing(self, *tools: str) -> list[str]:
        """Return a note for each of these tools that is not here."""
        return [
            f"{name} is not compared: {self.tools[name].version}." for name in tools if self.tools[name].command is None
        ]

    def run(self, contenders: Sequence[Contender]) -> Times:
        """Time the contenders in turn."""
        return run_in_turn(contenders, self.repeats)

    def once(self, contender: Contender) -> None:
        """Run a contender off the clock."""
        contender.before()
        _checked(contender.command)


def _phases(out: Path, data: Data) -> dict[str, float]:
    """Return the seconds of a cached run's phases."""
    record = json.loads((out / "run.json").read_text())
    if record["frames"] != data.frames or record["bytes"]["origin"]:
        raise HimachError(f"{record['frames']} of {data.frames} frames read, {record['bytes']['origin']} origin bytes")
    seconds: dict[str, float] = record["seconds"]
    return seconds


def _inside(output: str) -> dict[str, float]:
    """Return the seconds that a peer's script prints last."""
    return {"inside": float(output.rsplit(maxsplit=1)[-1])}


def _checked(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise HimachError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
