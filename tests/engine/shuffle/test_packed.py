"""Blocks in few bytes, and in other numbers of shards, against their rows as plain Python values."""

from itertools import chain, pairwise

import numpy as np
import pytest

from himach.engine.pairs.block import Form, by_shard, divided, objects
from himach.engine.pairs.keys import ENCODED, encode
from himach.engine.shuffle.packed import CompactBlock, packed
from himach.engine.shuffle.runs import Memory, Runs
from himach.engine.shuffle.spill import Scratch, spill
from himach.engine.shuffle.stack import MergedBlocks
from himach.engine.shuffle.used import UsedRows


def intervals(n, keys, longest, seed=0, shards=16):
    rng = np.random.default_rng(seed)
    at = np.cumsum(rng.integers(1, 30, n)).astype(np.uint32)
    lengths = rng.integers(1, longest + 1, n).astype(np.uint32)
    columns = {"keys": rng.choice(rng.integers(-(2**62), 2**62, keys), n), "at": at, "values": lengths}
    return by_shard(Form.INTERVAL, 0, columns, shards)


def rows(block, start, stop):
    part = block.part(start, stop)
    listed = zip(part.keys.tolist(), part.at.tolist(), part.values.tolist(), strict=True)
    edges = part.bounds.tolist()
    found = list(listed)
    return [sorted(found[a:b]) for a, b in pairwise(edges)]


@pytest.mark.parametrize("longest", [1, 300, 100_000])
def test_packed_intervals_come_back(longest):
    block = intervals(3000, 20, longest)
    held = packed(block)
    assert isinstance(held, CompactBlock)
    assert held.kind == block.kind and held.nbytes < block.nbytes / 2
    for start, stop in [(0, 16), (3, 9), (15, 16), (4, 4)]:
        assert rows(held, start, stop) == rows(block, start, stop)
    part = held.part(0, 16)
    assert {name: (column.dtype, column.shape) for name, column in part.columns().items()} == {
        name: (column.dtype, column.shape) for name, column in block.columns().items()
    }


def test_intervals_of_many_keys_are_left_as_they_are():
    block = intervals(3000, 2500, 1)
    assert packed(block) is block


def test_packed_blocks_in_memory_and_on_disk(tmp_path):
    blocks = [intervals(3000, 20, 2, seed) for seed in range(3)]
    runs = Runs(Memory(1 << 40, tmp_path), 16)
    held = runs.put(blocks)
    assert all(isinstance(one, CompactBlock) for one in held)
    wanted = [sorted(chain(*some)) for some in zip(*(rows(block, 0, 16) for block in blocks), strict=True)]
    sizes = runs.sizes()
    assert rows(runs.part(0, 16)[0], 0, 16) == wanted
    assert sizes.tolist() == [16 * len(some) for some in wanted]
    runs.spill(tmp_path)
    assert rows(runs.part(0, 16)[0], 0, 16) == wanted
    assert (runs.sizes() == sizes).all()


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

    assert listed(divided(few, 128)) == listed(many)
    assert (divided(few, 128).bounds == many.bounds).all()
    assert (divided(many, 16).bounds == few.bounds).all()
    assert sorted(listed(divided(many, 16))) == sorted(listed(few))
    # On a disk, in fewer shards than the run has.
    runs = Runs(Memory(1 << 40, tmp_path), 128)
    runs.refer([spill(Scratch(tmp_path), MergedBlocks([few]), 3)])
    assert ((runs.sizes() > 0) >= (np.diff(many.bounds) > 0)).all()
    for start, stop in [(0, 128), (3, 9), (8, 16), (120, 128)]:
        found, wanted = runs.part(start, stop), many.part(start, stop)
        assert listed(found[0] if found else many.part(0, 0)) == listed(wanted)
        assert not found or (found[0].bounds == wanted.bounds).all()


@pytest.mark.parametrize("n", [1, 63, 64, 65, 1000])
def test_used_rows(n):
    rng = np.random.default_rng(n)
    used, marked = UsedRows(n), set()
    for span in (1, 3, 64, 512):
        at = rng.integers(0, n, 3).astype(np.uint32)
        used.mark(at, span)
        marked |= {row for first in at.tolist() for row in range(first, min(n, first + span))}
    at = rng.integers(0, n, 2).astype(np.uint32)
    used.mark_intervals(at, np.array([1, n], dtype=np.uint32) - np.minimum(at, np.array([0, n], dtype=np.uint32)))
    marked |= {int(at[0])} | set(range(int(at[1]), n))
    found = used.close().tolist()
    assert found == sorted(marked)
    assert used.renumber(np.array(found, dtype=np.uint32)).tolist() == list(range(len(found)))
