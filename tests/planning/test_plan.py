"""Plans: of made-up records of a known cost, of two million nodes; refusals; the command line."""

import json
import resource
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning.made import record
from support import commands

import himach
from himach.errors import UsageError
from himach.planning.machine import Machine, read_machine

MACHINE = Machine(cores=16, memory=1 << 36, network=1e9, latency=1e-5, origin=1e8, disk_read=1e9, disk_write=1e9)


def column(plan, name, kind, table="times"):
    rows = [i for i, run in enumerate(plan[table]["run"]) if run == kind]
    return [plan[table][name][i] for i in rows]


def test_what_was_recorded_is_what_is_predicted_of_the_same_run():
    first, second = record(cached=False, read=0.004), record(cached=True, read=0.001)
    plan = himach.plan([first, second], nodes=[2], machine=MACHINE)
    assert column(plan, "total", "first")[0] == pytest.approx(first["seconds"]["total"], rel=0.03)
    assert column(plan, "total", "second")[0] == pytest.approx(second["seconds"]["total"], rel=0.01)


def test_frames_divide_over_nodes_and_what_does_not_divide_stays():
    plan = himach.plan(record(cached=True), nodes=[1, 4, 16], machine=MACHINE)
    assert column(plan, "map", "second", "phases") == pytest.approx([12.0, 3.0, 0.756], rel=0.01)
    assert column(plan, "startup", "second", "phases") == [0.5] * 3
    efficiency = column(plan, "efficiency", "second")
    assert efficiency[0] == pytest.approx(1)
    assert efficiency == sorted(efficiency, reverse=True)


def test_the_origin_limits_a_first_run_and_no_second_one():
    runs = [record(frame_bytes=1_000_000), record(frame_bytes=1_000_000, cached=True)]
    plan = himach.plan(runs, nodes=[1, 64], machine=MACHINE, frames=5000)
    assert column(plan, "limit", "first") == ["map()", "origin's bandwidth"]
    assert column(plan, "map", "first", "phases")[1] == pytest.approx(5000 * 1e6 / 1e8, rel=0.05)
    assert column(plan, "map", "second", "phases")[1] < 2
    assert column(plan, "origin_gb", "first", "nodes") == [5, 5]
    assert column(plan, "origin_gb", "second", "nodes") == [0, 0]


@settings(max_examples=40)
@given(
    compute=st.floats(1e-4, 0.1), read=st.floats(1e-5, 0.05), spread=st.floats(0, 0.9),
    frames=st.integers(100, 10**7),
)  # fmt: skip
def test_more_nodes_never_take_longer_to_map_and_never_do_more(compute, read, spread, frames):
    run = record(compute=compute, read=read, spread=spread, cached=True, frames=20_000)
    nodes = [1, 2, 3, 8, 50, 1000]
    plan = himach.plan(run, nodes=nodes, machine=MACHINE, frames=frames)
    mapping = np.array(column(plan, "map", "second", "phases"))
    # The slowest of more nodes may be slower beside its mean; the work of the mean node is less.
    assert (np.diff(mapping) <= 0.35 * mapping[:-1] + 1e-9).all()
    assert mapping[-1] <= mapping[0]
    disk = column(plan, "node_disk_gb", "second", "nodes")
    assert disk == sorted(disk, reverse=True)
    assert (np.array(column(plan, "low", "second")) <= np.array(column(plan, "total", "second"))).all()
    assert (np.array(column(plan, "total", "second")) <= np.array(column(plan, "high", "second"))).all()


def test_starting_takes_the_steps_by_which_ranks_tell_each_other_and_more_for_a_first_run():
    runs = [
        record(cached=cached, ranks=n, nodes=n, startup=0.1 + 0.02 * steps + 0.3 * (not cached))
        for cached in (False, True)
        for steps, n in enumerate((1, 2, 4))
    ]
    plan = himach.plan(runs, nodes=[64], ranks_per_node=1, machine=MACHINE)
    assert column(plan, "startup", "second", "phases")[0] == pytest.approx(0.22)
    assert column(plan, "startup", "first", "phases")[0] == pytest.approx(0.52)


def test_what_an_idle_origin_gives_at_once_is_not_waited_for():
    runs = [record(frame_bytes=100_000, read=0.0001)]
    machine = Machine(**{**vars(MACHINE), "origin_at_once": 1.6e9})
    plans = [
        himach.plan(runs, nodes=[64], ranks_per_node=1, machine=each, frames=64_000) for each in (MACHINE, machine)
    ]
    without, at_once = (column(plan, "map", "first", "phases")[0] for plan in plans)
    assert without - at_once == pytest.approx(16, rel=0.02)


def test_a_nodes_network_and_disk_limit_what_its_ranks_do_together():
    runs = [record(frame_bytes=1_000_000), record(frame_bytes=1_000_000, cached=True)]
    machine = Machine(**{**vars(MACHINE), "origin": 1e12, "network": 1e7, "disk_write": 2e7})
    plan = himach.plan(runs, nodes=[1, 4], ranks_per_node=16, machine=machine, frames=5000)
    assert column(plan, "map", "first", "phases") == pytest.approx([500, 125], rel=0.01)
    assert column(plan, "limit", "first") == ["network, from the origin"] * 2
    machine = Machine(**{**vars(machine), "network": 1e9})
    plan = himach.plan(runs, nodes=[1, 4], ranks_per_node=16, machine=machine, frames=5000)
    assert column(plan, "map", "stage", "phases") == pytest.approx([250, 62.5], rel=0.01)
    assert column(plan, "limit", "stage") == ["writing to disks"] * 2


def test_frames_that_no_disk_holds_are_not_staged():
    runs = [record(frame_bytes=1_000_000), record(frame_bytes=1_000_000, cached=True)]
    plan = himach.plan(runs, nodes=[1, 4, 5, 8], machine=Machine(**{**vars(MACHINE), "disk": 1e9}), frames=5000)
    for kind in ("second", "stage"):
        assert column(plan, "nodes", kind) == [5, 8]
    assert column(plan, "nodes", "first") == [1, 4, 5, 8]
    assert any("a second run on 1, 4 nodes" in note and "5 nodes hold them all" in note for note in plan.notes)
    assert column(plan, "efficiency", "second")[0] == pytest.approx(1, abs=0.01)  # beside the fewest that there are
    many = himach.plan(runs, nodes=[1, 64], machine=Machine(disk=1e9, network=1e9), frames=5000)
    notes = [note for note in many.notes if note.startswith("staging on")]
    assert [note.split(":")[0] for note in notes] == [
        "staging on 1 node is not predicted",
        "staging on 64 nodes is a guess in part",
    ]
    # A node that held as many has room for them, whatever is free now.
    small = himach.plan(runs, nodes=[1], machine=Machine(disk=1e3, network=1e9), frames=500)
    assert column(small, "nodes", "second") == [1]
    large = Machine(**{**vars(MACHINE), "memory": 4e9})
    plan = himach.plan(record(cached=True, pair_bytes=1e9), nodes=[1, 8], machine=large, frames=5000)
    assert any("on 1 nodes and fewer, pairs are more than a quarter" in note for note in plan.notes)


def test_a_run_that_a_cache_helped_in_part_tells_not_what_reading_costs():
    part = record(cached=0.37, read=0.0005, frame_bytes=1_000_000)
    whole = record(frame_bytes=1_000_000)
    plan = himach.plan([whole, part], nodes=[2], machine=MACHINE)
    assert column(plan, "origin_gb", "first", "nodes") == [pytest.approx(1.0)]
    alone = himach.plan(part, nodes=[2])
    assert column(alone, "total", "first")[0] == pytest.approx(part["seconds"]["total"], rel=0.03)
    assert any("reading from the origin is taken to cost" in note and "--cache off" in note for note in alone.notes)


def test_what_grew_with_nodes_in_the_records_grows_in_the_plan():
    runs = [record(cached=True, ranks=16 * n, nodes=n, shuffle=0.05 * 16 * n) for n in (1, 2, 4)]
    plan = himach.plan(runs, nodes=[1, 2, 4, 64], ranks_per_node=16, machine=Machine(disk_read=1e9, network=1e9))
    assert column(plan, "shuffle", "second", "phases") == pytest.approx([0.8, 1.6, 3.2, 51.2], rel=0.02)


def test_two_million_nodes_are_planned_in_little_time_and_memory():
    began = time.monotonic()
    runs = [record(cached=True, spread=0.5, frames=100_000)]
    himach.plan(runs, nodes=[2_000_000], ranks_per_node=8, machine=MACHINE, frames=10**12)
    assert time.monotonic() - began < 300
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 < 4e9


def without(change):
    made = record(cached=True)
    change(made)
    return made


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (without(lambda change: change.pop("planning")), "himach run --rerun"),
        (without(lambda change: change.pop("seconds")), "no record of a run"),
        (without(lambda change: change.update(live={})), "live run"),
        (without(lambda change: change["planning"].pop("ranks")), "cannot be read"),
        (without(lambda change: change["planning"]["totals"]["frames"].update(sum=0)), "--reuse never"),
        (without(lambda change: change.update(reused={"frames": 36})), "36 frames were kept ones.*--reuse never"),
        (without(lambda change: change["seconds"].pop("zazen")), "cannot be read"),
        (without(lambda change: change["planning"]["ranks"].update(busy=[])), "cannot be read"),
        (without(lambda change: change.update(nodes=0)), "cannot be read"),
        (without(lambda change: change["planning"].update(pair_bytes=[])), "cannot be read"),
        (without(lambda change: change["planning"].update(frame_seconds=None)), "record 1: what is recorded cannot be"),
    ],
)
def test_a_record_that_does_not_carry_it_is_refused_by_the_run_that_would(made, words):
    with pytest.raises(UsageError, match=words):
        himach.plan(made)


def test_one_record_gives_a_plan_that_names_what_it_does_not_know():
    for cached in (False, True):
        plan = himach.plan(record(frame_bytes=1_000_000, cached=cached, pair_bytes=1e12), nodes=[1, 64])
        assert plan["times"]["run"] == ["first"] * 2 + ["second"] * 2 + ["stage"] * 2
        notes = "\n".join(plan.notes)
        for words in (
            *("the origin is taken to give at least", "pairs are taken to travel at", "himach bench machine"),
            "starting and meeting are taken to last as long",
        ):
            assert words in notes
        assert ("reading from caches is taken to cost" in notes) != cached
        assert ("reading from the origin is taken to cost" in notes) == cached
    # Between an origin that gives what it was seen to give, and one that gives what is asked of it.
    plan = himach.plan(record(frame_bytes=1_000_000, frames=64_000), nodes=[64], ranks_per_node=1)
    low, high = (column(plan, name, "first")[0] for name in ("low", "high"))
    assert low < 64_000 * 0.012 / 64 + 1
    assert high > 64_000 * 1e6 / (1e6 / 0.006) * 0.95


def test_a_range_is_no_narrower_than_predictions_were_off():
    runs = [record(cached=cached, ranks=n, nodes=n) for cached in (False, True) for n in (1, 2, 4)]
    for plan, error in ((himach.plan(runs, nodes=[8], machine=MACHINE), 0.05), (himach.plan(runs[0], nodes=[8]), 0.6)):
        low, total, high = (column(plan, name, "second")[0] for name in ("low", "total", "high"))
        assert "±" not in str(plan)
        assert low <= total / (1 + error) * 1.001
        assert high >= total * (1 + error) * 0.999


@pytest.mark.parametrize(
    ("runs", "options", "words"),
    [
        ([record(), record(name="Other")], {}, "other analyses"),
        ({**record(), "ensemble": []}, {}, "an ensemble is not planned"),
        (record(compute=1e-6, read=1e-6, cached=True), {"nodes": [1], "frames": 10**6}, "or more does"),
        (record(), {"nodes": []}, "at least"),
        (record(), {"nodes": [0]}, "nodes: 0"),
        (record(), {"nodes": [1.5]}, "nodes: 1.5"),
        (record(), {"nodes": [float("inf")]}, "nodes: inf"),
        (record(), {"ranks_per_node": 0}, "ranks a node: 0"),
        (record(), {"frames": float("nan")}, "frames: nan"),
        (record(), {"frames": "x"}, "x"),
    ],
)
def test_what_cannot_be_planned_is_refused(runs, options, words):
    with pytest.raises(UsageError, match=words):
        himach.plan(runs, **options)


def test_a_machine_is_written_and_read(tmp_path):
    MACHINE.write(tmp_path / "machine.toml")
    assert read_machine(tmp_path / "machine.toml") == MACHINE
    for text, words in (
        ("disk = 'large'", "number above 0"), ("network = nan", "number above 0"), ("origin = inf", "number above 0"),
        ("cores = 2.5", "whole number"), ("speed = 1", "has no speed"), ("x", "file is not TOML"),
    ):  # fmt: skip
        (tmp_path / "bad.toml").write_text(text)
        with pytest.raises(UsageError, match=words):
            read_machine(tmp_path / "bad.toml")


def test_the_command_prints_tables_and_leaves_them(tmp_path):
    for i, cached in enumerate((False, True)):
        (tmp_path / f"{i}").mkdir()
        (tmp_path / f"{i}" / "run.json").write_text(json.dumps(record(cached=cached)))
    MACHINE.write(tmp_path / "machine.toml")
    words = ["--nodes", "1,2e0,4", "--machine", "machine.toml", "--out", "plan", "0", "1/run.json"]
    done = commands.himach("plan", *words, cwd=tmp_path, code=0)
    assert "efficiency" in done.stdout
    assert done.stdout.index("total") < done.stdout.index("low") < done.stdout.index("high")
    assert {path.name for path in (tmp_path / "plan").iterdir()} == {
        "times.csv", "phases.csv", "nodes.csv", "notes.txt", "plan.png",
    }  # fmt: skip
    assert (tmp_path / "plan" / "plan.png").read_bytes().startswith(b"\x89PNG")
