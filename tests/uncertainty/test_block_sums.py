"""Sums by blocks of frames: the same in any order and grouping, for any selection."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import himach
from himach import UsageError
from himach.examples import sample
from himach.uncertainty import FINE_BLOCKS, add_blocks, block_level, block_row, split_blocks


def by_hand(numbers: list[int]) -> tuple[list[int], list[int]]:
    """Frames and sums of blocks, of frames whose one sum is their number."""
    length = 1
    while len({number // length for number in numbers}) > FINE_BLOCKS:
        length *= 2
    blocks: dict[int, list[int]] = {}
    for number in sorted(numbers):
        blocks.setdefault(number // length, []).append(number)
    return [len(block) for block in blocks.values()], [sum(block) for block in blocks.values()]


@given(
    numbers=st.one_of(
        st.sets(st.integers(0, 5000), min_size=1, max_size=300).map(sorted),
        st.builds(lambda first, n, step: list(range(first, first + n * step, step)), *[st.integers(1, 400)] * 3),
    ),
    data=st.data(),
)
def test_any_order_and_grouping(numbers, data):
    shuffled = data.draw(st.permutations(numbers))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(numbers)), max_size=6)))
    groups = [shuffled[a:b] for a, b in zip([0, *cuts], [*cuts, len(numbers)], strict=True)]
    added = [add_blocks([block_row(number, [number]) for number in group]) for group in groups if group]
    # Part of what was added up is added up once more.
    mixed = [add_blocks(added[: len(added) // 2]), *added[len(added) // 2 :]] if len(added) > 1 else added
    frames, sums = split_blocks(add_blocks(mixed))
    assert (frames.tolist(), sums[:, 0].tolist()) == by_hand(numbers)
    assert len(frames) <= FINE_BLOCKS


@given(st.sets(st.integers(0, 5000), min_size=1, max_size=300).map(sorted), st.integers(1, 40))
def test_blocks_that_are_joined_at_once(numbers, at_once):
    """Whoever knows which frames there will be needs no more rows than blocks, and the blocks are the same."""
    level = block_level(numbers)
    rows = [block_row(number, [number]) for number in numbers]
    some = [add_blocks(rows[i : i + at_once], level) for i in range(0, len(rows), at_once)]
    assert all(len(one) <= (at_once >> level) + 2 for one in some if len(numbers) == numbers[-1] + 1)
    assert add_blocks(some).tolist() == add_blocks(rows).tolist() == add_blocks(rows, level).tolist()
    frames, sums = by_hand(numbers)
    by_block = {}
    for number in numbers:
        by_block.setdefault(number >> level, []).append(number)
    of_block = [block_row(own[-1], [sum(own)], frames=len(own), level=level) for own in by_block.values()]
    assert [one.tolist() for one in split_blocks(add_blocks(of_block))] == [frames, [[one] for one in sums]]


def test_blocks_are_as_many_as_frames_or_at_least_half_of_64():
    for n in (1, 2, 63, 64, 65, 128, 129, 1000, 4096):
        frames, _ = split_blocks(add_blocks(np.array([block_row(7 + i, [1, 2]) for i in range(n)])))
        assert frames.sum() == n
        assert min(n, FINE_BLOCKS / 2) <= len(frames) <= FINE_BLOCKS
        assert set(frames[1:-1].tolist()) <= {frames.max()}


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: block_row(0, [0.5]), "sums must be integers"),
        (lambda: block_row(0, [[1]]), "of shape"),
        (lambda: block_row(-1, [1]), "number must be that of a frame, not -1"),
        (lambda: add_blocks([]), "no blocks"),
        (lambda: add_blocks([block_row(0, [1]), block_row(1, [1, 2])]), "of one length"),
        (lambda: add_blocks([np.zeros(5)]), "what block_row"),
        (lambda: add_blocks([np.zeros(2, np.int64)]), "rows of 2 are none"),
    ],
)
def test_what_is_no_block_is_refused(make, told):
    with pytest.raises(UsageError, match=told):
        make()


class Numbers(himach.Analysis):
    """As the docstring of block_row() has it: one value of a frame, not yielded in Pairs."""

    def map(self, frame):
        yield "numbers", block_row(frame.number, [frame.number])

    def combine(self, key, series):
        return add_blocks(series.values)

    def reduce(self, key, series):
        return add_blocks(series.values)

    def finish(self, results):
        frames, sums = split_blocks(results["numbers"])
        return {"blocks": {"frames": frames, "sums": sums[:, 0]}}


def test_as_the_docstring_has_it():
    table = himach.run(Numbers(), *sample("nanopore"), cache="off", progress=False)["blocks"]
    assert (table["frames"].tolist(), table["sums"].tolist()) == by_hand(list(range(150)))
