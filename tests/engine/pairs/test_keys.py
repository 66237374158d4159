"""Keys: one encoding, whose order is the order of keys, and refusals by name."""

import enum
from collections import namedtuple

import numpy as np
import pytest
from hypothesis import given

from himach.engine.pairs.keys import ENCODED, decode, encode, split
from himach.errors import AnalysisError

from ..cases import KEYS
from ..twin import plain, sortable


@given(KEYS, KEYS)
def test_encodings_order_as_keys_do(a, b):
    assert (encode(a) < encode(b)) == (sortable(a) < sortable(b))
    assert (encode(a) == encode(b)) == (sortable(a) == sortable(b))


@given(KEYS)
def test_what_is_decoded_is_what_was_encoded(key):
    back = decode(encode(key))
    assert sortable(back) == sortable(key)
    assert repr(back) == repr(plain(key))


@pytest.mark.parametrize("n", [0, 1, -1, 255, 256, -255, -256, 2**63 - 1, -(2**63), 2**63, 2**960, -(2**960), 2**8000])
def test_integers_of_any_size(n):
    assert decode(encode(n)) == n
    assert encode(n - 1) < encode(n) < encode(n + 1)


def test_numbers_of_numpy_are_plain_keys():
    assert encode(np.int8(5)) == encode(np.uint64(5)) == encode(5) != encode(5.0)
    assert encode(np.float32(0.5)) == encode(np.float64(0.5)) == encode(0.5)
    assert encode(np.str_("a")) == encode("a") != encode(b"a") == encode(np.bytes_(b"a"))
    assert encode(-0.0) == encode(0.0)


def test_which_column_a_key_travels_in():
    assert split(5) == split(np.uint8(5)) == (0, 5)
    assert split((1, np.int16(2))) == (2, (1, 2))
    assert split(2**63)[0] == split((1, 2**63))[0] == split(())[0] == split((1, "a"))[0] == ENCODED
    assert split(-(2**63)) == (0, -(2**63))


Point = namedtuple("Point", "x y")


class Colour(enum.IntEnum):
    RED = 1


@pytest.mark.parametrize(
    ("key", "word"),
    [
        (True, "True of type bool"),
        (np.True_, "numpy.bool"),
        (1j, "complex"),
        ([1], "list"),
        ({}, "dict"),
        ({1}, "set"),
        (frozenset(), "frozenset"),
        (np.zeros(2), "numpy.ndarray"),
        (np.timedelta64(1), "numpy.timedelta64"),
        (np.datetime64(1, "s"), "numpy.datetime64"),
        (np.complex64(1), "numpy.complex64"),
        (bytearray(), "bytearray"),
        (Colour.RED, "Colour"),
        (Point(1, 2), "Point"),
        (object, "type"),
        (float("nan"), "nan"),
        (np.float32("nan"), "nan"),
        ((1, [2]), r"\[2\] of type list in the key \(1, \[2\]\)"),
        ((1, (True,)), "True of type bool in the key"),
        (("a", float("nan")), r"nan in the key \('a', nan\)"),
    ],
)
def test_refusals_name_value_and_type(key, word):
    with pytest.raises(AnalysisError, match=word):
        split(key)
