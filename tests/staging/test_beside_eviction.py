"""Repair beside eviction, in processes of their own: copies go while others are made of them."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from MDAnalysisTests.datafiles import DCD, PSF
from support.cache_data import stage_on_nodes as on_nodes

from himach.io.store.store import Store
from himach.io.trajectories.origin import open_origin

NODES = ["a", "b", "c"]
N_FRAMES = 98
EVICTOR = """
import random, sys, time
from himach.io.store.store import Store, StoreError
chosen = random.Random(int(sys.argv[1]))
evicted = 0
try:
    while True:
        try:
            store = Store(chosen.choice(sys.argv[2:]))
            for directory in store.directories():
                dataset = store.open_directory(directory)
                segments = [one["id"] for one in dataset.segments()]
                if segments:
                    dataset.evict(chosen.choice(segments))
                    print("evicted", flush=True)
        except StoreError:
            pass
        time.sleep(chosen.uniform(0, 0.4))
except KeyboardInterrupt:
    pass
"""


def natives_by_node(place):
    """For each node the frames that it holds natively; what it gives of them is right."""
    origin = open_origin([DCD])
    expected = {frame.number: frame.positions.copy() for frame in origin.read(range(N_FRAMES))}
    frames = {}
    for node in NODES:
        store = Store(place / node)
        (generation,) = store.generations("adk")
        dataset = store.dataset("adk", generation)
        frames[node] = set(dataset.native)
        for number, frame in zip(sorted(frames[node]), dataset.read(sorted(frames[node])), strict=True):
            assert frame is not None and np.array_equal(frame.positions, expected[number])
    return frames


@pytest.mark.nightly
@pytest.mark.slow
def test_repair_beside_eviction(tmp_path):
    words = (DCD, "--topology", PSF, "--dataset", "adk", "--copies", "2")
    assert on_nodes(tmp_path, NODES, "stage", *words).returncode == 0
    places = [str(tmp_path / node) for node in NODES]
    for turn in range(3):
        evictor = subprocess.Popen(
            [sys.executable, "-c", EVICTOR, str(turn), *places], stdout=subprocess.PIPE, text=True
        )
        try:
            assert evictor.stdout.readline() == "evicted\n"
            done = on_nodes(tmp_path, NODES, "stage", "adk", "--repair")
        finally:
            evictor.kill()
            evictor.communicate()
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr and "damaged" not in done.stderr  # what was evicted is gone, not wrong
        natives_by_node(tmp_path)
        if turn < 2:
            assert on_nodes(tmp_path, NODES, "stage", *words).returncode == 0  # what went everywhere, from the origin
    there = natives_by_node(tmp_path)
    done = on_nodes(tmp_path, NODES, "stage", "adk", "--repair", code=0)
    left = set.union(*there.values())
    there = natives_by_node(tmp_path)
    assert {number: sum(number in numbers for numbers in there.values()) for number in left} == dict.fromkeys(left, 2)
