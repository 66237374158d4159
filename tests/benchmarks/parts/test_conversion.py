"""The benchmark of conversions, with few frames: what it says, and that its parts measure what they say."""

from __future__ import annotations

import click
import pytest

from himach.benchmarks.harness import data
from himach.benchmarks.parts import conversion

COMMAND = click.command()(conversion.main)
FEW = ["--frames", "4", "--kills", "2", "--ranks", "2"]


@pytest.fixture(autouse=True)
def place(monkeypatch, tmp_path):
    monkeypatch.setattr(data, "folder", lambda: tmp_path)
    monkeypatch.setattr(conversion, "FEW", 1)
    monkeypatch.setattr(conversion.shutil, "which", lambda name: None)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("part", "rows"),
    [
        ("speed", ["4 frames of AdK in water", "first: seconds", "cached: seconds", "MDAnalysis, scaled"]),
        ("whole", ["--whole, an atom", "MDAnalysis's unwrap", "--whole beside it"]),
        ("kills", ["half files after kills at 2 moments", "files left after one in peace", "inputs that changed"]),
    ],
)  # fmt: skip
def test_a_part_tells_its_figures(capsys, part, rows):
    COMMAND(["--only", part, *FEW], standalone_mode=False)
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith(row) for line, row in zip(lines, rows, strict=False))
    if part == "kills":
        assert " 0 " in lines[0] and " 0, 0 " in lines[1] and " 0 " in lines[2]
