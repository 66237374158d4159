"""Which shards belong to which rank."""

import pytest

from himach.engine.pairs.block import SHARDS
from himach.engine.shuffle.exchange import shards_of


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 511, 512, 600])
def test_every_shard_belongs_to_one_rank(size):
    owners = [rank for rank in range(size) for _ in range(*shards_of(rank, size, SHARDS))]
    assert len(owners) == SHARDS
    assert owners == [shard * size // SHARDS for shard in range(SHARDS)]
