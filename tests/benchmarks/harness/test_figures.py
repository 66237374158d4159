"""Figures and the bars they are held to."""

from __future__ import annotations

import json

from himach.benchmarks.harness.figures import Figure, Row


def test_ratios_are_those_of_the_same_turn():
    faster = Figure("map", [1, 2, 1], "peer", [10, 40, 15], "faster", 15)
    assert (faster.ratio, faster.met) == (15, True)
    assert Figure("wall", [3, 3, 3], "peer", [2, 2, 2], "times", 1.3).met is False
    row = Row("title", [faster], notes=["a note"])
    assert Row.from_dict(json.loads(json.dumps(row.as_dict()))).as_dict() == json.loads(json.dumps(row.as_dict()))
