"""Patterns beside plain sets: what is found describes exactly what was there, and folding changes nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from himach.zazen import InMemory, assign, patterns
from himach.zazen.finder import MAX_PERIOD, Finder
from himach.zazen.folding import fold
from himach.zazen.node_frames import NodeFrames
from himach.zazen.patterns import Pattern, Search, Shape, pattern_of
from himach.zazen.positions import Bits, Pieces, all_of

from .threads import run_ranks

TOP = 60_000
PLENTY = 100_000


@st.composite
def staged(draw, top=TOP):
    """Frames staged in intervals, each with a period of its own; some are lost or added."""
    held: set[int] = set()
    first = 0
    for _ in range(draw(st.integers(0, 4))):
        last = draw(st.integers(first, top))
        period = draw(st.one_of(st.sampled_from([1, 2, 3, 64]), st.integers(1, 300)))
        for member in draw(st.sets(st.integers(0, period - 1), max_size=3)):
            held.update(range(first + member, last, period))
        first = last
    return held ^ draw(st.sets(st.integers(0, top - 1), max_size=20))


@st.composite
def ranges(draw, top=TOP):
    start, stop = sorted(draw(st.tuples(st.integers(0, top), st.integers(0, top))))
    return range(start, stop, draw(st.sampled_from([1, 1, 2, 3, 10])))[:: draw(st.sampled_from([1, -1]))]


def search(held, frames, budget) -> Search:
    return Search(NodeFrames(InMemory.of(held), frames, 0).native, len(frames), budget)


def find(held, frames, budget=PLENTY, window=1 << 13) -> Pattern | None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(patterns, "WINDOW_WORDS", window)
        return search(held, frames, budget).finish()


def positions_of(held, frames):
    return [p for p, frame in enumerate(frames) if frame in held]


@settings(max_examples=150)
@given(staged(), ranges(), st.sampled_from([1, 10, 128, 1 << 13]))
def test_a_pattern_holds_what_the_set_holds(held, frames, window):
    pattern = find(held, frames, window=window)
    if not frames:
        return
    assert pattern is not None
    everything = np.arange(len(frames))
    assert np.flatnonzero(pattern.holds(everything)).tolist() == positions_of(held, frames)
    shape = pattern.shape
    assert shape.starts[0] == 0
    assert (np.diff(shape.starts) > 0).all()
    assert (np.diff(shape.exceptions) > 0).all()
    odd = pattern.regular(everything) != pattern.holds(everything)
    assert np.flatnonzero(odd).tolist() == shape.exceptions.tolist()


def test_what_is_regular_is_told_shortly():
    n = 1_000_000
    lost = set(np.random.default_rng(3).integers(0, n, 50).tolist())
    for turns in (1, 2, 7, 64, 4001):
        held = set(range(turns - 1, n, turns)) - lost
        pattern = find(held, range(n))
        assert pattern is not None
        assert pattern.shape.periods.tolist() == [turns]
        assert set(pattern.shape.exceptions.tolist()) == {f for f in lost if f % turns == turns - 1}
    half = find(range(n // 2 + 5), range(n))
    assert half is not None
    assert half.shape.starts.tolist() == [0, n // 2 + 5]
    assert not len(half.shape.exceptions)
    # In turns up to there, and from there on another number of nodes.
    grown = find([*range(1, 300_001, 3), *range(300_003, n, 5)], range(n))
    assert grown is not None
    assert len(grown.shape.starts) == 2
    assert abs(int(grown.shape.starts[1]) - 300_001) < 10
    every_tenth = find(range(3, n, 4), range(5, n, 10))
    assert every_tenth is not None
    assert every_tenth.shape.periods.tolist() == [2]


def test_what_is_random_is_given_up_early():
    draw = np.random.default_rng(5)
    for part in (0.5, 0.01, 0.001):
        held = np.flatnonzero(draw.random(4_000_000) < part)
        seeker = search(held, range(4_000_000), 4_000_000 >> 14)
        assert seeker.finish() is None
        assert 64 * seeker._first < 1_000_000
    # Too much is random in the end, though it began well.
    held = [*range(3_000_000), *np.flatnonzero(draw.random(1_000_000) < 0.5) + 3_000_000]
    assert search(held, range(4_000_000), 4_000_000 >> 14).finish() is None


def test_bits_must_follow_one_another():
    words = np.zeros(4, dtype=np.uint64)
    finder = Finder(200, 10)
    assert finder.feed(words, 100)
    for more in (1, 64):
        with pytest.raises(ValueError, match=f"{more} bits do not follow 100 of 200"):
            finder.feed(words, more)
    with pytest.raises(ValueError, match="201 bits do not follow 0 of 200"):
        Finder(200, 10).feed(words, 201)
    assert not Finder(200, 0).feed(words, 100)
    assert not Finder(200, 1).feed(~words, 100)


def test_longer_periods_are_no_pattern():
    n = 40 * MAX_PERIOD
    assert find(range(0, n, MAX_PERIOD), range(n)).shape.periods.tolist() == [MAX_PERIOD]
    longer = find(range(0, n, MAX_PERIOD + 1), range(n))
    assert MAX_PERIOD + 1 not in longer.shape.periods.tolist()


N = 3_000
chosen_sets = st.lists(staged(N), min_size=1, max_size=4)


@settings(max_examples=150)
@given(chosen_sets, ranges(N), st.data())
def test_folding_and_unfolding(sets, frames, data):
    if not frames:
        return
    n = len(frames)
    found = [find(held, frames) for held in sets]
    folded = fold([pattern.shape for pattern in found], n, PLENTY)
    assert folded is not None
    assert folded.sizes.sum() == n
    expected = [set(positions_of(held, frames)) for held in sets]
    flags = [folded.flags_of(folded.bits_of(pattern)) for pattern in found]
    for chosen, positions in zip(flags, expected, strict=True):
        assert folded.count(chosen) == len(positions)
        assert list(folded.unfold(chosen).some(0, n)) == sorted(positions)
    # What any set has, and what none has from somewhere to somewhere: a share with its part of the residue.
    low, high = sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n))))
    none = (folded.sizes > 0) & ~np.logical_or.reduce(flags)
    mixed = folded.unfold(flags[0], (none, low, high))
    nowhere = set(range(low, high)) - set().union(*expected)
    wanted = sorted(expected[0] | nowhere)
    again = Pieces.of_words(mixed.to_words())
    assert again.count == len(wanted)
    start, stop = sorted(data.draw(st.tuples(st.integers(0, len(wanted)), st.integers(0, len(wanted)))))
    assert again.some(start, stop).tolist() == wanted[start:stop]


def test_too_many_classes_are_not_folded():
    def shape(starts, periods, exceptions=()):
        return Shape(*(np.array(numbers, dtype=np.int64) for numbers in (starts, periods, exceptions)))

    assert fold([shape([0], [4000]), shape([0], [3999])], 10**9, 100_000) is None
    assert fold([shape([0], [4]), shape([0], [6], [1, 5])], 10**9, 13) is None
    assert fold([shape([0], [4]), shape([0], [6], [1, 5])], 10**9, 14) is not None
    assert fold([shape([0, *range(1, 50)], [1] * 50)], 10**9, 40) is None
    # In an interval that is shorter than its period, every position is a class.
    folded = fold([shape([0, 100], [7, 11])], 105, 1000)
    assert folded.periods.tolist() == [7, 5]


@given(st.sets(st.integers(0, 70_000), max_size=50), st.integers(0, 50), st.integers(0, 60))
def test_bitmaps_with_a_directory(held, start, length):
    n = 1100
    words = np.full(Bits.n_words(n), 2**63 + 1, dtype=np.uint64)
    bits = Bits(words, n)
    bits.bitmap[:] = 0
    for p in held:
        bits.bitmap[p // 64] |= np.uint64(1 << (p % 64))
    for first in range(0, n, 300):
        bits.count_bits(first, min(first + 300, n))
    bits.index()
    assert bits.count == len(held)
    assert bits.some(start, start + length).tolist() == sorted(held)[start : start + length]
    assert [p for part in all_of(bits) for p in part] == sorted(held)


def forms(stores, **options):
    """Run the protocol; return the form of every node's share."""

    def rank(world):
        store = stores[world.node_index]
        return type(assign(world, InMemory.of(*store), range(N), classes=1_000, **options)._positions)

    return set(run_ranks([f"n{i}" for i in range(len(stores))], rank))


def test_what_is_agreed_on_by_patterns():
    turns = [(set(range(i, N, 3)), set()) for i in range(3)]
    assert forms(turns) == {Pieces}
    # Lost, twice native, twice alien, given up for a native one: single frames.
    some = [(turns[0][0] - {0, 300}, {1, 2, 300}), (turns[1][0] | {3}, {300}), turns[2]]
    assert forms(some) == {Pieces}
    # A node is lost, and who read its frames keeps them.
    lost = [(turns[0][0], set(range(2, N // 2, 3))), (turns[1][0], set(range(N // 2, N, 3))), (set(), set())]
    assert forms(lost) == {Pieces}
    assert forms([(set(), set())] * 3) == {Pieces}
    # One at random; one with all; one's frames all there twice.
    draw = np.random.default_rng(1)
    assert forms([(set(np.flatnonzero(draw.random(N) < 0.3).tolist()), set()), *turns[1:]]) == {Bits}
    assert forms([(set(range(N)), set()), (set(), set()), (set(), set())]) == {Bits}
    assert forms([(set(), set(range(2, N, 3))), turns[1], (set(), turns[2][0])]) == {Bits}
    assert forms([turns[0], (turns[0][0] | turns[1][0], set()), turns[2]]) == {Bits}


@st.composite
def apart(draw):
    """Runs of frames, ascending and apart, some next to each other: int64 (n, 3)."""
    found, at = [], 0
    for _ in range(draw(st.integers(0, 8))):
        first = at + draw(st.sampled_from([0, 1, 2, 5, 100]))
        step = draw(st.sampled_from([1, 1, 1, 2, 3, 7, 12]))
        count = draw(st.sampled_from([1, 2, 3, 50, 200]))
        found.append((first, step, count))
        at = first + (count - 1) * step + 1
    return np.array(found, dtype=np.int64).reshape(-1, 3)


@settings(max_examples=400)
@given(apart(), ranges(5000).filter(len), st.sampled_from([3, 10, PLENTY]))
def test_runs_make_the_pattern_of_what_they_hold(runs, frames, budget):
    held = {frame for first, step, n in runs.tolist() for frame in range(first, first + n * step, step)}
    low, high = min(frames), max(frames)
    clipped = []
    for first, step, n in runs.tolist():
        kept = [frame for frame in range(first, first + n * step, step) if low <= frame <= high]
        if kept:
            clipped.append((kept[0], step, len(kept)))
    pattern = pattern_of(np.array(clipped, dtype=np.int64).reshape(-1, 3), frames, budget)
    if pattern is None:
        assert budget < PLENTY
        return
    shape = pattern.shape
    assert shape.starts[0] == 0
    assert (np.diff(shape.starts) > 0).all()
    assert len(shape.starts) + shape.periods.sum() + len(shape.exceptions) <= budget
    assert np.flatnonzero(pattern.holds(np.arange(len(frames)))).tolist() == positions_of(held, frames)
