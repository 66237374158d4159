"""The benchmarks of parts, at small sizes: what they say, and that they measure what they say."""

import click
import numpy as np
import pytest
from support import needs
from support.commands import himach as command

import himach
from himach.benchmarks.analyses.plain import PlainMsd, PlainRdf
from himach.benchmarks.harness import data
from himach.benchmarks.parts import builtins, conversion, ensembles, intervals
from himach.cli.plan import bench
from himach.examples import BUILTINS, load, sample


def part(name):
    """Return the command of a benchmark, which takes its options from the function once."""
    return bench.get_command(click.Context(bench), name)


COVERAGE, SERIES = part("coverage"), ["--series", "100"]
BUILTIN, CONVERSION, ENSEMBLE = (
    [part(name), *words.split()]
    for name, words in (
        ("builtins", "--frames 12 --ranks 2"),
        ("convert", "--frames 4 --kills 2 --ranks 2"),
        ("ensemble", "--members 4 --many 50 --kills 2 --ranks 2"),
    )
)
MEMBERS = ["4 members of 100 frames", "largest difference", "loop over", "first run", "first run beside", "second run"]
SET = ["the set by MDTraj and MDAnalysis", "of one process", "the set over all", "the set over all"]


@pytest.fixture
def lines(monkeypatch, tmp_path, capsys):
    """Return what runs one part of a benchmark and gives its lines."""
    for module in (builtins, data, ensembles, intervals):
        monkeypatch.setattr(module, "folder", lambda: tmp_path)
    monkeypatch.setattr(conversion, "FEW", 1)
    monkeypatch.setattr(conversion.shutil, "which", lambda name: None)
    monkeypatch.setattr(ensembles, "TOPOLOGIES", 3)

    def run(command, *words):
        command([*map(str, words)], standalone_mode=False)
        return capsys.readouterr().out.splitlines()

    return run


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("benchmark", "part", "rows"),
    [
        (BUILTIN, "clusters", ["", "clusters: 12 frames, 2 ranks", "clusters: largest rank"]),
        (BUILTIN, "archive", ["", *SET]),
        (CONVERSION, "speed", ["4 frames of AdK in water", "first: seconds", "cached: seconds", "MDAnalysis, scaled"]),
        (CONVERSION, "whole", ["--whole, an atom", "MDAnalysis's unwrap", "--whole beside it"]),
        (
            CONVERSION,
            "kills",
            ["half files after kills at 2 moments", "files left after one in peace", "inputs that changed"],
        ),
        (ENSEMBLE, "speed", MEMBERS),
        (ENSEMBLE, "map", ["map phase beside that of one trajectory"]),
        (ENSEMBLE, "memory", ["largest rank of 50 members, 3 topologies"]),
        (ENSEMBLE, "kills", ["outcomes that differ after kills at 2 moments"]),
    ],
)
def test_a_part_tells_its_figures(lines, tmp_path, benchmark, part, rows):
    place = ["--directory", tmp_path] if benchmark is BUILTIN else []
    result = lines(*benchmark, "--only", part, *place)
    assert all(line.startswith(row) for line, row in zip(result, rows, strict=benchmark is BUILTIN))
    if part == "kills":
        assert " 0 " in result[0]
        assert benchmark is ENSEMBLE or (" 0, 0 " in result[1] and " 0 " in result[2])
    if rows is MEMBERS:
        rmsd, rg = (float(word.rstrip(",")) for word in result[1].split() if "e-" in word)
        assert rmsd < 1e-4 and rg < 1e-4


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("words", "message", "times"),
    [
        ("shuffle --pairs 2e4 --repeats 1", "million pairs/s", 4),
        ("stamps --frames 3e5", "300,000 frames on 2 ranks", 1),
        ("stamps --frames 3e5 --uneven --memory 4MB", "300,000 frames on 2 ranks", 1),
    ],
)
def test_a_benchmark_runs_at_a_small_size(words, message, times):
    done = command("bench", *words.split(), timeout=100, code=0)
    assert done.stdout.count(message) == times and ("bar: " in done.stdout or "shuffle" in words)


@pytest.mark.nightly
def test_the_speed_of_mounted_files_is_told_beside_its_bar(tmp_path):
    needs.fuse()
    words = ["--only", "speed", "--frames", "10", "--repeats", "1", "--directory", str(tmp_path)]
    done = command("bench", "mount", *words, timeout=240)
    if done.returncode and "cannot be mounted" in done.stderr:
        needs.skip("the right to mount a FUSE file system")
    assert done.returncode == 0, done.stderr
    result = [line for line in done.stdout.splitlines() if "GB/s" in line]
    assert sum("seconds a GB" in line for line in done.stdout.splitlines()) == 4
    assert [line.split(",")[0] for line in result] == [".trr", ".dcd", ".nc", "a plain file that is in memory"]
    assert all("(bar: ≥ 1)" in line for line in result[:3])
    assert pytest.approx(0, abs=1e-9) != float(result[0].split("GB/s")[1].split()[0])


def test_what_is_exact_is_in_its_bounds(lines):
    head, *rows = lines(COVERAGE, *SERIES, "--only", "events")
    assert head.startswith("100 series each")
    assert len(rows) == 4
    assert not any("MISSED" in row for row in rows)
    assert "0.95 to 1.00" in rows[0]


def test_a_part_that_is_none_is_refused():
    with pytest.raises(click.BadParameter, match="no part means; there is mean, replicas"):
        COVERAGE(["--only", "means"], standalone_mode=False)


def test_every_builtin_is_timed():
    assert set(intervals.CASES) == set(BUILTINS)


@pytest.mark.parametrize(
    ("name", "plain", "parameters", "column"),
    [("rdf", PlainRdf, {"a": "name K"}, "g"), ("msd", PlainMsd, {"selection": "name K", "tau_max": 9}, "msd")],
)
def test_what_adds_up_nothing_gives_the_same_and_no_band(name, plain, parameters, column):
    item, other = (
        himach.run(make(**parameters), *sample("nanopore"), stop=80, cache="off")[name] for make in (load(name), plain)
    )
    np.testing.assert_array_equal(item[column], other[column])
    assert np.isfinite(item[f"{column}_low"][1:]).any()
    assert not np.isfinite(other[f"{column}_low"][1:]).any()
