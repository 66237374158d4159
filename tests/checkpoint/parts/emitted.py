"""Blocks as map() makes them, their slow twin, and the comparison to the last bit of what comes back."""

import math
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
from pyroaring import BitMap64

import himach
from himach.checkpoint.parts.part import write_part
from himach.engine.pairs.block import SHARDS, Form
from himach.engine.pairs.emission import Emission
from himach.engine.pairs.values import Pickled
from himach.engine.stamps import Stamps


class Made:
    """Blocks of chunks of frames: `frames` is for each frame its number, box and items."""

    def __init__(self, chunks, first=0, step=1):
        stamps = Stamps()
        emission = Emission(stamps)
        self.blocks, numbers, self.covered = [], [], BitMap64()
        for last, chunk in enumerate(chunks, 1):
            for items in chunk:
                number = first + step * len(self.covered)
                self.covered.add(number)
                before = len(stamps)
                emission.begin(number, number / 4, None if number % 3 == 2 else np.full(6, number, np.float32))
                emission.extend(items)
                numbers += [number] * (len(stamps) - before)
            self.blocks += emission.close_chunk(SHARDS, last == len(chunks))
        self.table = stamps.table()
        self.numbers = np.array(numbers, dtype=np.int64)
        self.frames = replace(self.table, steps=self.numbers)

    def write(self, directory: Path, pickles=False, combined=False, **named) -> Path:
        return write_part(
            directory, self.blocks, self.frames, self.covered, combined=combined, pickles=pickles, **named
        )


def exact(value):
    """Return what only an equal value of the same type has, down to the bits of floats and the layout of arrays."""
    kind = type(value)
    if kind is float:
        return kind, struct.pack("<d", value)
    if kind is complex:
        return kind, struct.pack("<dd", value.real, value.imag)
    if kind is tuple:
        return kind, tuple(map(exact, value))
    if kind is np.ndarray or isinstance(value, np.generic):
        dtype = value.dtype
        layout = (dtype.str, dtype.char, dtype.descr, dtype.isalignedstruct) if kind is np.ndarray else dtype.char
        writeable = value.flags.writeable if kind is np.ndarray else None
        # Copies of numpy's leave out what lies between fields.
        parts = tuple(exact(value[name]) for name in dtype.names) if dtype.names else value.tobytes()
        return kind, repr(layout), value.shape, parts, writeable
    if kind in (int, str, bytes, bool, type(None), Pickled):
        return kind, value
    raise AssertionError(f"a value of {kind} is in a block")


def spread(block, numbers):
    """Return every pair of a block as (shard, key, frame number, order, value), row after row."""
    shards = np.repeat(np.arange(len(block.bounds) - 1), np.diff(block.bounds)).tolist()
    orders = [None] * len(block) if block.order is None else block.order.tolist()
    pairs = []
    for row, (shard, key, at, order) in enumerate(
        zip(shards, block.plain_keys(), block.at.tolist(), orders, strict=True)
    ):
        value = None if block.values is None else block.values[row]
        if block.form == Form.BITS:
            bits = [64 * j + b for j, word in enumerate(value.tolist()) for b in range(64) if word >> b & 1]
            assert bits
            pairs += [(shard, key, int(numbers[at + bit]), None, None) for bit in bits]
        elif block.form == Form.INTERVAL:
            assert value > 0
            pairs += [(shard, key, int(numbers[at + frame]), None, None) for frame in range(int(value))]
        else:
            pairs.append((shard, key, int(numbers[at]), order, exact(value)))
    return pairs


def twin(blocks, numbers, expected=None):
    """Return for each kind all pairs of some frames, shard by shard, in each in the order of blocks and rows."""
    kinds = {}
    for block in blocks:
        kinds.setdefault(block.kind, []).append(block)
    details = {}
    for kind, alike in kinds.items():
        ordered = any(block.order is not None for block in alike)
        pairs = [pair for block in alike for pair in spread(block, numbers)]
        pairs = [
            (s, k, f, (o or 0) if ordered else None, v) for s, k, f, o, v in pairs if expected is None or f in expected
        ]
        # Within a shard in their order, by a sort that keeps it.
        if pairs:
            details[repr(kind)] = sorted(pairs, key=lambda pair: pair[0])
    return details


def some_frames(frames):
    """Return chunks of frames that yield pairs of every form."""
    odd = [3.5, "text", None, (1, ("a", 2.0)), b"bytes", np.arange(3), 1 << 80, True, -0.0, math.nan, np.float32(2)]
    chunks = [[]]
    for frame in range(frames):
        items = [himach.Pairs(np.arange(frame % 7), np.arange(frame % 7, dtype=np.float32))]
        items.append(himach.Pairs(np.arange(20)[frame % 5 :][:, np.newaxis]))
        items.append(himach.Pairs(np.array([7 * frame % 40, 50])))
        items.append((("key", frame % 3), odd[frame % len(odd)]))
        items.append((frame % 4, float(frame)))
        chunks[-1].append([] if frame % 6 == 5 else items)
        if frame % 40 == 39:
            chunks.append([])
    return chunks
