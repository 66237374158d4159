"""What the estimators refuse: values, levels, counts and runs that do not fit, each by name."""

import math

import numpy as np
import pytest

from himach import UsageError, uncertainty
from himach.uncertainty import mean

LEVEL = r"level must be a number between 0 and 1, such as 0\.95, not"
START, K = "start must be an index from 0 to 1, not", "k must lie between 0 and n_eff|nan or infinite"
#: Function -> arguments, keywords if there are any, and the message.
REFUSED = {
    "inefficiency": [
        (([],), "values is empty"),
        (([1, np.nan, np.nan],), "2 values that are nan or infinite, the first at index 1"),
        (([np.inf, 1],), "the first at index 0"),
        (([[1, 2], [3, 4]],), r"shape \(n,\), in time order, not \(2, 2\)"),
        ((3.0,), r"shape \(n,\), in time order, not \(\)"),
        ((["a"],), "real numbers, not <U1"),
        (([1j],), "real numbers, not complex128"),
        (([[1], [2, 3]],), "rows of unequal length"),
    ],
    "mean": [
        *((([1.0, 2.0], level), LEVEL) for level in (0, 1, -0.5, 95, math.nan, "0.95", None, True)),
        *((([1.0, 2.0],), {"start": start}, START) for start in (-1, 2, 1.0, True)),
    ],
    "halves": [(([],), "values is empty"), (([1.0],), {"start": 1}, "start must be an index"), (([1.0], 95), "level")],
    "equilibration": [(([],), "values is empty"), (([0, np.nan],), "the first at index 1")],
    "of_blocks": [
        ((np.ones((65, 2)), None), "at most 64 fine blocks"),
        ((np.ones((0, 2)), None), "sums is empty"),
        (([[1.0, np.nan]], None), "nan or infinite, the first at index 0, 1"),
        ((np.ones((8, 2)), np.ones(7)), r"weights must have the shape \(8,\) or that of sums, \(8, 2\), not \(7,\)"),
        ((np.ones((8, 2)), np.ones((8, 1))), r"not \(8, 1\)"),
        ((np.ones(8), -np.ones(8)), "weights cannot be negative, as -1 is"),
        ((np.ones(8), [0, *[1] * 7]), "a fine block without weight has a sum that is not 0"),
    ],
    "count": [
        ((-1,), "k cannot be negative, as -1 is"),
        ((1.5,), "k must be whole numbers of events"),
        ((math.nan,), "k has 1 values that are nan or infinite"),
        ((3,), {"time": 0.0}, "time must be positive and finite, not 0.0"),
        ((3,), {"time": math.inf}, "time must be positive"),
        ((3,), {"blocks": [1, 1]}, "blocks add up to 2 events, not to the 3 of k"),
        (([3, 4],), {"blocks": [3, 4]}, "for a single k"),
        ((3, 2), "level must be"),
    ],
    "proportion": [
        *((arguments, K) for arguments in ((-1, 10), (11, 10), (1, 0), (1, -3), (math.nan, 10), (1, math.inf)))
    ],
    "stays": [
        (([], []), "durations is empty"),
        (([1, -1], [True, True]), "durations cannot be negative, as -1 is"),
        (([1, math.inf], [True, True]), "the first at index 1"),
        (([0, 0], [True, True]), "durations are all 0"),
        (([1, 2], [True]), r"ended must have the shape of durations, \(2,\), not \(1,\)"),
        (([1, 2], [0.5, 1]), "ended must be True or False"),
        (([[1, 2]], [[True, True]]), r"shape \(n,\)"),
    ],
    "mean_stay": [
        (([1.0, 2.0], [1]), "ended must have the shape of total"),
        (([-1.0], [1]), "total"),
        (([1.0], [-1]), "ended"),
        (([1.0], [0.5]), "ended must be whole numbers of stays"),
        (([float("nan")], [1]), "total has 1 values that are nan"),
    ],
    "replicas": [
        (([],), "means is empty"),
        ((1.0,), "a value for each run, not a single number"),
        (([1, math.nan],), "the first at index 1"),
        (([1, 2],), {"errors": [1]}, r"errors must have the shape of means, \(2,\), not \(1,\)"),
        (([1, 2],), {"errors": [1, -1]}, "errors cannot be negative"),
        (([mean([1, 2]), 2.0],), "numbers or Estimates, not both"),
        (([mean([1, 2])],), {"errors": [1.0]}, "Estimates bring their errors"),
    ],
    "difference": [
        (([], [1, 2]), "first is empty"),
        (([1, 2], 1.0), r"second must have the shape \(n,\) or \(n, ...\), a value for each run, not a single number"),
        (([1, 2], [1, math.nan]), "second has 1 values that are nan or infinite, the first at index 1"),
        (([1, 2], [[1], [2]]), r"in the number of runs alone, not in that of values: \(2,\) and \(2, 1\)"),
        (([[1, 2], [3]], [1, 2]), "first must be an array of numbers, not rows of unequal length"),
        ((["a", "b"], [1, 2]), "first must be real numbers"),
    ],
    "holm": [
        (([],), "p is empty"),
        ((0.5,), r"p must be an array of shape \(n,\), not \(\)"),
        (([[0.1], [0.2]],), r"p must be an array of shape \(n,\), not \(2, 1\)"),
        (([[0.1, 0.2], [0.3]],), r"shape \(n,\), not rows of unequal length"),
        (([0.1, 1.5],), "p must lie between 0 and 1, not at 0.1 to 1.5"),
        (([0.1, math.inf],), "nan or infinite, the first at index 1"),
        ((["a"],), "p must be real numbers"),
        (([0.1, None],), "p must be real numbers, not object"),
    ],
}
CASES = [(name, *case) for name, cases in REFUSED.items() for case in cases]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_does_not_fit_is_named(case):
    name, arguments, *keywords, message = case
    with pytest.raises(UsageError, match=message):
        getattr(uncertainty, name)(*arguments, **dict(*keywords))
