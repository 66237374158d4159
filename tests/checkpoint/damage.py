"""Damage to a directory of kept pairs: bits flipped, files torn at every length; the outcome is never another one.

``python tests/checkpoint/damage.py [--flips 10000] [--runs 300] [--seed N]``. Every flip and every length is looked at
by what opens the file in a run; where that sees no damage, and for some that it sees, a whole run is made.
"""

import argparse
import importlib.util
import os
import random
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if __package__ is None or __package__ == "":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from checkpoint.sample import SCRIPT, write_topology, write_trajectory
else:
    from .sample import SCRIPT, write_topology, write_trajectory

import himach
from himach.checkpoint.directory import LOCK, MAP, PairsDirectory
from himach.checkpoint.parts.columns import BadPartError
from himach.checkpoint.parts.part import open_part

NAMES = ("Columns", "Presence", "Chain")
N_FRAMES = 6


class Ground:
    """A trajectory, analyses, and a directory of pairs that several runs kept."""

    def __init__(self, folder: Path) -> None:
        write_trajectory(folder / "run.xtc", N_FRAMES)
        write_topology(folder / "top.gro")
        (folder / "damaged.py").write_text(SCRIPT)
        spec = importlib.util.spec_from_file_location("damaged", folder / "damaged.py")
        assert spec is not None
        assert spec.loader is not None
        self.module = importlib.util.module_from_spec(spec)
        sys.modules["damaged"] = self.module
        spec.loader.exec_module(self.module)
        self.folder, self.pairs, self._good = folder, folder / "pairs", folder / "good"
        whole, _ = self.run()
        self.text = whole.text()
        for stop in (2, 5, None):
            self.run(pairs=self.pairs, stop=stop)
        (self.pairs / LOCK).write_text("process 1 on nowhere, since then")  # a killed run's
        shutil.copytree(self.pairs, self._good)
        generations = {label: PairsDirectory(self.pairs).generations(label)[-1] for label in NAMES}
        self.known = {label: (one.key, one.fingerprint) for label, one in generations.items()}
        self.files = sorted(path for path in self.pairs.rglob("*") if path.is_file())
        self.good = {path: path.read_bytes() for path in self.files}

    def run(self, names: Sequence[str] = NAMES, **keywords: Any) -> tuple[himach.Result, list[str]]:
        """Make a run; return also what it warned of (what other tests left open may be found in the meantime)."""
        analyses = [getattr(self.module, name)() for name in names]
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            data = self.folder / "run.xtc", self.folder / "top.gro"
            result = himach.run(analyses, *data, cache="off", **keywords)
        return result, [str(one.message) for one in warned if one.category is UserWarning]

    def restore(self) -> None:
        """Have the directory as it was."""
        shutil.rmtree(self.pairs, ignore_errors=True)
        shutil.copytree(self._good, self.pairs, symlinks=True)

    def part(self, label: str = "Columns") -> Path:
        """Return the largest part of an analysis."""
        return max((self.pairs / label / "1").glob("*.pairs"), key=lambda path: path.stat().st_size)

    def seen(self, path: Path) -> bool:
        """Tell whether a run sees that a file is not what it was."""
        label = path.parent.parent.name
        if path.name == LOCK:
            return False
        if path.name == MAP:
            (found,) = PairsDirectory(self.pairs).generations(label)
            return found.fingerprint is None and bool(found.damage)
        try:
            open_part(path, pickles=True, identity=self.known[label][0]).close()
        except BadPartError:
            return True
        return False

    def check(self) -> None:
        """Make two runs with the directory as it is: both have the right outcome, the second maps nothing."""
        for _ in range(2):
            result, _ = self.run(pairs=self.pairs)
            assert result.text() == self.text
        assert result.record["reused"]["frames"] == N_FRAMES

    def flips(self, count: int, runs: int, rng: random.Random) -> dict[str, int]:
        """Flip so many bits, one at a time, and make so many whole runs; return what was counted."""
        counted = {"flips": 0, "seen": 0, "runs": 0}
        for number in range(count):
            path = rng.choice(self.files)
            data = bytearray(self.good[path])
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            _write(path, data)
            seen = self.seen(path)
            counted["flips"] += 1
            counted["seen"] += seen
            if number * runs // count != (number + 1) * runs // count or (not seen and path.name != LOCK):
                self.check()
                counted["runs"] += 1
                self.restore()
            else:
                _write(path, self.good[path])
        return counted

    def lengths(self, every: int, runs: int) -> dict[str, int]:
        """Tear files at every length (or every so manieth) that is less than theirs."""
        places = [(path, size) for path in self.files for size in range(0, len(self.good[path]), every)]
        counted = {"lengths": 0, "seen": 0, "runs": 0}
        for number, (path, size) in enumerate(places):
            os.truncate(path, size)
            seen = self.seen(path)
            counted["lengths"] += 1
            counted["seen"] += seen
            made = number * runs // len(places) != (number + 1) * runs // len(places)
            if made or (not seen and path.name != LOCK):
                self.check()
                counted["runs"] += 1
                self.restore()
            else:
                _write(path, self.good[path])
        return counted


def _write(path: Path, data: bytes | bytearray) -> None:
    """Write a file anew, in place."""
    with path.open("r+b", buffering=0) as file:
        file.write(data)
        file.truncate(len(data))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flips", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=300, help="whole runs beside, for flips and for lengths")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="himach-damage-") as name:
        ground = Ground(Path(name))
        print(ground.flips(options.flips, options.runs, random.Random(options.seed)), flush=True)
        print(ground.lengths(1, options.runs), flush=True)


if __name__ == "__main__":
    main()
