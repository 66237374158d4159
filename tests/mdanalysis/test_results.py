"""Results arrive as they were: values, types, structure."""

import pickle

import cloudpickle
import numpy as np
import pytest
from MDAnalysis.analysis.results import Results

from himach.mdanalysis.sending import strip_results

RANDOM = np.random.default_rng(5)
FLOATS = list(RANDOM.normal(size=1200))


def nested(items, *kinds):
    for kind, length in reversed(kinds):
        items = [kind(items[i : i + length]) for i in range(0, len(items), length)]
    return items


def seen(value):
    """Return all of a value that somebody can see: types, bits, order."""
    if isinstance(value, list | tuple):
        return type(value), [seen(one) for one in value]
    if isinstance(value, np.ndarray | np.generic):
        return type(value), value.dtype, np.shape(value), value.tobytes()
    return type(value), value


VALUES = {
    "numbers": FLOATS,
    "tuples": nested(FLOATS, (tuple, 2)),
    "of lists of tuples": nested(FLOATS, (list, 30), (tuple, 2)),
    "integers": [*map(np.int64, range(-50, 50))],
    "single": [*map(np.float32, FLOATS)],
    "truth": [np.bool_(one > 0) for one in FLOATS],
    "no numbers": [np.float64(bits) for bits in np.full(99, 0x7FF8DEAD00000001).view(np.float64)] + [np.float64(-0.0)],
    "of several types": [FLOATS, [*map(np.int64, range(300))], [1.5] * 300],
    "mixed": [*FLOATS, 1.5],
    "of uneven length": [FLOATS[:70], FLOATS[70:200]],
    "some empty": [[], FLOATS, []],
    "all empty": [[], []],
    "empty": [],
    "few": FLOATS[:3],
    "floats": [1.5] * 300,
    "arrays": [RANDOM.normal(size=(3, 2)) for _ in range(90)],
    "an array": np.arange(9),
    "names": ["a"] * 100,
    "words": {"a": FLOATS},
    "long double": [*map(np.longdouble, range(99))],
}


@pytest.mark.parametrize("name", VALUES)
def test_what_arrives_is_what_was_sent(name):
    results = Results({"value": VALUES[name], "other": 1})
    found = pickle.loads(cloudpickle.dumps(strip_results(results)))
    assert type(found) is Results
    assert seen(found["value"]) == seen(VALUES[name])
    assert found["other"] == 1
    assert results["value"] is VALUES[name]


def test_many_numbers_travel_as_an_array():
    many = pickle.dumps(strip_results(Results({"angles": VALUES["of lists of tuples"]})))
    assert len(many) < 8 * len(FLOATS) + 1000


def test_results_of_another_class_are_left():
    class Mine(Results):
        pass

    mine = Mine({"value": FLOATS})
    assert strip_results(mine) is mine
