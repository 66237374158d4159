"""Runs use the server of their node's store: frames are read as it says, with the same outcome, and without it too."""

import contextlib
import json
from pathlib import Path

import MDAnalysis as mda
import numpy as np
import pytest
from MDAnalysisTests.datafiles import DCD, PSF
from support.cache_data import push, stage_on_nodes

import himach
from himach import examples
from himach.frame import POSITIONS, VELOCITIES
from himach.io.datasets.source import Source
from himach.io.frame_source import ReadOptions
from himach.io.store.store import Store
from himach.io.trajectories.origin import open_origin


class NoOrigin:
    """An origin of which nothing may be asked."""

    present = False
    n_atoms = 50


def run(place, **options):
    """Run over whole frames: what was kept of some atoms is read by the ranks themselves."""
    return himach.run(examples.load("rmsd")(selection="all"), DCD, PSF, cache=str(place), **options)


def test_ranks_read_by_the_server_of_their_node(run_server):
    running = run_server()
    first = run(running.place)
    assert first.record["bytes"]["origin"] > 0
    with running.client() as client:
        before = client.counters()
    for ranks in (None, 2):
        again = run(running.place, ranks=ranks)
        assert again.record["bytes"]["origin"] == 0
        assert again.record["bytes"]["cache"] > 0
        assert again.record["assignment"]["alien"] == 98
        np.testing.assert_array_equal(again.outcome["rmsd"]["rmsd"], first.outcome["rmsd"]["rmsd"])
    with running.client() as client:
        after = client.counters()
    assert any(after[name] >= before[name] + 2 * 98 for name in after), (before, after)


def test_a_run_goes_on_when_the_server_ends_in_the_middle(run_server):
    running = run_server()
    with Store(running.place).dataset("run", segment_bytes=1) as dataset:
        for number in range(70):  # a segment each, of which a message grants 32
            dataset.write(number, 1.0, None, np.full((50, 3), number, dtype=np.float32))
            dataset.flush()
    with running.client():
        source = Source(NoOrigin(), dataset)
        found = source.read(np.arange(70))
        assert next(found).number == 0
        running.kill()
        assert [float(frame.positions[7, 1]) for frame in found] == list(range(1, 70))
        assert [frame.number for frame in source.read(np.arange(3))] == [0, 1, 2]
        assert source.bytes_origin == 0
        assert source.bytes_cache == sum(place[3] for place in dataset.locate(np.r_[:70, :3]))


def test_a_field_is_read_late_when_the_server_has_ended(run_server):
    running = run_server()
    with Store(running.place).dataset("run") as dataset:
        for number in range(5):
            dataset.write(number, 1.0, None, *np.full((2, 50, 3), number, dtype=np.float32))
    with running.client():
        source = Source(NoOrigin(), dataset, options=ReadOptions(fields=POSITIONS))
        for frame in source.read(np.arange(5)):
            if frame.number == 0:
                running.kill()
            np.testing.assert_array_equal(frame.field(VELOCITIES), np.full((50, 3), frame.number))


def test_a_cache_that_goes_away_in_the_middle_is_told_of(run_server):
    """Another user's store, of which nothing can be read without its server."""
    running = run_server()
    push(running, range(5))
    origin = open_origin([Path(DCD)], Path(PSF), {})
    for ends_before in (True, False):
        with running.client() as client:
            source = Source(origin, client.open("run"))
            assert source.lost == ""
            found = None if ends_before else source.read(np.arange(5))
            if found is not None:
                assert len(next(found).positions) == 100
            running.kill()
            found = source.read(np.arange(5)) if found is None else source.read(np.arange(3))
            assert len(next(found).positions) == 3341
            assert "the cache is away" in source.lost
        running.start()


def push_some(numbers, universe, **options):
    """Push these frames, each under its number."""
    with himach.Writer("run8", universe.atoms.n_atoms, **options) as writer:
        for number in numbers:
            universe.trajectory[number]
            writer.number = number
            writer.write(universe)


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize("ranks", [None, 2])
def test_frames_that_were_never_pushed_are_named_and_left_out(run_server, key, ranks):
    """Those at the beginning and the end, and some between."""
    running = run_server()
    universe = mda.Universe(PSF, DCD)
    held = [number for number in range(3, 90) if number not in (4, 50, 51)]
    push_some(held, universe, servers=[running.address], key=key)
    expected = himach.run(examples.load("rmsd")(selection="name CA"), DCD, PSF, start=3, cache="off").outcome["rmsd"]
    analysis = examples.load("rmsd")(selection="name CA")
    said = r"6 of 90 frames selected .* are left out: 0, 1, 2, 4, 50, \.\.\."
    with contextlib.nullcontext() if ranks else pytest.warns(UserWarning, match=said):  # spawned ranks print it
        found = himach.run(analysis, "run8", PSF, cache=str(running.place), ranks=ranks)
    assert found.record["frames"] == len(held) and found.record["dataset"]["frames"] == 90
    assert found.record["faulty"] == {"damaged": 0, "missing": 6}
    places = np.array(held) - 3
    np.testing.assert_array_equal(found.outcome["rmsd"]["rmsd"], np.array(expected["rmsd"])[places])
    np.testing.assert_array_equal(found.outcome["rmsd"]["time_ps"], np.array(expected["time_ps"])[places])
    assert himach.run(analysis, "run8", PSF, cache=str(running.place), start=5, stop=50).record["frames"] == 45
    with pytest.raises(himach.UsageError, match="none of the frames selected is there"):
        himach.run(analysis, "run8", PSF, cache=str(running.place), start=50, stop=52)


@pytest.mark.nightly
def test_frames_of_several_nodes_some_of_which_are_on_their_way(run_server, tmp_path):
    """Three servers have frames in turn; of the last ones some were acknowledged before others."""
    universe = mda.Universe(PSF, DCD)
    held = [n for n in range(97) if n not in (91, 94)]
    for node in range(3):
        push_some([n for n in held if n % 3 == node], universe, servers=[run_server().path])
    words = ["run", "rmsd", "-p", "selection=name CA", "-t", "run8", "-s", PSF, "--out", tmp_path / "out"]
    done = stage_on_nodes(tmp_path, ["n0", "n1", "n2"], *words, code=0)
    assert "2 of 97 frames" in done.stderr and "91, 94" in done.stderr
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert (record["frames"], record["assignment"]) == (95, {"native": 95, "alien": 0, "residue": 0})
    times = np.loadtxt(tmp_path / "out" / "rmsd.csv", delimiter=",", skiprows=1)[:, 0]
    np.testing.assert_allclose(times, np.array([universe.trajectory[n].time for n in held]), rtol=1e-6)


@pytest.mark.nightly
def test_a_name_that_two_simulations_have_on_different_nodes_is_refused(run_server, tmp_path):
    """Their servers did not know of each other; a run meets both."""
    universe = mda.Universe(PSF, DCD)
    running = [run_server() for _ in range(2)]
    for i, one in enumerate(running):
        with himach.Writer(
            "run", universe.atoms.n_atoms, servers=[one.path], identity=f"sim {i}", first=5 * i
        ) as writer:
            for _ in universe.trajectory[5 * i : 5 * i + 5]:
                writer.write(universe)
    done = stage_on_nodes(tmp_path, ["n0", "n1"], "run", "rmsd", "-t", "run", "-s", PSF, code=1)
    assert "dataset run has frames of several simulations ('sim 0', 'sim 1')" in done.stderr
