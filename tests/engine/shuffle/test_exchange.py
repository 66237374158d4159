"""Which shards belong to which rank; blocks and tables between ranks that are threads."""

import numpy as np
import pytest
from support.threads import ThreadRank, on_threads

from himach.engine.pairs.block import SHARDS, Form, by_shard, objects, shards_for
from himach.engine.shuffle import exchange
from himach.engine.shuffle.exchange import Exchange, shards_of
from himach.engine.stamps.table import FrameTable


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 511, 512, 600])
def test_every_shard_belongs_to_one_rank(size):
    owners = [rank for rank in range(size) for _ in range(*shards_of(rank, size, SHARDS))]
    assert len(owners) == SHARDS
    assert owners == [shard * size // SHARDS for shard in range(SHARDS)]


@pytest.mark.parametrize("size", [1, 100, 512, 1000, 5000])
def test_every_rank_has_shards(size):
    shards = shards_for(size)
    assert shards % SHARDS == 0
    assert all(stop > start for start, stop in (shards_of(rank, size, shards) for rank in range(size)))


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


def told(blocks, table):
    columns = [
        {name: repr(column) if column.dtype.hasobject else column.tobytes() for name, column in block.columns().items()}
        for block in blocks
    ]
    return columns, {name: column.tobytes() for name, column in table.columns().items()}


class Counting(ThreadRank):
    """Counts whom this rank has asked to send or receive since it waited, and the bytes of messages."""

    def __init__(self, comm):
        super().__init__(comm._shared, comm.rank)
        self.asked, self.most, self.largest = set(), 0, 0

    def Isend(self, buf, dest, tag=0):
        self.largest = max(self.largest, len(buf[0]))
        return self._counted("to", dest, super().Isend(buf, dest, tag))

    def Irecv(self, buf, source, tag):
        return self._counted("from", source, super().Irecv(buf, source, tag))

    def _counted(self, way, other, request):
        self.asked.add((way, other))
        self.most = max(self.most, len(self.asked))
        wait = request.wait
        request.wait = lambda: (wait(), self.asked.clear())
        return request


@pytest.mark.parametrize("size", [2, 3, 8])
@pytest.mark.parametrize("rows", [60, 1500])
def test_blocks_and_tables_reach_their_ranks(monkeypatch, size, rows):
    monkeypatch.setattr(exchange, "MESSAGE_BYTES", 1 << 14)
    monkeypatch.setattr(exchange, "SMALL_COLUMN_BYTES", 1 << 10)
    monkeypatch.setattr(exchange, "MAX_PARTNERS", 2)

    def work(comm):
        counting = Counting(comm)
        moves = Exchange(counting)
        for _ in range(2):
            outgoing = [made(comm.rank, other, rows) for other in range(size)]
            blocks, tables = moves.move([blocks for blocks, _ in outgoing], [table for _, table in outgoing])
            for sender in range(size):
                expected, table = made(sender, comm.rank, rows)
                assert told(blocks[sender], tables[sender]) == told(expected, table if expected else tables[sender])
                assert len(tables[sender]) == len(table)
        blocks, tables = moves.move([made(comm.rank, other, rows)[0] for other in range(size)])
        assert not tables
        assert [len(some) for some in blocks] == [len(made(sender, comm.rank, rows)[0]) for sender in range(size)]
        return counting.most, counting.largest

    for most, largest in on_threads(size, work):
        assert most <= 2 * 2  # two to send to, two to receive from
        assert largest <= 1 << 14
