"""Kernels over bitmap words beside slow twins: sets, lists and a Counter of holders."""

import tracemalloc
from collections import Counter
from types import SimpleNamespace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from himach.zazen import bitmaps
from himach.zazen.claims import copy_some, decode

N = 1_500
WORDS = 24
positions = st.sets(st.integers(0, N - 1))


def words_of(cached) -> np.ndarray:
    words = np.zeros(WORDS, dtype=np.uint64)
    for p in cached:
        words[p // 64] |= np.uint64(1 << (p % 64))
    return words


def bits_of(words) -> set[int]:
    return {64 * w + b for w, word in enumerate(words.tolist()) for b in range(64) if word >> b & 1}


def counts_of(cached) -> np.ndarray:
    counts = np.zeros(2 * WORDS, dtype=np.uint64)
    assert bitmaps.open_counts(words_of(()), words_of(cached), counts) == len(cached)
    return counts


def add_counts(counts: np.ndarray, total: np.ndarray) -> None:
    """Add counts to `total` as an MPI reduction does: over addresses."""
    bitmaps.merge_counts(*(SimpleNamespace(address=x.ctypes.data, nbytes=x.nbytes) for x in (counts, total)), None)


def read_counts(counts) -> list[str]:
    """Return the two bits of every position as the protocol's table writes them."""
    both = [(word >> b & 1, word >> (32 + b) & 1) for word in counts.tolist() for b in range(32)]
    return [f"{high}{low}" for low, high in both]


@given(st.lists(positions, min_size=1, max_size=6), st.randoms())
def test_counts_saturate_in_any_order_and_grouping(nodes, random):
    parts = [counts_of(cached) for cached in nodes]
    while len(parts) > 1:
        random.shuffle(parts)
        a, b = parts.pop(), parts.pop()
        swapped = a.copy()
        add_counts(b, swapped)
        add_counts(a, b)
        assert (swapped == b).all()
        parts.append(b)
    holders = Counter(p for cached in nodes for p in cached)
    expected = [{0: "00", 1: "01"}.get(holders[p], "10") for p in range(64 * WORDS)]
    assert read_counts(parts[0]) == expected


@given(positions, positions, positions, st.lists(positions, max_size=3))
def test_claim(taken, mine, share, rest):
    counts, residue, after = counts_of(set()), words_of(()), words_of(share)
    open_here = bitmaps.open_counts(words_of(taken), words_of(mine), counts)
    assert open_here == len(mine - taken)
    for other in rest:
        add_counts(counts_of(other - taken), counts)
    holders = Counter(p for cached in (mine, *rest) for p in cached - taken)
    claimed = {p for p in mine - taken if holders[p] == 1}
    left = set(range(64 * WORDS)) - taken - set(holders)
    result = bitmaps.claim(words_of(taken), counts, words_of(mine), after, residue)
    assert result == (len(claimed), len(left), any(n > 1 for n in holders.values()), bool(mine & taken))
    assert bits_of(after) == share | claimed
    assert bits_of(residue) == left


@given(positions, st.integers(0, N), st.integers(0, N), positions)
def test_some_bits_are_copied_and_decoded(cached, skip, count, target):
    chosen = sorted(cached)[skip : skip + count]
    words = words_of(target)
    copy_some(words_of(cached), words, skip, count)
    assert bits_of(words) == target | set(chosen)
    assert decode(words_of(cached), 640, skip, count).tolist() == [640 + p for p in chosen]


def test_few_bits_are_decoded_in_little_memory():
    """A task of a sparse share may reach over a bitmap of any length."""
    words = np.zeros(1 << 18, np.uint64)
    words[[0, -1]] = 3
    tracemalloc.start()
    positions = decode(words, 0, 1, 4)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert positions.tolist() == [1, 64 * (len(words) - 1), 64 * (len(words) - 1) + 1] and peak < 1 << 20
