"""Copies of staged frames: made, lost, used, restored."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from MDAnalysisTests.datafiles import DCD, PSF
from support.cache_data import natives as natives_of
from support.cache_data import stage_on_nodes as on_nodes
from support.cache_data import write_xtc
from support.commands import himach

from himach.frame import RawFrame
from himach.io.dataset.attachment import read_stamp
from himach.io.dataset.lookup import Candidate
from himach.io.dataset.origin_stamp import OriginStamp
from himach.io.store.store import Store
from himach.staging.replication import plan
from himach.staging.without_origin import description

ADK = (DCD, "--topology", PSF, "--dataset", "adk")
N_FRAMES = 98
NODES = ["a", "b", "c", "d"]


def held(place, nodes):
    return {node: natives_of(place / node)[0] for node in nodes}


def rmsd(place, nodes, *more):
    done = on_nodes(place, nodes, "run", "rmsd", "-t", "adk", "--out", place / "out", *more)
    assert done.returncode == 0, done.stderr
    return (place / "out" / "rmsd.csv").read_bytes(), json.loads((place / "out" / "run.json").read_text())


def test_a_lost_node_costs_no_read_of_the_origin_and_is_made_good(tmp_path):
    done = on_nodes(tmp_path, NODES, "stage", *ADK, "--copies", "2")
    assert done.returncode == 0, done.stderr
    assert "98 frames staged, 98 of them now, 98 copies made" in done.stdout
    there = held(tmp_path, NODES)
    assert sum(map(len, there.values())) == 2 * N_FRAMES
    assert max(map(len, there.values())) - min(map(len, there.values())) <= 4
    assert min(len(there[a] & there[b]) for a in NODES for b in NODES if a < b) > 0  # never the same two for all
    table, record = rmsd(tmp_path, NODES)
    assert record["assignment"] == {"native": N_FRAMES, "alien": 0, "residue": 0}

    shutil.rmtree(tmp_path / "b")
    left = ["a", "c", "d"]
    table_then, record = rmsd(tmp_path, left)
    assert table_then == table
    assert record["bytes"]["origin"] == 0
    assert record["assignment"] == {"native": N_FRAMES, "alien": 0, "residue": 0}

    done = on_nodes(tmp_path, left, "stage", "adk", "--repair")
    assert done.returncode == 0, done.stderr
    there = held(tmp_path, left)
    assert {frame: sum(frame in one for one in there.values()) for frame in range(N_FRAMES)} == dict.fromkeys(
        range(N_FRAMES), 2
    )
    assert "50 copies made" in done.stdout  # of what b held
    assert "copies made" not in on_nodes(tmp_path, left, "stage", "adk", "--repair").stdout


@pytest.mark.nightly
def test_a_node_that_returns_is_no_surprise(tmp_path):
    assert on_nodes(tmp_path, NODES[:3], "stage", *ADK, "--copies", "2").returncode == 0
    table, _ = rmsd(tmp_path, NODES[:3])
    (tmp_path / "b").rename(tmp_path / "away")
    assert on_nodes(tmp_path, ["a", "c"], "stage", "adk", "--repair").returncode == 0
    (tmp_path / "away").rename(tmp_path / "b")
    before = held(tmp_path, NODES[:3])
    table_then, record = rmsd(tmp_path, NODES[:3])
    assert table_then == table and record["bytes"]["origin"] == 0
    assert record["assignment"] == {"native": N_FRAMES, "alien": 0, "residue": 0}
    assert held(tmp_path, NODES[:3]) == before  # copies that are wanted are not shed


@pytest.mark.nightly
def test_an_empty_node_gets_the_description_and_its_part(tmp_path):
    assert on_nodes(tmp_path, NODES, "stage", *ADK, "--copies", "2").returncode == 0
    shutil.rmtree(tmp_path / "c")
    done = on_nodes(tmp_path, NODES, "stage", "adk", "--repair")
    assert done.returncode == 0, done.stderr
    there = held(tmp_path, NODES)
    assert there["c"] and sum(map(len, there.values())) == 2 * N_FRAMES
    alone = himach("info", "adk", "--cache", tmp_path / "c")
    assert "frames          98" in alone.stdout and str(PSF) in alone.stdout


def test_copies_need_nodes(tmp_path):
    done = on_nodes(tmp_path, ["a", "b"], "stage", *ADK, "--copies", "3")
    assert done.returncode == 2
    assert "3 copies of each frame lie on as many nodes, and this runs on 2 (a, b)" in done.stderr


@pytest.mark.nightly
def test_repair_of_what_nobody_has(tmp_path):
    done = on_nodes(tmp_path, ["a", "b"], "stage", "adk", "--repair")
    assert done.returncode == 2
    assert "no dataset adk is there" in done.stderr
    assert on_nodes(tmp_path, ["a", "b"], "stage", *ADK).returncode == 0
    done = on_nodes(tmp_path, ["a", "b"], "stage", "adk", "--repair")
    assert "give --copies, too" in done.stderr
    assert on_nodes(tmp_path, ["a", "b"], "stage", "adk", "--repair", "--copies", "2").returncode == 0
    assert held(tmp_path, ["a", "b"]) == {node: set(range(N_FRAMES)) for node in "ab"}


def test_a_full_node_keeps_what_it_has_and_says_so(tmp_path):
    assert on_nodes(tmp_path, ["a", "b"], "stage", *ADK).returncode == 0
    used = sum(path.stat().st_size for path in (tmp_path / "a").rglob("*") if path.is_file())
    done = on_nodes(tmp_path, ["a", "b"], "stage", "adk", "--repair", "--copies", "2", "--quota", str(used + 50_000))
    assert done.returncode in (1, 2)
    assert done.stderr.count("himach: error") == 1
    there = held(tmp_path, ["a", "b"])
    assert set.union(*there.values()) == set(range(N_FRAMES))


@pytest.mark.parametrize("nodes", [2, 3, 4, 7])
@pytest.mark.parametrize("copies", [2, 3])
def test_a_plan_gives_each_frame_its_copies_and_keeps_loads_even(nodes, copies):
    if copies > nodes:
        pytest.skip("as many copies as nodes at most")
    span = range(1000, 1000 + 84 * nodes)
    numbers = np.arange(span.start, span.stop)
    held = [numbers % nodes == node for node in range(nodes)]
    for source, target in (moves := plan(held, span, copies)):
        assert source != target
        assert held[source][moves[source, target] - span.start].all()
        assert not held[target][moves[source, target] - span.start].any()
    after = [one.copy() for one in held]
    for (_, target), some in moves.items():
        after[target][some - span.start] = True
    assert (np.sum(after, axis=0) == copies).all()
    loads = [int(one.sum()) for one in after]
    assert max(loads) - min(loads) <= nodes
    assert not plan(after, span, copies)


def test_a_plan_leaves_alone_what_nobody_has():
    held = [np.array([True, False, False]), np.array([False, False, True]), np.zeros(3, bool)]
    moved = {int(number) for some in plan(held, range(3), 2).values() for number in some}
    assert moved == {0, 2}


def test_a_plan_replaces_damaged_copies_where_they_lie():
    good = [np.array([True, False, True, False]), np.array([True, True, False, False]), np.zeros(4, bool)]
    anew = [np.array([False, True, False, False]), np.zeros(4, bool), np.array([True, False, True, False])]
    moves = plan(good, range(4), 2, anew)
    assert {(source, target, int(number)) for (source, target), some in moves.items() for number in some} == {
        (1, 0, 1),
        (0, 2, 0),
        (0, 2, 2),
    }


def damage(place, numbers):
    """Break bytes of natives' records; they are there as before, and cannot be read."""
    store = Store(place)
    (generation,) = store.generations("adk")
    dataset = store.dataset("adk", generation)
    for segment, _, offset, length in dataset.locate(np.array(numbers, dtype=np.int64)):
        with open(dataset.path / f"n-{segment:016x}.seg", "r+b") as file:
            file.seek(offset + length // 2)
            file.write(b"\xa5" * 100)
    assert all(frame is None for frame in store.dataset("adk", generation).read(numbers))


def whole(place):
    store = Store(place)
    (generation,) = store.generations("adk")
    dataset = store.dataset("adk", generation)
    numbers = sorted(dataset.native)
    return [number for number, frame in zip(numbers, dataset.read(numbers), strict=True) if frame is not None]


@pytest.mark.nightly
def test_damaged_copies_are_replaced(tmp_path):
    """By another node's, else by the origin's; what neither gives is named."""
    assert on_nodes(tmp_path, NODES[:3], "stage", *ADK, "--copies", "2").returncode == 0
    there = held(tmp_path, NODES[:3])
    table, _ = rmsd(tmp_path, NODES[:3])
    shared = sorted(there["a"] & there["b"])[:2]
    damage(tmp_path / "a", shared + sorted(there["a"] - there["b"])[:1])
    damage(tmp_path / "b", shared)
    done = on_nodes(tmp_path, NODES[:3], "stage", "adk", "--repair")
    assert done.returncode == 0, done.stderr
    assert "5 copies made" in done.stdout and "damaged" not in done.stderr
    assert held(tmp_path, NODES[:3]) == there
    for node in NODES[:3]:
        assert set(whole(tmp_path / node)) == there[node]
    after, record = rmsd(tmp_path, NODES[:3])
    assert after == table and record["bytes"]["origin"] == 0
    assert "copies made" not in on_nodes(tmp_path, NODES[:3], "stage", "adk", "--repair").stdout


def test_copies_of_what_cannot_be_read_are_told(tmp_path):
    assert on_nodes(tmp_path, ["a"], "stage", *ADK).returncode == 0
    damage(tmp_path / "a", [0, 1])
    done = on_nodes(tmp_path, ["a", "b"], "stage", *ADK, "--copies", "2")
    assert done.returncode == 0, done.stderr
    assert "2 copies were not made, as frames could not be read" in done.stderr
    assert f"{N_FRAMES - 2} copies made" in done.stdout
    assert set(whole(tmp_path / "b")) == set(range(2, N_FRAMES))


@pytest.mark.nightly
def test_frames_that_are_damaged_everywhere_are_named(tmp_path):
    trajectory = tmp_path / "a.dcd"
    shutil.copy(DCD, trajectory)
    words = (trajectory, "--topology", PSF, "--dataset", "adk")
    assert on_nodes(tmp_path, ["a", "b"], "stage", *words, "--copies", "2").returncode == 0
    for node in "ab":
        damage(tmp_path / node, [7, 30])
    trajectory.unlink()
    done = on_nodes(tmp_path, ["a", "b"], "stage", "adk", "--repair")
    assert done.returncode == 0
    assert "2 frames are damaged on every node" in done.stderr and ": 7, 30" in done.stderr
    assert set(whole(tmp_path / "a")) == set(range(N_FRAMES)) - {7, 30}


def test_a_description_from_elsewhere_names_no_pickle():
    """Parsed topologies are pickles, and lie beside the frames: a stamp of another machine must not bring one here."""
    told = OriginStamp.from_pushed_frames("run", b"", 3, [RawFrame(0, 0.0, np.zeros((2, 3), np.float32), None)])
    stamp = replace(told, topologies={"/a.pdb": "topology-0123456789abcdef", "/b.pdb": "parsed-0123456789abcdef"})

    class Elsewhere:
        def attachment(self, name):
            return name.encode()

    named = description(Elsewhere(), Candidate("run", b"", stamp, 3))
    assert "topology-0123456789abcdef" in named and not any(name.startswith("parsed") for name in named)


@pytest.mark.nightly
def test_a_grown_origin_is_repaired_under_its_newest_stamp(tmp_path):
    """A node that saw the origin before it grew must not get frames of after under that stamp."""
    grown = tmp_path / "a.xtc"
    write_xtc(grown, 10, 100)
    assert on_nodes(tmp_path, ["a", "b"], "stage", grown, "--copies", "2").returncode == 0
    write_xtc(grown, 20, 100)
    assert on_nodes(tmp_path, ["a"], "stage", grown).returncode == 0
    done = on_nodes(tmp_path, ["b", "a"], "stage", grown, "--repair", "--copies", "2")
    assert done.returncode == 0, done.stderr
    for node in "ab":
        store = Store(tmp_path / node)
        (generation,) = store.generations(str(grown))
        dataset = store.dataset(str(grown), generation)
        assert read_stamp(dataset).n_frames == 20
        assert set(dataset.native) == set(range(20))


@pytest.mark.nightly
def test_generations_of_several_nodes_are_told_apart(tmp_path):
    """What an origin was before it was made anew is neither copied nor mixed with what it is now, and is named."""
    trajectory = tmp_path / "a.xtc"
    write_xtc(trajectory, 10, 100)
    assert on_nodes(tmp_path, ["a", "b"], "stage", trajectory).returncode == 0
    write_xtc(trajectory, 12, 90)
    assert on_nodes(tmp_path, ["a"], "stage", trajectory).returncode == 0
    done = on_nodes(tmp_path, ["a", "b"], "stage", trajectory, "--repair", "--copies", "2")
    assert done.returncode == 0, done.stderr
    assert f"frames of what {trajectory} was before lie on a, b: they are not copied" in done.stderr
    for node in "ab":
        store = Store(tmp_path / node)
        found = [store.dataset(str(trajectory), one) for one in store.generations(str(trajectory))]
        assert sorted(len(one.native) for one in found) == [5, 12]
        (new,) = [one for one in found if len(one.native) == 12]
        assert {len(frame.positions) for frame in new.read(range(12))} == {90}
    told = json.loads(himach("datasets", "--json", "--cache", tmp_path / "b").stdout)["datasets"]
    assert sorted((one["frames"], one["older"]) for one in told) == [(10, True), (12, False)]
    assert f"{trajectory} (older)" in himach("datasets", "--cache", tmp_path / "b").stdout
