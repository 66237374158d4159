"""The benchmark, with few frames."""

from __future__ import annotations

import pytest

from himach.benchmarks.parts import zazen
from himach.parallel.communicator import alone


def test_the_table_tells_all_cases(capsys):
    zazen.main(frames=200_000, ranks=2, repeats=1)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Zazen, 2e+05 frames, 2 ranks")
    cases = [line.split(",")[0] for line in lines[2:]]
    assert cases == ["at random", "at random", "in runs", "in runs"]


@pytest.mark.parametrize("cache", zazen.CACHES)
def test_figures_alone(cache):
    figures = zazen.measure(alone(), 200_000, 1, cache)
    assert set(figures) == {"bare", "rounds", "sets", "ratio", "peak"}
    assert all(value > 0 for value in figures.values())
