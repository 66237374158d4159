"""Some of the cases of `kills.py`: runs killed at random moments, and begun again."""

import pytest

from . import kills

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.nightly
def test_runs_that_are_killed_and_begun_again_have_the_outcome_of_a_run_in_one_go():
    assert kills.trials(3, 5, ["alone", "-n", "mpiexec"]) == 0
