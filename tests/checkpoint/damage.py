"""A directory of pairs that several runs kept, to be damaged: the outcome of a run with it is never another one."""

import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.cache_data import make

import himach
from himach.checkpoint.directory import LOCK
from himach.runner.scripts import load_script

from .sample import SCRIPT

NAMES = ("Columns", "Presence", "Chain")
N_FRAMES = 6


class Ground:
    """A trajectory, analyses, and a directory of pairs that several runs kept."""

    def __init__(self, folder: Path) -> None:
        make(folder, N_FRAMES, "run.xtc")
        (folder / "damaged.py").write_text(SCRIPT)
        self.analyses = load_script(folder / "damaged.py")
        self.folder, self.pairs, self._good = folder, folder / "pairs", folder / "good"
        whole, _ = self.run()
        self.text = whole.text()
        for stop in (2, 5, None):
            self.run(pairs=self.pairs, stop=stop)
        (self.pairs / LOCK).write_text("process 1 on nowhere, since then")  # a killed run's
        shutil.copytree(self.pairs, self._good)

    def run(self, names: Sequence[str] = NAMES, **keywords: Any) -> tuple[himach.Result, list[str]]:
        """Make a run; return also what it warned of (what other tests left open may be found in the meantime)."""
        analyses = [self.analyses[name]() for name in names]
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            data = self.folder / "run.xtc", self.folder / "top.gro"
            result = himach.run(analyses, *data, cache="off", **keywords)
        return result, [str(item.message) for item in warned if item.category is UserWarning]

    def clear(self) -> None:
        shutil.rmtree(self.pairs, ignore_errors=True)

    def restore(self) -> None:
        self.clear()
        shutil.copytree(self._good, self.pairs, symlinks=True)

    def part(self, label: str = "Columns") -> Path:
        return max((self.pairs / label / "1").glob("*.pairs"), key=lambda path: path.stat().st_size)

    def check(self) -> None:
        """Make two runs with the directory as it is: both have the right outcome, the second maps nothing."""
        for _ in range(2):
            result, _ = self.run(pairs=self.pairs)
            assert result.text() == self.text
        assert result.record["reused"]["frames"] == N_FRAMES
