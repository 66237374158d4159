"""Runs use the server of their node's store: frames are read as it says, with the same outcome, and without it too."""

from __future__ import annotations

import numpy as np
from MDAnalysisTests.datafiles import DCD, PSF

import himach
from himach import examples


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
