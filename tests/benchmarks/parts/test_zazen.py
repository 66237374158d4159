"""The benchmark, with few frames."""

from __future__ import annotations

import numpy as np
import pytest

from himach.benchmarks.parts import zazen
from himach.parallel.communicator import alone


@pytest.mark.nightly
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


@pytest.mark.parametrize("cache", zazen.CACHES)
def test_frames_that_are_asked_for_are_those_that_are_marked(cache, tmp_path, monkeypatch):
    monkeypatch.setattr(zazen, "STORED", 640)
    monkeypatch.setattr(zazen, "EXCEPTIONS", 50)
    frames = 3_000
    held = zazen._cached(alone(), frames, cache, tmp_path)
    native, alien = (np.zeros(-(-frames // 64), np.uint64) for _ in range(2))
    held.mark(range(frames), native, alien)
    numbers = np.random.default_rng(0).permutation(frames)
    for words, only in ((native, True), (native | alien, False)):
        marked = np.unpackbits(words.view(np.uint8), bitorder="little")[numbers].astype(bool)
        assert marked.sum() > 0
        np.testing.assert_array_equal(held.holds(numbers, only), marked)
