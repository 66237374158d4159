"""Blocks as one, in memory and on disk, against their rows as plain Python values."""

import numpy as np
import pytest

from himach.engine.pairs.block import Form, by_shard, objects
from himach.engine.shuffle import block_file
from himach.engine.shuffle.spill import Scratch
from himach.engine.shuffle.stack import MergedBlocks

SHARDS = 8


def made_up(width, values, ordered, n, seed):
    rng = np.random.default_rng(seed)
    keys = objects([b"key %d" % number for number in rng.integers(0, 9, n)]) if width < 0 else None
    columns = {
        "keys": rng.integers(0, 9, (n, width) if width > 0 else n) if keys is None else keys,
        "at": rng.integers(0, 50, n).astype(np.uint32),
    }
    if ordered:
        columns["order"] = np.arange(n, dtype=np.uint32)
    if values == "objects":
        columns["values"] = objects([(int(number), "value") for number in rng.integers(0, 9, n)])
    elif values:
        columns["values"] = rng.random((n, 3)).astype(values)
    return by_shard(Form.PAIR, width, columns, SHARDS)


def rows(block, shard):
    a, b = block.bounds[[shard, shard + 1]].tolist()
    columns = {name: column[a:b].tolist() for name, column in block.columns().items()}
    order = columns.pop("order", [0] * (b - a))
    return list(zip(order, *columns.values(), strict=True))


@pytest.mark.parametrize("width", [-1, 0, 2])
@pytest.mark.parametrize("values", [None, "f4", "V5", "objects"])
@pytest.mark.parametrize("ordered", [(False, False, False), (True, False, True), (True, True, True)])
@pytest.mark.parametrize("together", [1, 1 << 22])
def test_shards_of_many_blocks_come_as_one_from_memory_and_from_disk(
    width, values, ordered, together, tmp_path, monkeypatch
):
    monkeypatch.setattr(block_file, "PIECE_BYTES", together)
    blocks = [made_up(width, values, chosen, n, n) for chosen, n in zip(ordered, [40, 3, 1], strict=True)]
    stack = MergedBlocks(blocks)
    scratch = Scratch(tmp_path)
    spilled = scratch.spill(stack)
    for start, stop in [(0, SHARDS), (2, 5), (SHARDS - 1, SHARDS), (3, 3)]:
        expected = [[row for block in blocks for row in rows(block, shard)] for shard in range(start, stop)]
        for part in (stack.part(start, stop), spilled.part(start, stop)):
            assert [rows(part, shard) for shard in range(stop - start)] == expected
    scratch.close()
