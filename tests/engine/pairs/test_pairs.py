"""Keys: one encoding, whose order is theirs; values: copied at the yield, refused there when they cannot travel."""

import enum
import inspect
import json
import pickle
import threading
from collections import namedtuple

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from support.commands import run_python
from support.plain import plain_key, sortable

import himach
from himach.engine.pairs.keys import decode, encode, split
from himach.engine.pairs.values import dumps, restore, snapshot
from himach.errors import AnalysisError

from ..cases import KEYS
from ..twin import canonical, made_up, run_engine


@given(KEYS, KEYS)
def test_encodings_order_as_keys_do(a, b):
    assert (encode(a) < encode(b)) == (sortable(a) < sortable(b))
    assert (encode(a) == encode(b)) == (sortable(a) == sortable(b))


@given(KEYS)
def test_what_is_decoded_is_what_was_encoded(key):
    back = decode(encode(key))
    assert sortable(back) == sortable(key)
    assert repr(back) == repr(plain_key(key))


def test_numbers_of_numpy_are_plain_keys():
    assert encode(np.int8(5)) == encode(np.uint64(5)) == encode(5) != encode(5.0)
    assert encode(np.float32(0.5)) == encode(np.float64(0.5)) == encode(0.5)
    assert encode(np.str_("a")) == encode("a") != encode(b"a") == encode(np.bytes_(b"a"))
    assert encode(-0.0) == encode(0.0)


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


FRAMES = range(0, 12, 3)


class Yields(himach.Analysis):
    """Calls what it is given, which may hold anything."""

    caches = ("items", "result")

    def __init__(self, items, result=None):
        super().__init__()
        self.items, self.result = items, result or (lambda key, series: series.values)

    def map(self, frame):
        return self.items(self, frame)

    def reduce(self, key, series):
        return self.result(key, series)


def run(items, result=None):
    (results,) = run_engine(None, [[Yields(items, result)]], FRAMES, made_up(FRAMES)).results
    return results


def failing(items, result=None):
    with pytest.raises(AnalysisError) as caught:
        run(items, result)
    return str(caught.value)


def fail(self, frame):
    yield 1, 1
    if frame.step == 2:
        raise ValueError("bad thing")


def refused_key(self, frame):
    yield from inner()


def inner():
    yield 1, 1
    yield [2], 1


def test_what_is_yielded_is_copied_at_the_yield():
    def items(self, frame):
        array, listed, keys, nested = np.zeros(2), [0], np.zeros(1, np.int64), ({"a": 0},)
        box = frame.box
        yield "array", array
        yield "list", listed
        yield "nested", nested
        yield himach.Pairs(keys, array[:1])
        array[:], listed[0], keys[:], nested[0]["a"], box[:] = 1, 1, 1, 1, 1

    results = run(items, lambda key, series: (series.values, series.boxes))
    np.testing.assert_array_equal(results["array"][0], np.zeros((4, 2)))
    assert results["list"][0] == [[0]] * 4
    assert results["nested"][0] == [({"a": 0},)] * 4
    np.testing.assert_array_equal(results[0][0], np.zeros(4))
    assert results["list"][1][0].tolist() == [10, 10, 10, 90, 90, 90]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (lambda keys, series: [1], "it gave 1 results for 2 keys"),
        (lambda keys, series: [1, 2, 3], "it gave 3 results for 2 keys"),
        (lambda keys, series: None, "TypeError"),
        (lambda keys, series: (1 // (key - 6) for key in keys.tolist()), "ZeroDivisionError"),
    ],
)
def test_errors_of_reduce_many_tell_of_the_key(options, words):
    class Some(Yields):
        def reduce_many(self, keys, series):
            return options(keys, series)

    with pytest.raises(AnalysisError, match=words) as caught:
        run_engine(None, [[Some(lambda self, frame: himach.Pairs([4, 6]))]], FRAMES, made_up(FRAMES))
    assert str(caught.value).startswith("Some.reduce_many() failed for key ")


@pytest.mark.parametrize("returned", [None, [], [(1, 2)], [himach.Pairs([1])], himach.Pairs([1]), map])
def test_map_may_return_what_it_would_yield(returned):
    run(lambda self, frame: map(tuple, [[1, 2]]) if returned is map else returned)


@pytest.mark.parametrize(
    ("value", "word"),
    [
        (lambda: 1, "function"),
        (threading.Lock(), "_thread.lock"),
        ((i for i in ()), "generator"),
        ([(i for i in ())], "list"),
        (np.array([threading.Lock()], dtype=object), "numpy.ndarray"),
    ],
)
def test_what_cannot_travel_is_refused_with_key_type_and_frame(value, word):
    text = failing(lambda self, frame: [(("K", 1), value)])
    assert text.startswith(
        "Yields.map() failed at frame 0 (step 0, time 0 ps) on rank 0: key ('K', 1): a value of type"
    )
    assert word in text and "cannot be pickled" in text
    text = failing(lambda self, frame: [("K", 1)], lambda key, series: value)
    refused = "it yields" if inspect.isgenerator(value) else "a value of type"
    assert text.startswith(f"Yields.reduce() failed for key 'K' on rank 0: {refused}")


def test_open_files_and_series_are_refused(tmp_path):
    with (tmp_path / "file").open("w") as file:
        assert "cannot pickle '_io.TextIOWrapper' object" in failing(lambda self, frame: [(1, {"a": file})])
    assert "a Series belongs to reduce()" in failing(lambda self, frame: [(1, 1)], lambda key, series: series)


def test_objects_of_mdanalysis_are_refused_by_name():
    import MDAnalysis as mda

    universe = mda.Universe.empty(3, trajectory=True)
    for value, name in [
        (universe, "Universe"),
        (universe.atoms, "AtomGroup"),
        ({"a": [universe.atoms.residues]}, "ResidueGroup"),
        (universe.atoms[0], "Atom"),
    ]:
        text = failing(lambda self, frame, value=value: [(1, value)])
        assert f"an MDAnalysis {name}" in text and ".indices or .positions" in text


def test_errors_of_map_tell_frame_time_rank_and_line():
    assert failing(fail).splitlines()[0] == (
        "Yields.map() failed at frame 6 (step 2, time 3 ps) on rank 0: ValueError: bad thing"
    )
    assert "test_pairs.py, line " in failing(fail).splitlines()[1]
    assert 'in fail: raise ValueError("bad thing")' in failing(fail).splitlines()[1]


def test_refusals_tell_the_line_of_the_yield():
    text = failing(refused_key)
    assert "[2] of type list cannot be a key" in text
    assert text.endswith("in inner: yield [2], 1")


@pytest.mark.parametrize(
    ("items", "word"),
    [
        (lambda self, frame: 5, "it returned an object of type int"),
        (lambda self, frame: [5], "it yielded an object of type int"),
        (lambda self, frame: ["ab"], "it yielded an object of type str"),
        (lambda self, frame: [(1, 2, 3)], "it yielded a tuple of 3"),
        (lambda self, frame: setattr(self, "total", 1), "assigns to self.total"),
        (lambda self, frame: himach.Pairs([1.5]), "keys must be integers"),
    ],
)
def test_what_map_must_not_do(items, word):
    assert word in failing(items)


def test_errors_of_reduce_and_combine_tell_the_key():
    text = failing(lambda self, frame: [(("K", 5), 1)], lambda key, series: 1 / 0)
    assert text.startswith("Yields.reduce() failed for key ('K', 5) on rank 0: ZeroDivisionError: division by zero\n")

    class Combines(Yields):
        def combine(self, key, series):
            raise KeyError("x")

    with pytest.raises(
        AnalysisError, match=r"Combines\.combine\(\) failed for key 1 on rank 0: KeyError: 'x'"
    ) as caught:
        run_engine(None, [[Combines(lambda self, frame: [(1, 1)])]], FRAMES, made_up(FRAMES))
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize(
    ("error", "raised"), [(KeyboardInterrupt, KeyboardInterrupt), (SystemExit(7), himach.AnalysisError)]
)
def test_interrupts_pass_untouched_and_an_exit_is_a_failure_of_the_method(error, raised):
    def items(self, frame):
        raise error

    with pytest.raises(raised, match="SystemExit: 7" if raised is himach.AnalysisError else None):
        run(items)


def test_attributes_can_be_set_again_after_map():
    analysis = Yields(lambda self, frame: [(1, 1)])
    run_engine(None, [[analysis]], FRAMES, made_up(FRAMES))
    analysis.total = 1


@pytest.mark.parametrize("keys", [(1, 1.0), ((0, 2), (0.0, 2))])
def test_results_of_keys_that_are_equal_in_python_are_refused(keys):
    with pytest.raises(AnalysisError, match=r"are equal in Python, .*: yield keys of one type"):
        run(lambda self, frame: [(key, 1) for key in keys], lambda key, series: 1)


def test_results_are_a_dict_and_travel():
    results = run(lambda self, frame: [(7, 1.5), (3, 2.5)], lambda key, series: series.values[0])
    for same in (results, results.copy(), pickle.loads(pickle.dumps(results))):
        assert isinstance(same, dict) and list(map(canonical, same)) == list(map(canonical, [3, 7]))
        assert same == results and len(same) == 2 and sorted(same.values()) == [1.5, 2.5]
    series = pd.Series(results)
    assert series.tolist() == list(results.values()) and series.index.tolist() == [3, 7]
    assert repr(results).startswith("Results({3: 2.5")
    results["mean"] = 2.0
    assert json.loads(json.dumps(results)) == {"3": 2.5, "7": 1.5, "mean": 2.0}


def test_texts_of_numpy_keep_zeros_at_their_end():
    texts = [np.str_("a\0"), np.bytes_(b"\0\0"), (np.str_("\0"),), [np.str_("b\0"), {1: np.bytes_(b"c\0")}]]
    back = pickle.loads(dumps([snapshot(value) for value in texts]))
    first, second, (third,), (fourth, inner) = map(restore, back)
    assert [len(text) for text in (first, second, third, fourth, inner[1])] == [2, 2, 1, 2, 2]
    assert [type(text) for text in (first, inner[1])] == [np.str_, np.bytes_]


NOTEBOOK_CELL = """
from himach.engine.pairs.values import snapshot
class Cell:
    def __init__(self, x): self.x = x
print(snapshot([Cell(3)]).hex())
"""


def test_classes_of_main_travel_by_value():
    done = run_python("-c", NOTEBOOK_CELL, check=True)
    (cell,) = pickle.loads(bytes.fromhex(done.stdout))  # this process has another __main__
    assert cell.x == 3
