"""An analysis that takes its time and notes which frames it maps, for tests of runs that are ended from outside."""

import json
from collections import Counter
from pathlib import Path

from support.commands import same_files

from himach.checkpoint.part import read_summary

from .sample import write_topology, write_trajectory

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
        write_trajectory(folder / "run.xtc", frames)
        write_topology(folder / "top.gro")
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
