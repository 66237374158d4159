"""MDAnalysis's own tests of analyses, unmodified, with himach's ranks in place of its multiprocessing.

Here are some; all of the modules that run on several workers are run by

    PYTHONPATH=tests/mdanalysis pytest -p stock_replaced --pyargs $(
      python -c "from MDAnalysisTests import analysis as a; print(a.__path__[0])" |
      xargs -I{} grep -l client_ -r {} --include 'test_*.py')
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

MODULES = ["test_atomicdistances"]


@pytest.mark.nightly
@pytest.mark.slow
def test_stock_tests_pass_with_our_ranks(tmp_path):
    names = [f"MDAnalysisTests.analysis.{name}" for name in MODULES]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "stock_replaced", "-p", "no:cacheprovider", "-W", "ignore"]
    command += ["-k", "client", "--pyargs", *names]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:]
    asked = int(re.search(r"himach's ranks were asked (\d+) times", done.stdout)[1])
    assert asked
