"""The ensemble that these tests run over, and its outcome."""

import pytest
from runner.ensemble.simulations import make_ensemble
from support.commands import himach


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ensemble")
    make_ensemble(folder)
    return folder


@pytest.fixture(scope="session")
def ensemble_words(folder):
    return [
        "rmsd",
        f"{folder}/analyses.py:Gyration",
        f"{folder}/analyses.py:Ends",
        "--ensemble",
        folder / "ensemble.csv",
    ]


@pytest.fixture(scope="session")
def whole(folder, ensemble_words, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "out"
    himach("run", *ensemble_words, "--cache", "off", "-o", out, code=0)
    return out
