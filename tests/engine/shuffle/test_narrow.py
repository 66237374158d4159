"""Blocks in other numbers of shards against their rows as plain Python values."""

import numpy as np
import pytest

from himach.engine.pairs.block import Form, by_shard, objects, reshard
from himach.engine.pairs.keys import ENCODED, encode
from himach.engine.shuffle.runs import Memory, Runs
from himach.engine.shuffle.spill import Scratch
from himach.engine.shuffle.stack import MergedBlocks


@pytest.mark.parametrize("width", [0, 2, ENCODED])
def test_blocks_in_other_numbers_of_shards(width, tmp_path):
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
    # On a disk, in fewer shards than the run has.
    runs = Runs(Memory(1 << 40, tmp_path), 128)
    runs.refer([Scratch(tmp_path).spill(MergedBlocks([few]))])
    assert ((runs.sizes() > 0) >= (np.diff(many.bounds) > 0)).all()
    for start, stop in [(0, 128), (3, 9), (8, 16), (120, 128)]:
        result, expected = runs.part(start, stop), many.part(start, stop)
        assert listed(result[0] if result else many.part(0, 0)) == listed(expected)
        assert not result or (result[0].bounds == expected.bounds).all()
