"""Some of the cases of `kills.py`: runs killed at random moments, and begun again."""

from __future__ import annotations

import pytest

from . import kills

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize(("launchers", "seed"), [(["alone", "-n"], 5), (["mpiexec", "-n"], 6)])
def test_runs_that_are_killed_and_begun_again_have_the_outcome_of_a_run_in_one_go(launchers, seed):
    assert kills.trials(2, seed, launchers) == 0
