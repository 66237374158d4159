"""How long the tests of each file take: `tests/durations.json`, by which the longest start first.

``pytest --record-durations`` writes it.
"""

import json
from collections import defaultdict
from pathlib import Path

FILE = Path(__file__).parents[1] / "durations.json"


class Durations:
    """A plugin of pytest that adds up setup, call and teardown by file."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)

    @staticmethod
    def read() -> dict[str, float]:
        return json.loads(FILE.read_text()) if FILE.exists() else {}

    def pytest_runtest_logreport(self, report) -> None:
        self._seconds[report.nodeid.partition("::")[0]] += report.duration

    def pytest_terminal_summary(self) -> None:
        lines = {name: round(seconds, 1) for name, seconds in sorted(self._seconds.items())}
        FILE.write_text(json.dumps({**self.read(), **lines}, indent=0, sort_keys=True) + "\n")
