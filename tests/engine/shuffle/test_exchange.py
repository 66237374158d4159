"""Which shards belong to which rank, and when they travel; blocks and tables between ranks that are threads."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.threads import ThreadComm, run_ranks

from himach.engine.pairs.block import SHARDS, Form, by_shard, objects, shards_for
from himach.engine.pairs.sharding import shard_rows
from himach.engine.shuffle import exchange
from himach.engine.shuffle.exchange import Exchange, shard_range
from himach.engine.shuffle.waves import plan_waves
from himach.engine.stamps import FrameTable


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 511, 512, 600])
def test_every_shard_belongs_to_one_rank(size):
    owners = [rank for rank in range(size) for _ in range(*shard_range(rank, size, SHARDS))]
    assert len(owners) == SHARDS
    assert owners == [shard * size // SHARDS for shard in range(SHARDS)]


@pytest.mark.parametrize("size", [1, 100, 512, 1000, 5000])
def test_every_rank_has_shards(size):
    shards = shards_for(size)
    assert shards % SHARDS == 0
    assert all(stop > start for start, stop in (shard_range(rank, size, shards) for rank in range(size)))


def test_shards_are_stable_and_even():
    shards = shard_rows(np.arange(100_000).reshape(-1, 1), SHARDS)
    # Runs of other versions and machines must shard alike: these numbers are part of what a kept run means.
    assert shards[:4].tolist() == [220, 381, 383, 358]
    counts = np.bincount(shards, minlength=SHARDS)
    assert counts.min() > 120 and counts.max() < 280


def made(sender, receiver, rows):
    """Return two blocks and a table that tell whom they are from and for; to some ranks there is nothing to send."""
    rng = np.random.default_rng((sender, receiver))
    n = 0 if (sender + receiver) % 3 == 0 else rows
    at = np.arange(n, dtype=np.uint32)
    plain = by_shard(Form.PAIR, 2, {"keys": rng.integers(0, 99, (n, 2)), "at": at, "values": rng.random((n, 3))}, 4)
    values = objects([("value", sender, number, rng.random(3000)) for number in range(n // 500)])
    keys = objects([b"%d" % number for number in range(n // 500)])
    listed = by_shard(Form.PAIR, -1, {"keys": keys, "at": at[: n // 500], "values": values}, 4)
    table = FrameTable(np.arange(n), rng.random(n), rng.random((n, 6), dtype=np.float32) if sender % 2 else None)
    return [plain, listed] if n else [], table


def details(blocks, table):
    columns = [
        {name: repr(column) if column.dtype.hasobject else column.tobytes() for name, column in block.columns().items()}
        for block in blocks
    ]
    return columns, {name: column.tobytes() for name, column in table.columns().items()}


class Counting(ThreadComm):
    """Counts what this rank sends, and from how many it has asked to receive since it waited."""

    def __init__(self, comm):
        super().__init__(comm.group, comm.rank)
        self.opened = comm.opened
        self.sent, self.asked, self.most = [], set(), 0

    def Isend(self, buf, dest, tag=0):
        self.sent.append(dest)
        return super().Isend(buf, dest, tag)

    def Irecv(self, buf, source, tag):
        self.asked.add(source)
        self.most = max(self.most, len(self.asked))
        request = super().Irecv(buf, source, tag)
        wait = request.wait
        request.wait = lambda: (wait(), self.asked.clear())
        return request


MOVES = 3


def moved(world, rows):
    """Move blocks and tables between all ranks, some times over; return what this rank's communicator counted."""
    size, rank = world.comm.size, world.comm.rank
    counting = Counting(world.comm)
    moves = Exchange(replace(world, comm=counting))
    kept = []
    for times in range(MOVES):
        outgoing = [made(rank, other, times * rows) for other in range(size)]
        given = sum(len(blocks) > 0 for blocks, _ in outgoing[:rank] + outgoing[rank + 1 :])
        before = moves.sent
        blocks, tables = moves.move([blocks for blocks, _ in outgoing], [table for _, table in outgoing])
        assert (moves.sent > before) == (given > 0)
        for sender in range(size):
            expected, table = made(sender, rank, times * rows)
            assert details(blocks[sender], tables[sender]) == details(expected, table if expected else tables[sender])
            assert len(tables[sender]) == len(table)
            kept += [
                (first.plain_values(), other.plain_values())
                for first, other in zip(blocks[sender][1:], expected[1:], strict=True)
            ]  # objects, which are nobody else's
    blocks, tables = moves.move([made(rank, other, rows)[0] for other in range(size)])
    assert not tables
    assert [len(chosen) for chosen in blocks] == [len(made(sender, rank, rows)[0]) for sender in range(size)]
    moves.close()
    assert all(repr(first) == repr(other) for first, other in kept)
    return counting


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=9), st.integers(0, 1500))
def test_any_ranks_on_any_nodes(monkeypatch, nodes, rows):
    monkeypatch.setattr(exchange, "MAX_PARTNERS", 2)
    check_messages(nodes, run_ranks(nodes, lambda world: moved(world, rows)))


def check_messages(nodes, counted):
    """A message from each node to each other one for every move, from its ranks in turns."""
    n = len(set(nodes))
    pairs = Counter((nodes[rank], nodes[dest]) for rank, comm in enumerate(counted) for dest in comm.sent)
    assert pairs == {(a, b): MOVES + 1 for a in set(nodes) for b in set(nodes) if a != b}
    for rank, comm in enumerate(counted):
        assert len(comm.sent) <= (MOVES + 1) * -(-(n - 1) // list(nodes).count(nodes[rank]))
        assert comm.most <= exchange.MAX_PARTNERS


@pytest.mark.parametrize(("limit", "waves"), [(1000, 1), (40, 1), (39, 2), (20, 2), (10, 4)])
def test_ranks_of_a_node_get_equal_parts_of_a_wave(limit, waves):
    (planned,) = plan_waves(np.full(64, 10), {}, [16], limit)
    assert len(planned) == waves
    parts = [np.diff(span.cuts).tolist() for (span,) in planned]
    assert parts == [[4 // waves] * 16] * waves
    assert planned[0][0].cuts[0] == 0 and planned[-1][0].cuts[-1] == 64


@given(
    st.lists(st.integers(0, 9), min_size=16, max_size=16),
    st.lists(st.integers(1, 4), min_size=1, max_size=4).filter(lambda ranks: sum(ranks) <= 16),
    st.integers(1, 40),
    st.dictionaries(st.integers(0, 15), st.lists(st.integers(0, 9), min_size=4, max_size=4), max_size=3),
)
def test_waves_take_every_shard_once_to_a_rank_of_its_node(sizes, ranks, limit, finer):
    """Counted shard by shard; a shard that travels in parts has the bytes of its parts."""
    sizes = np.array(sizes)
    finer = {shard: np.array(parts) for shard, parts in finer.items()}
    for shard, parts in finer.items():
        sizes[shard] = parts.sum()
    units = [
        (shards, number, nbytes)
        for shard in range(16)
        for shards, number, nbytes in (
            [(64, 4 * shard + part, nbytes) for part, nbytes in enumerate(finer[shard].tolist())]
            if shard in finer
            else [(16, shard, int(sizes[shard]))]
        )
    ]
    seats = [node for node, here in enumerate(ranks) for _ in range(here)]
    owners = [seats[shard * len(seats) // 16] for shard in range(16)]
    observed = Counter()
    for node, waves in enumerate(plan_waves(sizes, finer, ranks, limit)):
        of_node = sum(nbytes for shards, number, nbytes in units if owners[16 * number // shards] == node)
        for wave in waves:
            got = [[] for _ in range(ranks[node])]
            for cuts, shards in wave:
                assert len(cuts) == ranks[node] + 1 and cuts == sorted(cuts)
                for mine, (start, stop) in zip(got, pairwise(cuts), strict=True):
                    mine += [unit for unit in units if unit[0] == shards and start <= unit[1] < stop]
            for mine in got:
                assert len({shards for shards, _, _ in mine}) <= 1
                assert sum(nbytes for _, _, nbytes in mine) <= limit or sum(nbytes > 0 for *_, nbytes in mine) == 1
                observed.update((shards, number) for shards, number, nbytes in mine if nbytes)
                assert all(owners[16 * number // shards] == node for shards, number, _ in mine)
        if waves and not finer and of_node <= limit:
            assert len(waves) == 1
    assert observed == {(shards, number): 1 for shards, number, nbytes in units if nbytes}
