"""How long the tests of each file take: `tests/durations.json`, by which the longest start first.

``pytest --record-durations`` writes it. Each other run of many files names those that take a fifth more than it says,
beside what all files take: machines differ, and so do their hours.
"""

import json
from collections import defaultdict
from pathlib import Path

FILE = Path(__file__).parents[1] / "durations.json"
GROWTH = 1.2
LEAST = 3.0  # seconds: below, files are not compared
FEWEST = 50  # files without which a run tells nothing of the machine


class Durations:
    """A plugin of pytest that adds up setup, call and teardown by file."""

    def __init__(self, config) -> None:
        self._records = config.option.record_durations
        self._seconds: dict[str, float] = defaultdict(float)

    @staticmethod
    def read() -> dict[str, float]:
        return json.loads(FILE.read_text()) if FILE.exists() else {}

    def pytest_runtest_logreport(self, report) -> None:
        self._seconds[report.nodeid.partition("::")[0]] += report.duration

    def growth(self) -> list[tuple[str, float, float]]:
        """Return the files that grew, each with the seconds expected on this machine and those taken."""
        before = self.read()
        common = [name for name in self._seconds if name in before]
        pace = sum(self._seconds[name] for name in common) / max(sum(before[name] for name in common), 1e-9)
        expected = {name: before[name] * pace for name in common if len(common) >= FEWEST}
        return sorted(
            (name, seconds, self._seconds[name])
            for name, seconds in expected.items()
            if self._seconds[name] > max(GROWTH * seconds, seconds + LEAST)
        )

    def pytest_terminal_summary(self, terminalreporter) -> None:
        """Name the files that grew; write all if this run is the one to compare with."""
        if self._records:
            lines = {name: round(seconds, 1) for name, seconds in sorted(self._seconds.items())}
            FILE.write_text(json.dumps({**self.read(), **lines}, indent=0, sort_keys=True) + "\n")
        for name, expected, seconds in self.growth():
            terminalreporter.write_line(f"{name} took {seconds:.0f} s; {expected:.0f} s expected")
