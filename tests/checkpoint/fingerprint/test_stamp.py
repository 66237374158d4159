"""A run knows the stamp of its trajectory wherever the frames come from: others are others."""

import shutil

import numpy as np
import pytest
from support.cache_data import Emit, make
from support.shelves import N_ATOMS, positions_of

import himach
from himach.checkpoint.map_fingerprint import differences, map_fingerprint
from himach.io.datasets.opening import open_frames
from himach.io.store.store import Store
from himach.io.universe.view import View
from himach.ranks.communicator import alone
from himach.runner.options import Job


def identity(trajectory, topology, place, **options):
    """Return the identity of a run's map, as the run itself finds it."""
    analysis = Emit()
    opened = open_frames(alone(), Job([trajectory], topology, cache=str(place), analyses=[analysis], **options))
    view = View(opened.copy_topology(), opened.origin, opened.frames, opened.first)
    analysis.__dict__.update(frames=opened.frames, dt=opened.origin.dt(opened.frames))
    return map_fingerprint(analysis, view.universe, dataset=opened.stamp, frames=opened.frames)


def run(trajectory, topology, place):
    himach.run(Emit(), trajectory, topology, cache=str(place), progress=False)


@pytest.mark.filterwarnings("ignore")
def test_cache_origin_and_a_trajectory_that_is_away_are_one_map(tmp_path):
    topology, trajectory = make(tmp_path)
    store = tmp_path / "store"
    without = identity(trajectory, topology, "off")
    first = identity(trajectory, topology, store)
    run(trajectory, topology, store)
    parsed = identity(trajectory, topology, store)  # the topology is not parsed any more
    kept = tmp_path / "kept.trr"
    shutil.copy(trajectory, kept)
    trajectory.unlink()
    away = identity(trajectory, topology, store)
    topology_kept = topology.read_bytes()
    topology.unlink()
    all_away = identity(trajectory, None, store)
    for now in (first, parsed, away, all_away):
        assert differences(without, now) == []
        assert differences(now, without) == []
    topology.write_bytes(topology_kept)
    make(tmp_path, n_frames=80)
    for then in (without, first, away):
        assert differences(then, identity(trajectory, topology, store)) == []
        assert differences(then, identity(trajectory, topology, "off")) == []
    make(tmp_path, seed=8)
    for then in (without, first, away):
        assert differences(then, identity(trajectory, topology, store)) == ["the trajectory has another content"]


def pushed(store, numbers, other=0, author=None):
    dataset = Store(store).dataset("run7", b"")
    for number in numbers:
        box = np.array([90, 90, 90, 90, 90, 90], dtype=np.float32)
        assert dataset.write(number, float(number), box, positions_of(number + other), native=True)
    if author:
        dataset.attach("author", author.encode())
    dataset.close()


@pytest.mark.filterwarnings("ignore")
def test_pushed_frames_are_told_from_others_of_the_name(tmp_path):
    import MDAnalysis

    topology = tmp_path / "top.gro"
    universe = MDAnalysis.Universe.empty(N_ATOMS, trajectory=True)
    universe.dimensions = [90, 90, 90, 90, 90, 90]
    universe.atoms.write(str(topology))
    identities = {}
    for name, numbers, other, author in (
        ("first", range(10), 0, None),
        ("again", range(10), 0, None),
        ("grown", range(20), 0, None),
        ("other", range(10), 5, None),
        ("named", range(10), 0, "/a"),
        ("renamed", range(10), 0, "/b"),
    ):
        pushed(tmp_path / name, numbers, other, author)
        identities[name] = identity("run7", topology, tmp_path / name)
    for name in ("again", "grown"):
        assert differences(identities["first"], identities[name]) == []
    for name in ("other", "named"):
        assert differences(identities["first"], identities[name]) == ["the trajectory is another"]
    assert differences(identities["named"], identities["renamed"]) == ["the trajectory is another"]
