"""The benchmark, with few frames."""

from __future__ import annotations

from himach.bench import zazen
from himach.comm import alone


def test_the_table_tells_both_layouts(capsys):
    zazen.main(frames=200_000, ranks=2, repeats=1)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Zazen, 2e+05 frames, 2 ranks")
    assert [line[:10] for line in lines[2:]] == ["each rank ", "all ranks "]


def test_figures_alone():
    figures = zazen.measure(alone(), 100_000, 1)
    assert set(figures) == {"bare", "rounds", "bitmaps", "peak"}
    assert all(value > 0 for value in figures.values())
