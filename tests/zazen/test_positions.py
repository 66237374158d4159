"""Sets of positions, beside sorted lists."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from himach.zazen.positions import Bits


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
