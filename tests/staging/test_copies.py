"""Copies of staged frames: made, lost, used, restored."""

import json
import shutil
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from MDAnalysisTests.datafiles import DCD, PSF
from support.cache_data import natives, write_xtc
from support.cache_data import stage_on_nodes as on_nodes
from support.commands import himach

from himach.frame import RawFrame
from himach.io.datasets.attachment import read_stamp
from himach.io.datasets.lookup import Candidate
from himach.io.datasets.origin_stamp import OriginStamp
from himach.io.store.store import Store
from himach.io.trajectories.origin import open_origin
from himach.staging.replication import description, plan

ADK = (DCD, "--topology", PSF, "--dataset", "adk")
N_FRAMES = 98
NODES = ["a", "b", "c", "d"]


def natives_by_node(place, nodes):
    return {node: natives(place / node)[0] for node in nodes}


def rmsd_from_cache(place, nodes):
    """Return the table of a run that reads the origin not at all, and each frame where it is native."""
    on_nodes(place, nodes, "run", "rmsd", "-t", "adk", "--out", place / "out", code=0)
    record = json.loads((place / "out" / "run.json").read_text())
    assert record["bytes"]["origin"] == 0
    assert record["assignment"] == {"native": N_FRAMES, "alien": 0, "residue": 0}
    return (place / "out" / "rmsd.csv").read_bytes()


def test_a_lost_node_costs_no_read_of_the_origin_and_is_made_good(tmp_path):
    done = on_nodes(tmp_path, NODES, "stage", *ADK, "--copies", "2", code=0)
    assert "98 frames staged, 98 of them now, 98 copies made" in done.stdout
    there = natives_by_node(tmp_path, NODES)
    assert sum(map(len, there.values())) == 2 * N_FRAMES
    assert max(map(len, there.values())) - min(map(len, there.values())) <= 4
    assert min(len(there[a] & there[b]) for a in NODES for b in NODES if a < b) > 0  # never the same two for all
    table = rmsd_from_cache(tmp_path, NODES)
    shutil.rmtree(tmp_path / "b")
    left = ["a", "c", "d"]
    assert rmsd_from_cache(tmp_path, left) == table
    done = on_nodes(tmp_path, left, "stage", "adk", "--repair", code=0)
    copies = Counter(frame for frames in natives_by_node(tmp_path, left).values() for frame in frames)
    assert copies == dict.fromkeys(range(N_FRAMES), 2)
    assert "50 copies made" in done.stdout  # of what b held
    assert "copies made" not in on_nodes(tmp_path, left, "stage", "adk", "--repair").stdout


@pytest.mark.nightly
def test_an_empty_node_gets_the_description_and_its_part(tmp_path):
    on_nodes(tmp_path, NODES, "stage", *ADK, "--copies", "2", code=0)
    shutil.rmtree(tmp_path / "c")
    on_nodes(tmp_path, NODES, "stage", "adk", "--repair", code=0)
    there = natives_by_node(tmp_path, NODES)
    assert there["c"] and sum(map(len, there.values())) == 2 * N_FRAMES
    alone = himach("info", "adk", "--cache", tmp_path / "c")
    assert "frames          98" in alone.stdout and str(PSF) in alone.stdout


def test_copies_need_nodes(tmp_path):
    done = on_nodes(tmp_path, ["a", "b"], "stage", *ADK, "--copies", "3", code=2)
    assert "3 copies of each frame lie on as many nodes, and this runs on 2 (a, b)" in done.stderr
    on_nodes(tmp_path, ["a", "b"], "stage", *ADK, "--copies", "2", code=0)
    done = on_nodes(tmp_path, ["a"], "stage", "adk", "--repair", code=2)
    assert "2 copies of each frame lie on as many nodes, and this runs on 1 (a)" in done.stderr


@pytest.mark.nightly
def test_repair_of_what_nobody_has(tmp_path):
    done = on_nodes(tmp_path, ["a", "b"], "stage", "adk", "--repair", code=2)
    assert "no dataset adk is there" in done.stderr
    on_nodes(tmp_path, ["a", "b"], "stage", *ADK, code=0)
    done = on_nodes(tmp_path, ["a", "b"], "stage", "adk", "--repair")
    assert "give --copies, too" in done.stderr
    on_nodes(tmp_path, ["a", "b"], "stage", "adk", "--repair", "--copies", "2", code=0)
    assert natives_by_node(tmp_path, ["a", "b"]) == {node: set(range(N_FRAMES)) for node in "ab"}


def test_a_full_node_keeps_what_it_has_and_says_so(tmp_path):
    on_nodes(tmp_path, ["a", "b"], "stage", *ADK, code=0)
    used = sum(path.stat().st_size for path in (tmp_path / "a").rglob("*") if path.is_file())
    done = on_nodes(tmp_path, ["a", "b"], "stage", "adk", "--repair", "--copies", "2", "--quota", str(used + 50_000))
    assert done.returncode in (1, 2)
    assert done.stderr.count("himach: error") == 1
    there = natives_by_node(tmp_path, ["a", "b"])
    assert set.union(*there.values()) == set(range(N_FRAMES))


@pytest.mark.parametrize(("nodes", "copies"), [(2, 2), (3, 2), (4, 2), (7, 2), (3, 3), (4, 3), (7, 3)])
def test_a_plan_gives_each_frame_its_copies_and_keeps_loads_even(nodes, copies):
    numbers = np.arange(1000, 1000 + 84 * nodes)
    flags = [numbers % nodes == node for node in range(nodes)]
    for source, target in (moves := plan(flags, numbers, copies)):
        assert source != target
        assert flags[source][moves[source, target] - 1000].all()
        assert not flags[target][moves[source, target] - 1000].any()
    after = [node_flags.copy() for node_flags in flags]
    for (_, target), moved in moves.items():
        after[target][moved - 1000] = True
    assert (np.sum(after, axis=0) == copies).all()
    loads = [int(node_flags.sum()) for node_flags in after]
    assert max(loads) - min(loads) <= nodes
    assert not plan(after, numbers, copies)


def test_a_plan_leaves_alone_what_nobody_has():
    flags = [np.array([True, False, False]), np.array([False, False, True]), np.zeros(3, bool)]
    moved = {int(number) for numbers in plan(flags, np.arange(3), 2).values() for number in numbers}
    assert moved == {0, 2}


def open_dataset(place, name="adk"):
    store = Store(place)
    (generation,) = store.generations(name)
    return store.dataset(name, generation)


def damage(place, numbers):
    """Break bytes of natives' records; they are there as before, and cannot be read."""
    dataset = open_dataset(place)
    for segment, *_, offset, length in dataset.places(numbers).tolist():
        with open(dataset.path / f"n-{segment:016x}.seg", "r+b") as file:
            file.seek(offset + length // 2)
            file.write(b"\xa5" * 100)
    assert all(frame is None for frame in open_dataset(place).read(numbers))


def whole(place):
    """Return the natives that can be read; they are those of the trajectory."""
    dataset = open_dataset(place)
    numbers = sorted(dataset.native)
    there = [frame.positions.copy() if frame is not None else None for frame in dataset.read(numbers)]
    origin = [frame.positions.copy() for frame in open_origin([DCD]).read(numbers)]
    assert all(own is None or np.array_equal(own, other) for own, other in zip(there, origin, strict=True))
    return {number for number, own in zip(numbers, there, strict=True) if own is not None}


def test_copies_of_what_cannot_be_read_are_told(tmp_path):
    on_nodes(tmp_path, ["a"], "stage", *ADK, code=0)
    damage(tmp_path / "a", [0, 1])
    done = on_nodes(tmp_path, ["a", "b"], "stage", *ADK, "--copies", "2", code=0)
    assert "2 copies were not made, as frames could not be read" in done.stderr
    assert f"{N_FRAMES - 2} copies made" in done.stdout
    assert whole(tmp_path / "b") == set(range(2, N_FRAMES))
    himach("cache", "verify", "--drop", "--cache", tmp_path / "a")
    on_nodes(tmp_path, ["a", "b"], "stage", *ADK, code=0)  # reads what no node has, and makes the copies
    assert whole(tmp_path / "a") == whole(tmp_path / "b") == set(range(N_FRAMES))


def test_a_description_from_elsewhere_names_no_pickle():
    """Parsed topologies are pickles, and lie beside the frames: a stamp of another machine must not bring one here."""
    pushed = OriginStamp.from_pushed_frames("run", b"", 3, [RawFrame(0, 0.0, np.zeros((2, 3), np.float32), None)])
    stamp = replace(pushed, topologies={"/a.pdb": "topology-0123456789abcdef", "/b.pdb": "parsed-0123456789abcdef"})

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
    on_nodes(tmp_path, ["a", "b"], "stage", grown, "--copies", "2", code=0)
    write_xtc(grown, 20, 100)
    on_nodes(tmp_path, ["a"], "stage", grown, code=0)
    on_nodes(tmp_path, ["b", "a"], "stage", grown, "--repair", "--copies", "2", code=0)
    for node in "ab":
        dataset = open_dataset(tmp_path / node, str(grown))
        assert read_stamp(dataset).n_frames == 20
        assert set(dataset.native) == set(range(20))


@pytest.mark.nightly
def test_generations_of_several_nodes_are_told_apart(tmp_path):
    """What an origin was before it was made anew is neither copied nor mixed with what it is now."""
    trajectory = tmp_path / "a.xtc"
    write_xtc(trajectory, 10, 100)
    on_nodes(tmp_path, ["a", "b"], "stage", trajectory, code=0)
    write_xtc(trajectory, 12, 90)
    on_nodes(tmp_path, ["a"], "stage", trajectory, code=0)
    on_nodes(tmp_path, ["a", "b"], "stage", trajectory, "--repair", "--copies", "2", code=0)
    for node in "ab":
        store = Store(tmp_path / node)
        generations = [store.dataset(str(trajectory), generation) for generation in store.generations(str(trajectory))]
        assert sorted(len(generation.native) for generation in generations) == [5, 12]
        (new,) = [generation for generation in generations if len(generation.native) == 12]
        assert {len(frame.positions) for frame in new.read(range(12))} == {90}
    listed = json.loads(himach("datasets", "--json", "--cache", tmp_path / "b").stdout)["datasets"]
    assert sorted((generation["frames"], generation["older"]) for generation in listed) == [(10, True), (12, False)]
    assert f"{trajectory} (older)" in himach("datasets", "--cache", tmp_path / "b").stdout
