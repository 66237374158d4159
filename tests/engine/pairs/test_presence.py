"""Which keys are at which frames, as bits and intervals, beside a set of both."""

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from himach.engine.pairs.presence import Presence

FRAMES = 512
KEYS = st.one_of(st.integers(0, 40), st.integers(-3, 3), st.integers(2**17 - 3, 2**17 + 3), st.integers(0, 2**40))
FRAME = st.one_of(st.lists(KEYS, max_size=6), st.lists(st.integers(0, 300), min_size=30, max_size=60))


def given_out(presence):
    """Return the pairs of key and frame that it has, and make it begin anew."""
    bit_keys, bits, interval_keys, starts, lengths = presence.take()
    pairs = [
        (key, 64 * word + bit)
        for (key,), row in zip(bit_keys.tolist(), bits.tolist(), strict=True)
        for word, value in enumerate(row)
        for bit in range(64)
        if value >> bit & 1
    ]
    for (key,), start, length in zip(interval_keys.tolist(), starts.tolist(), lengths.tolist(), strict=True):
        pairs += [(key, frame) for frame in range(start, start + length)]
    return pairs


@given(chunks=st.lists(st.lists(st.tuples(st.integers(0, 90), FRAME), max_size=8), min_size=1, max_size=3))
@example([[(0, [5, 5]), (0, [7, 2**40]), (1, [5, *range(100)])], [(3, list(range(0, 300, 2)))]])
@example([[(0, list(range(0, 90, 2))), (0, [2000, 2000]), (0, [*range(89, -1, -1), 5000, -1])]])
@example([[(0, [2000, 2000]), (0, list(range(90))), (0, [2000])]])
@example([[(9, [*range(0, 90, 2), 0]), (1, list(range(1024, 3000))), (1, [0, 1023, 1024])]])
def test_what_is_added_is_given_out_once(chunks):
    presence = Presence(1)
    for chunk in chunks:
        row, first, there = 7, None, set()
        for gap, keys in chunk:
            row += gap + 1
            noted = presence.add(np.array(keys, dtype=np.int64), row)
            if len(set(keys)) < len(keys):
                assert not noted
            elif keys:
                first = row if first is None else first
                assert (noted is None) == (row - first >= FRAMES)
                there |= {(key, row - first) for key in keys if noted}
        pairs = given_out(presence)
        assert len(pairs) == len(set(pairs))
        assert set(pairs) == there
