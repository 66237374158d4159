"""Runs use the server of their node's store: frames are read as it says, with the same outcome, and without it too."""

from __future__ import annotations

import shlex
import sys

import MDAnalysis as mda
import numpy as np
import pytest
from MDAnalysisTests.datafiles import DCD, PSF
from support.ranks import mpiexec

import himach
from himach import examples
from himach.frame import POSITIONS, VELOCITIES, Needs
from himach.io.dataset.source import Source
from himach.io.store.store import Store


class NoOrigin:
    """An origin of which nothing may be asked."""

    present = False


def run(place, **options):
    return himach.run(examples.load("rmsd")(selection="name CA"), DCD, PSF, cache=str(place), **options)


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


def test_a_store_whose_server_was_killed_is_read_without_it(run_server):
    running = run_server()
    first = run(running.place)
    running.kill()
    again = run(running.place)
    assert again.record["bytes"]["origin"] == 0
    np.testing.assert_array_equal(again.outcome["rmsd"]["rmsd"], first.outcome["rmsd"]["rmsd"])


def test_a_run_goes_on_when_the_server_ends_in_the_middle(run_server):
    running = run_server()
    with Store(running.place).dataset("run", segment_bytes=1) as dataset:
        for number in range(70):  # a segment each, of which a message grants 32
            dataset.write(number, 1.0, None, np.full((50, 3), number, dtype=np.float32))
            dataset.flush()
    with running.client() as client:
        source = Source(NoOrigin(), dataset, server=client.open("run"))
        found = source.read(np.arange(70))
        assert next(found).number == 0
        running.kill()
        assert [float(frame.positions[7, 1]) for frame in found] == list(range(1, 70))
        assert [frame.number for frame in source.read(np.arange(3))] == [0, 1, 2]
        assert source.bytes_origin == 0
        assert source.bytes_cache == sum(place[3] for place in dataset._handle.locate(np.r_[:70, :3]))


def test_a_field_is_read_late_when_the_server_has_ended(run_server):
    running = run_server()
    with Store(running.place).dataset("run") as dataset:
        for number in range(5):
            dataset.write(number, 1.0, None, *np.full((2, 50, 3), number, dtype=np.float32))
    with running.client() as client:
        source = Source(NoOrigin(), dataset, server=client.open("run"), needs=Needs(None, POSITIONS))
        for frame in source.read(np.arange(5)):
            if frame.number == 0:
                running.kill()
            late = source.late(frame.number, VELOCITIES) if frame.velocities is None else frame
            np.testing.assert_array_equal(late.velocities, np.full((50, 3), frame.number))


def test_frames_that_a_simulation_pushed_are_analysed_by_their_name(run_server, key):
    running = run_server()
    universe = mda.Universe(PSF, DCD)
    with himach.Writer("run7", universe.atoms.n_atoms, servers=[running.address], key=key, durable=True) as writer:
        for _ in universe.trajectory:
            writer.write(universe)
    expected = himach.run(examples.load("rmsd")(selection="name CA"), DCD, PSF, cache="off")
    for ranks in (None, 2):
        found = himach.run(
            examples.load("rmsd")(selection="name CA"), "run7", PSF, cache=str(running.place), ranks=ranks
        )
        assert found.record["assignment"] == {"native": 98, "alien": 0, "residue": 0}
        assert found.record["bytes"]["origin"] == 0
        np.testing.assert_array_equal(found.outcome["rmsd"]["rmsd"], expected.outcome["rmsd"]["rmsd"])
        np.testing.assert_array_equal(found.outcome["rmsd"]["time_ps"], expected.outcome["rmsd"]["time_ps"])


def test_a_frame_that_was_never_pushed_is_named(run_server, key):
    running = run_server()
    universe = mda.Universe(PSF, DCD)
    for first, stop in [(0, 4), (5, 10)]:
        with himach.Writer("run8", universe.atoms.n_atoms, servers=[running.address], key=key, first=first) as writer:
            for _ in universe.trajectory[first:stop]:
                writer.write(universe)
    with pytest.raises(himach.TrajectoryError, match="4"):
        himach.run(examples.load("rmsd")(selection="name CA"), "run8", PSF, cache=str(running.place))


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
    command = [sys.executable, "-P", "-m", "himach", "run", "rmsd", "--trajectory", "run", "--topology", str(PSF)]
    script = f"HIMACH_NODE=n$PMI_RANK exec {shlex.join(command)}"
    done = mpiexec(2, ["sh", "-c", script], environ={"HIMACH_CACHE": str(tmp_path / "{node}")})
    assert done.returncode == 1, done.stderr
    assert "dataset run has frames of several simulations ('sim 0', 'sim 1')" in done.stderr
