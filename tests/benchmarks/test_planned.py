"""Plans beside what was measured, from lines that were made up."""

import json
from pathlib import Path

import pytest
from planning.made import record

from himach.benchmarks.runs import planned, virtual
from himach.benchmarks.runs.accuracy import accuracy
from himach.benchmarks.runs.virtual import BLIND, CASES, FITTED, FRAMES, Lines
from himach.planning.model import ACCURACY

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "plan.json"


def lines_of(path, turns=1):
    """Write what hosts would take whose ranks wait for nothing but 10 ms a frame, and an origin of 10 MB/s."""
    lines = Lines(path)
    for turn in range(turns):
        lines.add({"turn": turn, "machine": {"network": 1e8, "latency": 1e-4, "origin": 1e7, "origin_at_once": 0.0}})
        for hosts in (*FITTED, *BLIND):
            runs = {
                kind: record(
                    *(FRAMES * hosts, hosts, hosts),
                    cached=cached,
                    startup=0.1,
                    reduce=0.3 * hosts,
                    read=1e-4,
                    busy_part=0.01,
                )
                for kind, cached in (("first", False), ("second", True), ("lost", True))
            }
            found = {**runs, "stage": 0.1 + 0.1 * hosts}
            if hosts in FITTED:
                del found["lost"]
            lines.add({"turn": turn, "hosts": hosts, "found": dict.fromkeys(CASES, found)})
    lines.add({"rounds": 16, "machine": {"network": 1e6, "latency": 1e-4}, "seconds": [1.0, 1.1, 1.2]})
    return lines


def test_what_was_measured_is_predicted_from_and_not_measured_again(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(virtual, "Hosts", None)  # there is nothing to be measured
    lines_of(tmp_path / "records", turns=2)
    before = (tmp_path / "records").read_text()
    monkeypatch.setattr(virtual, "ROUNDS", (16,))
    planned.main(2, 2, (), False, 1, tmp_path / "records", tmp_path / "out", None)
    assert (tmp_path / "records").read_text() == before
    told = json.loads((tmp_path / "out").read_text())
    kinds = {row["kind"] for row in told["rows"]}
    assert kinds == {"first", "second", "stage", "lost", "shuffle", "rounds"}
    assert told["about"]["origin"] == 1e7
    for row in told["rows"]:
        assert row["blind"] == (row["nodes"] in BLIND)
        if row["kind"] in ("first", "second"):
            assert row["predicted"] == pytest.approx(row["measured"], rel=0.03), row
    printed = capsys.readouterr().out
    assert "HeavyReduce, second, 16 hosts" in printed
    assert "MISSED" in printed  # staging took what was made up


def test_a_line_that_was_not_written_to_its_end_is_left_out_and_what_is_missing_is_measured(tmp_path, monkeypatch):
    path = tmp_path / "records"
    lines_of(path)
    whole = path.read_text().splitlines(keepends=True)
    path.write_text("".join(whole[:3]) + whole[3][:40])
    assert len(Lines(path).lines) == 3
    asked = []

    class Hosts:
        def __init__(self, count, *_):
            asked.append(count)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def call(self, ranks, function, names, *_):
            asked.append((ranks, tuple(names)))
            return {}

        def forget_disks(self):
            pass

    monkeypatch.setattr(virtual, "Hosts", Hosts)
    monkeypatch.setattr(virtual, "_trajectory", lambda place, topology, frames: place)
    virtual.measure(Lines(path), CASES, 1, 1, False, float("inf"), tmp_path)
    assert asked == [16, (4, CASES), (8, CASES), (16, CASES)]
    assert len(Lines(path).lines) == 6


def test_what_plans_say_of_their_error_is_what_was_measured():
    known = accuracy(RESULTS)
    for kind, seen in ACCURACY.items():
        assert str(seen) == str(known[kind])
