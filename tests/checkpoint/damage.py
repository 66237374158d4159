"""Damage to a directory of kept pairs: bits flipped, files torn at every length; the outcome is never another one.

``python tests/checkpoint/damage.py [--flips 10000] [--runs 300] [--seed N]``. Every flip and every length is looked at
by what opens the file in a run; where that sees no damage, and for some that it sees, a whole run is made.
"""

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from checkpoint.sample import SCRIPT, write_topology, write_trajectory

import himach
from himach.checkpoint.directory import LOCK, MAP, PairsDirectory
from himach.checkpoint.part import BadPartError, open_part
from himach.runner.scripts import load_script

NAMES = ("Columns", "Presence", "Chain")
N_FRAMES = 6


class Ground:
    """A trajectory, analyses, and a directory of pairs that several runs kept."""

    def __init__(self, folder: Path) -> None:
        write_trajectory(folder / "run.xtc", N_FRAMES)
        write_topology(folder / "top.gro")
        (folder / "damaged.py").write_text(SCRIPT)
        self.analyses = load_script(folder / "damaged.py")
        self.folder, self.pairs, self._good = folder, folder / "pairs", folder / "good"
        whole, _ = self.run()
        self.text = whole.text()
        for stop in (2, 5, None):
            self.run(pairs=self.pairs, stop=stop)
        (self.pairs / LOCK).write_text("process 1 on nowhere, since then")  # a killed run's
        shutil.copytree(self.pairs, self._good)
        generations = {label: PairsDirectory(self.pairs).generations(label)[-1] for label in NAMES}
        self.known = {label: (item.key, item.fingerprint) for label, item in generations.items()}
        self.files = sorted(path for path in self.pairs.rglob("*") if path.is_file())
        self.good = {path: path.read_bytes() for path in self.files}

    def run(self, names: Sequence[str] = NAMES, **keywords: Any) -> tuple[himach.Result, list[str]]:
        """Make a run; return also what it warned of (what other tests left open may be found in the meantime)."""
        analyses = [self.analyses[name]() for name in names]
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            data = self.folder / "run.xtc", self.folder / "top.gro"
            result = himach.run(analyses, *data, cache="off", **keywords)
        return result, [str(item.message) for item in warned if item.category is UserWarning]

    def restore(self) -> None:
        shutil.rmtree(self.pairs, ignore_errors=True)
        shutil.copytree(self._good, self.pairs, symlinks=True)

    def part(self, label: str = "Columns") -> Path:
        return max((self.pairs / label / "1").glob("*.pairs"), key=lambda path: path.stat().st_size)

    def seen(self, path: Path) -> bool:
        """Tell whether a run sees that a file is not what it was."""
        label = path.parent.parent.name
        if path.name == LOCK:
            return False
        if path.name == MAP:
            (obtained,) = PairsDirectory(self.pairs).generations(label)
            return obtained.fingerprint is None and bool(obtained.damage)
        try:
            open_part(path, trusted=True, identity=self.known[label][0]).close()
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

        def damages() -> Iterator[Path]:
            for _ in range(count):
                path = rng.choice(self.files)
                data = bytearray(self.good[path])
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
                _write(path, data)
                yield path

        return self._count(damages(), count, runs)

    def lengths(self, every: int, runs: int) -> dict[str, int]:
        """Tear files at every length (or every N-th) below theirs, and make so many whole runs."""
        places = [(path, size) for path in self.files for size in range(0, len(self.good[path]), every)]

        def damages() -> Iterator[Path]:
            for path, size in places:
                os.truncate(path, size)
                yield path

        return self._count(damages(), len(places), runs)

    def _count(self, damages: Iterator[Path], count: int, runs: int) -> dict[str, int]:
        """Open each damaged file, and make whole runs where that sees no damage, and of some others; repair it."""
        counted = {"damages": 0, "seen": 0, "runs": 0}
        for number, path in enumerate(damages):
            seen = self.seen(path)
            counted["damages"] += 1
            counted["seen"] += seen
            if number * runs // count != (number + 1) * runs // count or (not seen and path.name != LOCK):
                self.check()
                counted["runs"] += 1
                self.restore()
            else:
                _write(path, self.good[path])
        return counted


def _write(path: Path, data: bytes | bytearray) -> None:
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
