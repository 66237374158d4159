"""Pieces of an index come back as they were, in few bytes; what is damaged is told."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from himach.io.trajectory.index.columns import PIECE_FRAMES, DamagedPieceError, Piece, pack, unpack


def piece(times, sizes, has, first=0, begin=0):
    offsets = begin + np.concatenate([[0], np.cumsum(4 * np.asarray(sizes, dtype=np.int64))])
    return Piece(first, offsets, np.asarray(times, dtype=np.float64), np.asarray(has, dtype=np.uint8))


def same(one: Piece, other: Piece) -> bool:
    times = one.times.view(np.int64), other.times.view(np.int64)
    return (
        one.first == other.first
        and np.array_equal(*times)
        and np.array_equal(one.offsets, other.offsets)
        and np.array_equal(one.has, other.has)
    )


FLOATS = {width: st.floats(width=width, allow_subnormal=True) for width in (32, 64)}


@given(st.data(), st.integers(1, 40), st.sampled_from([32, 64]), st.integers(0, 1 << 40), st.integers(0, 1 << 50))
def test_any_piece_comes_back(data, n, width, first, begin):
    times = data.draw(arrays(np.float64, n, elements=FLOATS[width]))
    sizes = data.draw(arrays(np.int64, n, elements=st.integers(1, 1 << data.draw(st.sampled_from([4, 12, 30])))))
    has = data.draw(arrays(np.uint8, n))
    made = piece(times, sizes, has, first, begin)
    assert same(unpack(pack(made)), made)


@given(st.integers(0, 10**6), st.sampled_from([0.1, 0.25, 1.0, 10.0, 20.0, 0.002 * 50]), st.integers(0, 10**6))
def test_even_frames_take_next_to_nothing(first, dt, steps):
    times = np.float32((first + steps + np.arange(PIECE_FRAMES)) * dt).astype(np.float64)
    packed = pack(piece(times, np.full(PIECE_FRAMES, 17), np.ones(PIECE_FRAMES)))
    assert len(packed) < 100 + PIECE_FRAMES  # at most a byte a frame, of times that are rounded another way


def test_round_times_take_none_at_all():
    times = np.float32(np.arange(PIECE_FRAMES) * 0.1 + 100).astype(np.float64)
    assert len(pack(piece(times, np.full(PIECE_FRAMES, 17), np.ones(PIECE_FRAMES)))) < 100


def test_the_worst_of_single_precision_takes_9_bytes_a_frame():
    draw = np.random.default_rng(0)
    times = np.float32(draw.normal(size=PIECE_FRAMES)).astype(np.float64)
    made = piece(times, draw.integers(1, 1 << 30, PIECE_FRAMES), draw.integers(0, 255, PIECE_FRAMES))
    assert len(pack(made)) < 9 * PIECE_FRAMES + 100
    assert same(unpack(pack(made)), made)


@given(st.data())
def test_damage_is_told(data):
    whole = pack(piece(np.arange(20.0) ** 2, range(1, 21), np.ones(20)))
    at = data.draw(st.integers(0, len(whole) - 1))
    damaged = bytearray(whole)
    damaged[at] ^= data.draw(st.integers(1, 255))
    for bad in (bytes(damaged), whole[:at], whole + b"\0"):
        with pytest.raises(DamagedPieceError):
            unpack(bad)
