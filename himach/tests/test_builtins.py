"""The built-in analyses beside MDAnalysis's own."""

from __future__ import annotations

from typing import Any

import MDAnalysis as mda
import numpy as np
from MDAnalysis.analysis.rdf import InterRDF
from MDAnalysis.analysis.rms import RMSD

import himach
from himach.examples import BUILTINS, load, sample
from himach.tests.conftest import Files


def run_builtin(name: str, files: Files, *, stop: int | None = None, **parameters: Any) -> Any:
    """Return what a built-in finds."""
    return himach.run(load(name)(**parameters), *files, stop=stop, progress=False).outcome


def test_rmsd(villin: Files) -> None:
    expected = RMSD(mda.Universe(villin[1], villin[0]), select="protein and backbone").run().results.rmsd
    table = run_builtin("rmsd", villin)["rmsd"]
    assert np.allclose(table["time_ps"], expected[:, 1])
    assert np.allclose(table["rmsd"], expected[:, 2], atol=1e-5)


def test_rdf(nanopore: Files) -> None:
    universe = mda.Universe(nanopore[1], nanopore[0])
    groups = universe.select_atoms("name K"), universe.select_atoms("name O")
    expected = InterRDF(*groups, nbins=50, range=(0.0, 8.0)).run(stop=10).results
    table = run_builtin("rdf", nanopore, stop=10, a="name K", b="name O", r_max=8.0, bins=50)["rdf"]
    assert np.allclose(table["r"], expected.bins)
    assert np.allclose(table["g"], expected.rdf, rtol=1e-6)


def test_ion_permeation() -> None:
    filter_ends: dict[str, Any] = {"top": "resid 66 and name O", "bottom": "resid 63 and name OG1", "radius": 2.5}
    trajectory, topology = sample("kcsa")
    table = run_builtin("ion-permeation", (str(trajectory), str(topology)), **filter_ends)["counts"]
    assert dict(zip(table["direction"], table["events"], strict=True)) == {"down": 3, "up": 4}


def test_every_built_in_describes_itself() -> None:
    assert len(BUILTINS) > 6
    for name in BUILTINS:
        assert all(parameter.doc for parameter in load(name).parameters().values())
