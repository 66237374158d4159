"""Analyses of every kind of pairs, and slow runs, for the tests of kept pairs."""

import json
import textwrap
from collections import Counter
from pathlib import Path

from support.cache_data import make
from support.commands import same_files

from himach.checkpoint.part import read_summary

#: Analyses whose pairs are of every kind; values tell their frame, so that a wrong one shows.
SCRIPT = textwrap.dedent('''
    import himach
    import numpy as np

    class Columns(himach.Analysis):
        """Values in columns, present keys, and pairs one by one, under keys of several widths."""
        factor: float = 1.0
        def map(self, frame):
            near = np.flatnonzero(frame.positions[:, 0] % 7 < 3.5)
            yield himach.Pairs(near)
            yield himach.Pairs(near + 1000, frame.positions[near, 1] * np.float32(self.factor))
            yield himach.Pairs(np.stack([near, near % 5], axis=1), frame.positions[near])
            yield "frame", frame.number
            yield ("text", frame.number % 3), {"time": frame.time}
            yield 5000 + frame.number % 2, float(frame.positions.sum())
        def reduce(self, key, series):
            values = [] if series.values is None else [str(value) for value in series.values]
            return f"{series.times.tolist()} {series.frames.tolist()} {values}"

    class Presence(himach.Analysis):
        def map(self, frame):
            yield himach.Pairs(np.flatnonzero(frame.positions[:, 2] % 9 < 4))
        def reduce(self, key, series):
            return str(series.frames.tolist())

    class Last(himach.Analysis):
        def map(self, frame):
            yield 0, 0
        def reduce(self, key, series):
            return sorted(series.values)

    class Chain(himach.Analysis):
        """Counts, made fewer on the way, in two stages."""
        then = Last
        def map(self, frame):
            counts = np.bincount((frame.positions[:, 0] // 5).astype(int) % 4, minlength=4)
            yield himach.Pairs(np.arange(4), counts)
            yield "all", int(counts.sum()) + frame.number
        def combine(self, key, series):
            return sum(int(value) for value in series.values)
        def reduce(self, key, series):
            yield 0, sum(int(value) for value in series.values)
''')


#: Frames are noted before they are mapped; times too. A job's later turns are fast.
SLOW = """
import os, time, himach

class Slow(himach.Analysis):
    def map(self, frame):
        if (notes := os.environ.get("NOTES")):
            with open(notes, "a") as file:
                file.write(f"{frame.number} {time.time()} {os.environ.get('SLURM_JOB_ID', 0)}\\n")
            time.sleep(float(os.environ["PACE"]) / (20 if "SLURM_RESTART_COUNT" in os.environ else 1))
            if frame.number == int(os.environ.get("HANGS", -1)) and not os.path.exists(notes + ".hung"):
                open(notes + ".hung", "w").close()
                time.sleep(float(os.environ.get("HANG", 60)))
        yield frame.number % 5, frame.number
        yield "x", float(frame.positions[0, 0])
    def reduce(self, key, series):
        return str(list(series.values))
"""


class Ground:
    """A folder with a trajectory, its topology and the analysis; what was mapped there."""

    def __init__(self, folder: Path, frames: int) -> None:
        self.folder, self.frames = folder, frames
        self.notes, self.out, self.pairs = folder / "notes", folder / "out", folder / "pairs"
        (folder / "slow.py").write_text(SLOW)
        make(folder, frames, "run.xtc")
        self.words = ["run", str(folder / "slow.py"), "-t", str(folder / "run.xtc"), "-s", str(folder / "top.gro")]
        self.words += ["--cache", "off", "--quiet"]

    def kept(self) -> list[str]:
        return [*self.words, "--pairs", str(self.pairs), "--out", str(self.out)]

    def mapped(self) -> Counter[int]:
        lines = self.notes.read_text().splitlines() if self.notes.exists() else []
        return Counter(int(line.split()[0]) for line in lines)

    def parts(self) -> list[Path]:
        return sorted(self.pairs.rglob("*.pairs"))

    def covered(self) -> set[int]:
        return set().union(*(read_summary(path).covered for path in self.parts()))

    def record(self) -> dict:
        return json.loads((self.out / "run.json").read_text())

    def same_as(self, whole: Path) -> None:
        """The outcome is that of a run in one go, byte for byte."""
        assert set(self.mapped()) == set(range(self.frames))
        same_files(whole, self.out)
