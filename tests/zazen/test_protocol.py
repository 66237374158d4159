"""The protocol against the model of its rules."""

import os
from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.threads import UserOp, run_ranks

from himach.errors import TrajectoryError, UsageError
from himach.ranks.communicator import World, alone
from himach.zazen import NOTHING, InMemory, assign
from himach.zazen.protocol import fill_evenly

from .model import FRAMES, Store, apply_rules, check, selections, take_all

NIGHTLY = "HIMACH_NIGHTLY" in os.environ
frame_sets = st.one_of(
    st.sets(st.integers(0, FRAMES - 1)),
    st.tuples(st.integers(0, FRAMES), st.integers(0, FRAMES), st.integers(1, 4)).map(lambda t: set(range(*t))),
    st.just(set(range(FRAMES))),
)
exceptions = st.one_of(st.just(set()), st.sets(st.integers(0, FRAMES - 1), max_size=12))


@st.composite
def clusters(draw):
    ranks = draw(st.lists(st.integers(1, 3), min_size=1, max_size=5))
    stores = []
    for _ in ranks:
        native = draw(st.one_of(st.just(set()), frame_sets))
        alien = draw(st.one_of(st.just(set()), frame_sets))
        stores.append(Store(native, alien, draw(st.sampled_from([None, None, None, "x", "y"]))))
    return ranks, stores


@st.composite
def staged(draw):
    """Nodes on which frames were staged in turns or runs; then some were lost, came twice, or were read by others."""
    ranks = draw(st.lists(st.integers(1, 2), min_size=1, max_size=4))
    n = len(ranks)
    stores = []
    n_staged = draw(st.integers(0, FRAMES))
    in_turns, as_aliens = draw(st.booleans()), draw(st.booleans())
    for i in range(n):
        part = range(i, n_staged, n) if in_turns else range(i * n_staged // n, (i + 1) * n_staged // n)
        run, other = set(part) ^ draw(exceptions), draw(exceptions)
        stores.append(Store(other, run) if as_aliens else Store(run, other))
    what = draw(st.sampled_from(["staged", "lost", "again", "random", "twin"]))
    drawn = stores[draw(st.integers(0, n - 1))]
    if what == "lost":
        drawn.native, drawn.alien = set(), draw(exceptions)
    elif what == "again":  # what one node holds, another has read, too
        low, high = sorted(draw(st.tuples(st.integers(0, FRAMES), st.integers(0, FRAMES))))
        stores[0].alien |= drawn.native & set(range(low, high))
    elif what == "random":
        drawn.native = draw(frame_sets)
    elif what == "twin":
        stores[0].identity = drawn.identity = "x"
    return ranks, stores


def play(ranks, stores, frames, origin=True, chunk_words=1):
    """Run the protocol; return per rank its node, the tasks it took, and its share."""
    nodes = [f"n{i}" for i, n in enumerate(ranks) for _ in range(n)]

    def rank(world: World):
        store = stores[world.node_index]
        cached = InMemory(store.native, store.alien, store.identity)
        own = cached if world.node.rank == 0 else None
        share = assign(world, own, frames, origin=origin, chunk_words=chunk_words)
        tasks = take_all(share)
        assert share.take() is None
        surplus = {number for batch in share.surplus() for number in batch.tolist()}
        return world.node_index, tasks, share, surplus

    return run_ranks(nodes, rank)


def shares_of(played, frames, n_nodes):
    shares = [[] for _ in range(n_nodes)]
    for node, tasks, _, _ in played:
        for task in tasks:
            assert task.dtype == "int64"
            assert len(task)
            assert (task[1:] > task[:-1]).all()
            shares[node] += [frames[int(step)] for step in task]
    return [sorted(share, reverse=frames.step < 0) for share in shares]


#: What all nodes hold lies behind what each has alone: it counts for all when one gives up an alien frame.
LATE_NATIVES = [
    Store(set(range(132, 255, 2)), set(alien)) for alien in (range(36), range(36, 73), range(73, 109), range(109, 160))
]


@settings(max_examples=400 if NIGHTLY else 150)
@given(st.one_of(clusters(), staged()), selections(), st.booleans(), st.sampled_from([1, 2, 3, 1000]))
@example(([1, 1, 1, 2], LATE_NATIVES), range(0, 160, 2), True, 1)
def test_the_protocol_follows_the_rules(cluster, frames, origin, chunk_words):
    ranks, stores = cluster
    ruling = apply_rules(stores, ranks, frames, origin)
    if ruling.nowhere and not origin:
        with pytest.raises(TrajectoryError, match=f"{len(ruling.nowhere)} of {len(frames)} frames.*frame ") as raised:
            play(ranks, stores, frames, origin, chunk_words)
        named = [frame for frame in frames if frame in ruling.nowhere][:5]
        assert ", ".join(map(str, named)) in str(raised.value)
        return
    played = play(ranks, stores, frames, origin, chunk_words)
    counts = played[0][2].counts
    assert all(share.counts == counts for _, _, share, _ in played)
    check(ruling, frames, shares_of(played, frames, len(ranks)), counts, ranks, origin)
    assert UserOp.alive == 0


def run_and_keep(ranks, stores, frames, origin):
    """One run as a cluster does it: misses are kept as alien copies, surplus copies are dropped."""
    played = play(ranks, stores, frames, origin, 1)
    shares = shares_of(played, frames, len(ranks))
    dropped = [set() for _ in ranks]
    for node, _, _, surplus in played:
        dropped[node] |= surplus
    for i, store in enumerate(stores):
        assert dropped[i] <= store.alien & set(frames)
        store.alien |= {frame for frame in shares[i] if frame not in store.native}
    copies = Counter(frame for store in stores for frame in store.native | store.alien)
    for i, store in enumerate(stores):
        store.alien -= dropped[i]
    left = {frame for store in stores for frame in store.native | store.alien}
    assert left == set(copies), "the last copy of a frame is never dropped"
    return dropped


@settings(max_examples=200 if NIGHTLY else 60)
@given(clusters(), selections(), st.booleans())
def test_repeated_runs_come_to_one_copy_of_every_frame(cluster, frames, origin):
    ranks, stores = cluster
    stores = [Store(set(store.native), set(store.alien)) for store in stores]
    if not origin and apply_rules(stores, ranks, frames, origin).nowhere:
        return
    for _ in range(8):
        dropped = run_and_keep(ranks, stores, frames, origin)
    assert not any(dropped)
    native = {frame for store in stores for frame in store.native}
    copies = Counter(frame for store in stores for frame in store.alien)
    for frame in frames:
        # What one node has far too much of has an alien copy elsewhere, beside the native one.
        assert copies[frame] == 1 if frame not in native else copies[frame] <= 1


def test_several_copies_go_to_all_their_holders():
    everything = set(range(10_000))
    for n in (2, 3, 5):
        played = play([1] * n, [Store(alien=everything) for _ in range(n)], range(10_000), chunk_words=50)
        shares = shares_of(played, range(10_000), n)
        assert played[0][2].counts == {"native": 0, "alien": 0, "residue": 10_000}
        assert all(abs(len(share) - 10_000 / n) < 0.25 * 10_000 / n for share in shares)
        assert all(surplus == everything - set(share) for share, (_, _, _, surplus) in zip(shares, played, strict=True))


def test_rounds_end_early():
    stores = [Store(native=set(range(0, 200))), Store(native=set(range(200, 300)), alien={1, 2})]
    played = play([1, 1], stores, range(300), chunk_words=1000)
    assert played[0][2].rounds == {"native": 1}
    assert played[1][3] == {1, 2}
    # Open frames, but no aliens among them.
    played = play([1, 1], stores, range(400), chunk_words=1000)
    assert played[0][2].rounds == {"native": 1}
    # Aliens among them: the second round, and only where they are.
    stores[0].alien = {320}
    played = play([1, 1], stores, range(640), chunk_words=1)
    assert played[0][2].rounds == {"native": 5, "alien": 1}
    # Nothing native: no first round. Nothing cached: no round.
    assert play([1, 1], [Store(alien={5}), Store()], range(64))[0][2].rounds == {"alien": 1}
    assert play([1, 1], [Store(), Store()], range(64))[0][2].rounds == {}
    assert play([2], [Store(native={3}, alien={5})], range(64))[0][2].rounds == {}


def test_natives_are_counted_with_two_bits_only_where_a_frame_has_two():
    stores = [Store(native=set(range(0, 100))), Store(native=set(range(99, 200)))]
    played = play([1, 1], stores, range(200), chunk_words=1)
    assert played[0][2].rounds == {"native": 4, "native count": 1, "native holder": 1}
    assert played[0][2].counts == {"native": 200, "alien": 0, "residue": 0}


def test_a_node_with_far_too_much_gives_up_what_others_can_read():
    stores = [Store(native=set(range(400))), Store(), Store(), Store()]
    shares = shares_of(play([1] * 4, stores, range(400)), range(400), 4)
    assert [len(share) for share in shares] == [200, 67, 67, 66]
    stores = [Store(alien=set(range(400))), Store(), Store(), Store()]
    played = play([1] * 4, stores, range(400))
    assert [len(share) for share in shares_of(played, range(400), 4)] == [200, 67, 67, 66]
    assert played[0][2].counts == {"native": 0, "alien": 200, "residue": 200}
    shares = shares_of(play([1] * 4, stores, range(400), origin=False), range(400), 4)
    assert [len(share) for share in shares] == [400, 0, 0, 0]


def test_residues_are_contiguous():
    shares = shares_of(play([1, 2, 1], [Store() for _ in range(3)], range(400)), range(400), 3)
    assert shares[0] == list(range(100))
    assert sorted(shares[1]) == list(range(100, 300))
    assert shares[2] == list(range(300, 400))


def test_alone():
    share = assign(alone(), InMemory(range(10), range(5, 20)), range(25))
    assert share.counts == {"native": 10, "alien": 10, "residue": 5}
    assert [int(step) for task in take_all(share) for step in task] == list(range(25))
    assert np.concatenate(list(share.surplus())).tolist() == list(range(5, 10))
    assert assign(alone(), None, range(0)).take() is None
    assert assign(alone(), NOTHING, range(5, 5, -1)).counts == {"native": 0, "alien": 0, "residue": 0}


def test_negative_frames_are_refused():
    with pytest.raises(UsageError, match="frames must not be negative"):
        assign(alone(), None, range(3, -3, -1))


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 5)), min_size=1, max_size=6), st.integers(0, 200))
def test_residue_is_divided_as_water_fills_vessels(nodes, amount):
    loads, weights = [load for load, _ in nodes], [weight for _, weight in nodes]
    slow = [0] * len(nodes)
    for _ in range(amount):
        slow[min(range(len(nodes)), key=lambda i: (loads[i] + slow[i] + 1) / weights[i])] += 1
    parts = fill_evenly(loads, weights, amount)
    assert sum(parts) == amount
    assert min(parts) >= 0
    level = max(
        (load + part) / weight for load, part, weight in zip(loads, slow, weights, strict=True) if part or not amount
    )
    assert all(
        (load + part - 1) / weight <= level for load, part, weight in zip(loads, parts, weights, strict=True) if part
    )
