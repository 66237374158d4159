"""Where a comparison takes place: the data, the stores, and himach and its peers as processes to be timed in turn.

A benchmark asks its `Contest` for data of so many frames and for contenders, which `run()` times in turn. Where another
version of himach is to be timed too, each run of himach has a twin of that version, with stores of its own.
"""

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from himach.errors import HimachError

from .. import FOLDER
from .data import FRAME_BYTES, adk
from .interleave import Contender, Times, checked, run_in_turn
from .tools import Tool

__all__ = ["COMPUTING", "TWIN", "Contest", "Data", "Question"]

PEERS = FOLDER / "peers"
#: A run's time between start-up and the end of its computing, beside which a peer's own computing stands.
COMPUTING = "map to finish"
#: What the name of another version's run ends with.
TWIN = ", the other version"


class Data(NamedTuple):
    """A topology, a trajectory, how many frames of it are meant, and whether that is fewer than it has."""

    topology: Path
    trajectory: Path
    frames: int
    cut: bool = False

    def first(self, n: int) -> "Data":
        """Return the first `n` frames."""
        return self._replace(frames=n, cut=True)


class Question(NamedTuple):
    """An analysis, by the name that the command line takes, and its parameters."""

    analysis: str
    parameters: Mapping[str, object]


@dataclass(frozen=True)
class Contest:
    """Where a comparison takes place: a scratch folder on a local disk, and the tools to compare with, by name."""

    place: Path
    tools: Mapping[str, Tool]
    #: Ranks of himach, and workers of those peers that can have several.
    ranks: int = 2
    #: Turns.
    repeats: int = 3
    #: The most frames that any benchmark may use; None for as many as it wants.
    most: int | None = None
    #: The Python of another himach, to be timed in the same turns, and that of this one.
    beside: str | None = None
    python: str = sys.executable

    def data(self, frames: int, suffix: str = ".xtc") -> Data:
        """Return AdK in water of so many frames, fewer if the contest allows no more."""
        frames = min(frames, self.most or frames)
        return Data(*adk(frames, suffix), frames)

    def store(self, data: Data) -> Path:
        """Return a store that has every frame of the trajectory of `data`."""
        store = self.place / f"store-{data.trajectory.name}"
        if not store.exists():
            needed, free = data.frames * FRAME_BYTES + (1 << 30), shutil.disk_usage(self.place).free
            if free < needed:
                raise HimachError(f"{self.place} has {free >> 20} MiB free, {needed >> 20} MiB are needed")
            words = ["stage", str(data.trajectory), "-s", str(data.topology), "--cache", str(store), "--quiet"]
            checked([*self._himach, *words])
        return store

    def himach(
        self,
        name: str,
        question: Question,
        data: Data,
        cache: Literal["staged", "empty", "off"] = "staged",
        *,
        ranks: int | None = None,
        out: str | None = None,
    ) -> Contender:
        """Return a run of himach, with all frames in its cache, with an empty cache each time, or without.

        With `out`, the name of a folder below the scratch folder, the run leaves its files there, and its phases are
        read from its record; it fails if it reads from the origin what is staged. Without, it prints its tables: the
        whole process then does what peers do, which draw no plot.
        """
        ranks = ranks or self.ranks
        fresh = self.place / "fresh"
        place = self.store(data) if cache == "staged" else fresh if cache == "empty" else cache
        words = ["run", question.analysis, "--trajectory", str(data.trajectory), "--topology", str(data.topology)]
        words += ["--cache", str(place), "--quiet", *(["-n", str(ranks)] if ranks > 1 else [])]
        words += ["--stop", str(data.frames)] if data.cut else []
        for parameter, value in question.parameters.items():
            words += ["-p", f"{parameter}={value}"]
        side = Contender(name, [*self._himach, *words])
        if cache == "empty":
            side = replace(side, before=partial(shutil.rmtree, fresh, ignore_errors=True))
        if out is not None:
            folder = self.place / out
            phases = partial(_phases, folder, data, cache == "staged")
            side = replace(side, command=[*side.command, "--out", str(folder)], phases=phases)
        if (other := self._other()) is None:
            return side
        return replace(side, twin=other.himach(name + TWIN, question, data, cache, ranks=ranks, out=out))

    def command(self, *words: str) -> Contender:
        """Return a command of himach, named after its words."""
        side = Contender(f"himach {' '.join(words)}", [*self._himach, *words])
        other = self._other()
        return side if other is None else replace(side, twin=replace(other.command(*words), name=side.name + TWIN))

    def peer(self, tool: str, script: str, *words: object, warm: bool = True) -> list[Contender]:
        """Return a script of ``peers/`` that prints its inner seconds; nothing if its tool is not here.

        The tool's name is its first argument.
        """
        python = self.tools[tool].command
        if python is None:
            return []
        command = [python, "-W", "ignore", str(PEERS / script), tool, *map(str, words)]
        return [Contender(tool, command, phases=inside, warm=warm)]

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
        checked(contender.command)

    @property
    def _himach(self) -> list[str]:
        return [self.python, "-P", "-m", "himach"]

    def _other(self) -> "Contest | None":
        """Return where the other version runs."""
        if self.beside is None:
            return None
        place = self.place / "other"
        place.mkdir(exist_ok=True)
        return replace(self, place=place, python=self.beside, beside=None)


def inside(output: str) -> dict[str, float]:
    """Return the seconds that a script prints last."""
    return {"inside": float(output.rsplit(maxsplit=1)[-1])}


def _phases(out: Path, data: Data, staged: bool, output: str) -> dict[str, float]:
    """Return the seconds of a run's phases."""
    record = json.loads((out / "run.json").read_text())
    if record["frames"] != data.frames or (staged and record["bytes"]["origin"]):
        raise HimachError(f"{record['frames']} of {data.frames} frames read, {record['bytes']['origin']} origin bytes")
    seconds: dict[str, float] = record["seconds"]
    return {**seconds, COMPUTING: sum(seconds[phase] for phase in ("map", "shuffle", "reduce", "finish"))}
