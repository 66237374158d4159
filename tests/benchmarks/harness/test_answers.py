"""Answers that differ are an error."""

from __future__ import annotations

import math

import numpy as np
import pytest

from himach.benchmarks.harness.answers import DisagreementError, compare, read_column


def test_answers_that_agree():
    found = compare("x", np.array([1.0, math.nan]), "peer", np.array([1.5, math.nan]), 0.5, "why")
    assert (found.difference, found.tolerance) == (0.5, 0.5)


@pytest.mark.parametrize(
    ("ours", "theirs", "message"),
    [
        ([1.0], [1.1], "number 0 is 1 and 1.1"),
        ([1.0, 2.0], [1.0], "himach has 2 numbers and peer 1"),
        ([1.0, 2.0], [1.0, math.nan], "number 1 is 2 and nan"),
        ([], [], "neither"),
    ],
)
def test_answers_that_do_not(ours, theirs, message):
    with pytest.raises(DisagreementError, match=message):
        compare("x", np.array(ours), "peer", np.array(theirs), 0.05, "why")


def test_an_empty_cell_is_no_number(tmp_path):
    (tmp_path / "table.csv").write_text("a,b\n1,2\n3,\n")
    np.testing.assert_equal(read_column(tmp_path / "table.csv", "b"), [2, math.nan])
