"""Pairs on their way to the ranks that reduce them: shards, messages, waves, and what lies on a disk meanwhile."""

import os
import tracemalloc
import warnings
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from MDAnalysis.tests.datafiles import DCD, PSF
from support.threads import ThreadComm, run_ranks

import himach
from himach.engine.pairs.block import SHARDS, Form, by_shard, objects, reshard, shards_for
from himach.engine.pairs.keys import ENCODED, encode
from himach.engine.pairs.sharding import shard_rows
from himach.engine.shuffle import exchange
from himach.engine.shuffle.exchange import Exchange, shard_range
from himach.engine.shuffle.spill import Scratch, SpillError
from himach.engine.shuffle.waves import plan_waves
from himach.engine.stamps import FrameTable

from ..twin import made_up, run_engine


@pytest.mark.parametrize("size", [1, 2, 3, 7, 511, 512, 600, 5000])
def test_every_shard_belongs_to_one_rank_and_every_rank_has_shards(size):
    shards = shards_for(size)
    owners = [rank for rank in range(size) for _ in range(*shard_range(rank, size, shards))]
    assert shards % SHARDS == 0
    assert owners == [shard * size // shards for shard in range(shards)]
    assert set(owners) == {*range(size)}


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


@given(
    st.lists(st.integers(0, 9), min_size=16, max_size=16),
    st.lists(st.integers(1, 4), min_size=1, max_size=4).filter(lambda ranks: sum(ranks) <= 16),
    st.integers(1, 40),
)
def test_waves_take_every_shard_once_to_a_rank_of_its_node(sizes, ranks, limit):
    sizes = np.array(sizes)
    seats = [node for node, here in enumerate(ranks) for _ in range(here)]
    owners = [seats[shard * len(seats) // 16] for shard in range(16)]
    observed = Counter()
    for node, waves in enumerate(plan_waves(sizes, ranks, limit)):
        for cuts in waves:
            assert len(cuts) == ranks[node] + 1 and cuts == sorted(cuts)
            for start, stop in pairwise(cuts):
                assert sizes[start:stop].sum() <= limit or np.count_nonzero(sizes[start:stop]) == 1
            observed.update(np.flatnonzero(sizes[cuts[0] : cuts[-1]]) + cuts[0])
            assert all(owners[shard] == node for shard in range(cuts[0], cuts[-1]) if sizes[shard])
        assert len(waves) <= 1 or sizes[np.array(owners) == node].sum() > limit
    assert observed == dict.fromkeys(np.flatnonzero(sizes), 1)


@pytest.mark.parametrize("width", [0, 2, ENCODED])
def test_blocks_in_other_numbers_of_shards(width):
    rng = np.random.default_rng(1)
    numbers = rng.integers(0, 300, (500, 2))
    keys = {0: numbers[:, 0], 2: numbers, ENCODED: objects([encode((str(a), b)) for a, b in numbers.tolist()])}[width]
    columns = {"keys": keys, "at": np.arange(500, dtype=np.uint32), "values": rng.random(500)}
    few, many = (by_shard(Form.PAIR, width, columns, shards) for shards in (16, 128))

    def listed(block):
        part = block.part(0, len(block.bounds) - 1)
        return list(zip(part.keys.tolist(), part.at.tolist(), part.values.tolist(), strict=True))

    assert listed(reshard(few, 128)) == listed(many)
    assert (reshard(few, 128).bounds == many.bounds).all()
    assert (reshard(many, 16).bounds == few.bounds).all()
    assert sorted(listed(reshard(many, 16))) == sorted(listed(few))


FRAMES = 400
LIMIT = 16 << 20


class Heavy(himach.Analysis):
    """Emits many times the limit of memory, in pairs of every form."""

    def map(self, frame):
        rng = np.random.default_rng(frame.number)
        yield himach.Pairs(rng.integers(0, 5000, 5000), rng.random(5000))
        yield himach.Pairs(rng.permutation(4000)[:2000, np.newaxis])
        yield ("text", frame.number % 97), rng.random(4000)

    def reduce(self, key, series):
        if series.values is None:
            return int(series.steps.sum())
        return float(np.sum(series.values))


def run(memory=None, folder=None):
    return run_engine(None, [[Heavy()]], range(FRAMES), made_up(range(FRAMES)), 2, 20, memory, folder)


def test_memory_stays_within_the_limit_and_the_outcome_is_the_same(tmp_path):
    whole = run()
    tracemalloc.start()
    try:
        spilled = run(LIMIT, tmp_path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert whole.spilled == 0
    assert spilled.spilled > 3 * LIMIT
    assert peak < 1.5 * LIMIT
    assert list(spilled.results[0].items()) == list(whole.results[0].items())
    assert list(tmp_path.iterdir()) == []


def test_scratch_gives_back_what_was_written_and_leaves_nothing(tmp_path):
    scratch = Scratch(tmp_path / "made" / "here")
    data = np.arange(250, dtype=np.int32).view(np.uint8)
    assert [scratch.append(data), scratch.append(b"after")] == [0, 1000]
    back = np.empty(1000, dtype=np.uint8)
    scratch.read(0, back)
    np.testing.assert_array_equal(back, data)
    assert list((tmp_path / "made" / "here").iterdir()) == []
    with pytest.raises(SpillError, match="ends early"):
        scratch.read(6, back)
    scratch.close()


def test_a_directory_that_cannot_be_used_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SpillError, match=r"cannot be written there, in .*/file: .*TMPDIR.*`memory`"):
        Scratch(tmp_path / "file")


def test_a_full_disk_is_named_with_the_way_out(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(SpillError, match=rf"in {tmp_path}: No space left on device; free space there, .*TMPDIR"):
        run(LIMIT, tmp_path)


def test_the_file_of_a_running_process_has_no_name_and_is_its_own(tmp_path):
    scratch = Scratch(tmp_path)
    place = f"/proc/self/fd/{scratch._file.fileno()}"
    assert str(tmp_path) in os.readlink(place) and "(deleted)" in os.readlink(place)
    assert os.stat(place).st_mode & 0o777 == 0o600
    scratch.close()


MEMORY = 1 << 20


class One(himach.Analysis):
    keys: int = 1

    def map(self, frame):
        yield frame.number % self.keys, np.zeros(5000)

    def reduce(self, key, series):
        return len(series)


class Folded(One):
    def combine(self, key, series):
        return sum(series.values)


@pytest.mark.parametrize("options", [{}, {"step": -1}])
def test_a_key_that_will_be_too_large_is_told(options):
    obtained = (
        r"One: map\(\) yields some 3\d,\d+ bytes a frame for one key, or a few, 0.00\d+ GB in all frames, "
        r".*himach.Row a frame, .*combine\(\), .*finer"
    )
    with pytest.warns(UserWarning, match=obtained) as details:
        result = himach.run(One(), DCD, PSF, memory=MEMORY, **options)
    assert len([item for item in details if "bytes a frame" in str(item.message)]) == 1
    assert result.outcome.rows == 1


@pytest.mark.parametrize(
    ("analysis", "memory"), [(One(keys=98), MEMORY), (Folded(), MEMORY), (One(), 1 << 24)], ids=str
)
def test_what_fits_is_not(analysis, memory):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", module="MDAnalysis")
        himach.run(analysis, DCD, PSF, memory=memory)
