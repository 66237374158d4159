"""The benchmark of built-ins over few frames: what it says, and that peers find the same."""

from __future__ import annotations

import re

import click
import pytest

from himach.benchmarks.harness import data
from himach.benchmarks.parts import builtins

COMMAND = click.command()(builtins.main)
FEW = ["--frames", "12", "--ranks", "2"]

pytestmark = pytest.mark.nightly


@pytest.fixture(autouse=True)
def place(monkeypatch, tmp_path):
    for module in (builtins, data):
        monkeypatch.setattr(module, "folder", lambda: tmp_path)


@pytest.mark.parametrize("part", builtins.QUESTIONS)
def test_a_built_in_finds_what_its_peer_finds(capsys, tmp_path, part):
    COMMAND(["--only", part, "--directory", str(tmp_path), *FEW], standalone_mode=False)
    lines = capsys.readouterr().out.splitlines()
    (told,) = (line for line in lines if "largest difference from MDTraj" in line)
    found, allowed = re.search(r"MDTraj +(\S+) +\(bar: (\S+)\)", told).groups()
    assert float(found) <= float(allowed)
    assert lines[-1].startswith(f"{builtins.QUESTIONS[part].name}: beside the fastest")


@pytest.mark.parametrize(
    ("part", "rows"),
    [
        ("clusters", ["clusters: 12 frames, 2 ranks", "clusters: largest rank"]),
        ("archive", ["the set by MDTraj and MDAnalysis", "of one process", "the set over all", "the set over all"]),
    ],
)
def test_a_part_tells_its_figures(capsys, tmp_path, part, rows):
    COMMAND(["--only", part, "--directory", str(tmp_path), *FEW], standalone_mode=False)
    lines = capsys.readouterr().out.splitlines()[1:]
    assert all(line.startswith(row) for line, row in zip(lines, rows, strict=True))
