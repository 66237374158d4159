"""A pytest plug-in: MDAnalysis's own tests with himach's ranks in place of its multiprocessing.

``PYTHONPATH=tests/mdanalysis pytest -p stock_replaced --pyargs MDAnalysisTests.analysis.test_rms``
"""

import os
import tempfile

import MDAnalysis.analysis.base
import pytest

import himach
from himach.mdanalysis import Backend

KEPT = pytest.StashKey()


class RanksInPlace(Backend):
    """Takes what the stock backend takes; its ranks stay from test to test."""

    staying: dict[int, himach.Ranks] = {}  # noqa: RUF012
    asked = 0

    def __init__(self, n_workers):
        if n_workers not in self.staying:
            self.staying[n_workers] = himach.Ranks(n_workers)
        super().__init__(self.staying[n_workers])

    def apply(self, func, computations):
        RanksInPlace.asked += 1
        return super().apply(func, computations)


def pytest_configure(config):
    MDAnalysis.analysis.base.BackendMultiprocessing = RanksInPlace
    folder = config.stash[KEPT] = tempfile.TemporaryDirectory(prefix="himach-stock-")
    os.environ["HIMACH_CACHE"] = os.path.join(folder.name, "store")


def pytest_unconfigure(config):
    for ranks in RanksInPlace.staying.values():
        ranks.close()
    config.stash[KEPT].cleanup()


def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(f"himach's ranks were asked {RanksInPlace.asked} times")
