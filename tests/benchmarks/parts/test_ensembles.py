"""The benchmark of ensembles, with few members: what it says, and that its parts measure what they say."""

from __future__ import annotations

import click
import pytest

from himach.benchmarks.parts import ensembles

COMMAND = click.command()(ensembles.main)
FEW = ["--members", "4", "--many", "50", "--kills", "2", "--ranks", "2"]


@pytest.fixture(autouse=True)
def place(monkeypatch, tmp_path):
    monkeypatch.setattr(ensembles, "folder", lambda: tmp_path)
    monkeypatch.setattr(ensembles, "TOPOLOGIES", 3)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("part", "rows"),
    [
        (
            "speed",
            [
                "4 members of 100 frames",
                "largest difference",
                "loop over",
                "first run",
                "first run beside",
                "second run",
            ],
        ),
        ("map", ["map phase beside that of one trajectory"]),
        ("memory", ["largest rank of 50 members, 3 topologies"]),
        ("kills", ["outcomes that differ after kills at 2 moments"]),
    ],
)
def test_a_part_tells_its_figures(capsys, part, rows):
    COMMAND(["--only", part, *FEW], standalone_mode=False)
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith(row) for line, row in zip(lines, rows, strict=False))
    if part == "speed":
        rmsd, rg = (float(word.rstrip(",")) for word in lines[1].split() if "e-" in word)
        assert rmsd < 1e-4 and rg < 1e-4
    if part == "kills":
        assert " 0 " in lines[0]
