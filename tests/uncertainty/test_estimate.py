"""What estimates show of themselves."""

from __future__ import annotations

import dataclasses
import math
import pickle
import subprocess
import sys

import numpy as np
import pytest

from himach.uncertainty import Estimate, mean, replicas


def estimate(value, low, high, **more):
    return Estimate(value=value, low=low, high=high, level=0.95, error=0.0, **{"n_eff": 512.3, "blocks": 8, **more})


@pytest.mark.parametrize(
    "limits, shown",
    [
        ((2.7512, 2.7312, 2.7712), "2.75 [2.73, 2.77]"),
        ((2.7512, 2.7362, 2.7662), "2.751 [2.736, 2.766]"),
        ((0.001, -0.09, 0.09), "0.00 [-0.09, 0.09]"),
        ((-0.001, -0.3, 0.3), "0.0 [-0.3, 0.3]"),
        ((1234.4, 1034.2, 1434.7), "1234 [1034, 1435]"),
        ((3.1e-9, 2.8e-9, 3.4e-9), "3.1e-09 [2.8e-09, 3.4e-09]"),
        ((6.02e23, 6.0e23, 6.04e23), "6.02e+23 [6.00e+23, 6.04e+23]"),
        ((3.0, 3.0, 3.0), "3 [3, 3]"),
        ((math.inf, 2.5, math.inf), "inf [2.5, inf]"),
    ],
)
def test_value_and_limits_have_the_decimals_that_their_width_gives_sense(limits, shown):
    assert str(estimate(*limits)) == f"{shown} (95 %, 8 blocks, N_eff 512)"


def test_what_is_not_converged_says_so():
    result = estimate(2.75, math.nan, math.nan, n_eff=3.21, blocks=0, converged=False)
    assert str(result) == "2.75, not converged (N_eff 3.2)"


def test_without_blocks_the_method_is_shown():
    result = estimate(12.0, 6.2, 21.0, blocks=0, method="Garwood's limits")
    assert str(result) == "12 [6, 21] (95 %, Garwood's limits)"


def test_a_curve_shows_its_size():
    curve = estimate(np.ones((3, 2)), np.zeros((3, 2)), np.ones((3, 2)))
    assert str(curve) == "curve of 3 x 2 values (95 %, 8 blocks, N_eff 512)"
    assert np.array_equal(curve.half_width, np.full((3, 2), 0.5))


def test_estimates_do_not_change_and_can_be_sent():
    result = mean(np.random.default_rng(1).normal(size=100))
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.value = 1.0
    assert str(pickle.loads(pickle.dumps(result))) == str(result)
    assert pickle.loads(pickle.dumps(replicas([1.0, 2.0]))).between == replicas([1.0, 2.0]).between


def test_numbers_are_plain():
    result = mean(np.random.default_rng(1).normal(size=100).astype(np.float32))
    kinds = {field.name: type(getattr(result, field.name)) for field in dataclasses.fields(result)}
    floats = dict.fromkeys(["value", "low", "high", "level", "error", "n_eff", "inefficiency"], float)
    assert kinds == floats | {"start": int, "blocks": int, "method": str, "converged": bool}


def test_importing_it_imports_no_mdanalysis():
    code = "import sys, himach.uncertainty; print('MDAnalysis' in sys.modules)"
    path = f"import himach; himach.__path__[:] = {list(__import__('himach').__path__)!r}; "
    done = subprocess.run([sys.executable, "-P", "-c", path + code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]
