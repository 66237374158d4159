"""A folder for each test, in which it works; libraries are left as they were, and the tests' modules do not count."""

import builtins
import decimal

import MDAnalysis
import numpy as np
import pytest
from checkpoint.fingerprint.fingerprints import own_modules
from MDAnalysis.analysis import rms
from MDAnalysis.core import selection


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """Give a folder, and leave libraries as they were."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("himach.checkpoint.sources.own_modules", own_modules)
    monkeypatch.setattr(rms, "rmsd", rms.rmsd)
    monkeypatch.setattr(selection, "_SELECTIONDICT", {**selection._SELECTIONDICT})
    with np.errstate(), decimal.localcontext():
        yield tmp_path
    MDAnalysis._READERS.pop("OWN", None)
    for thing in (MDAnalysis.AtomGroup, MDAnalysis.lib.distances, np, builtins):
        for name in ("part", "n1"):
            if name in vars(thing):
                delattr(thing, name)
