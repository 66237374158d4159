"""The built-in analyses beside MDAnalysis's own."""

from __future__ import annotations

from typing import Any

import MDAnalysis as mda
import numpy as np
import pytest
from MDAnalysis.analysis.hydrogenbonds import HydrogenBondAnalysis
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


def test_hydrogen_bonds(villin: Files) -> None:
    groups = {"donors": "protein and name N", "hydrogens": "protein and name H HN", "acceptors": "protein and name O"}
    expected = HydrogenBondAnalysis(
        mda.Universe(villin[1], villin[0]),
        **{f"{name}_sel": text for name, text in groups.items()},
        d_a_cutoff=3.0,
        d_h_a_angle_cutoff=150,
    ).run(stop=20)
    table = run_builtin("hydrogen-bonds", villin, stop=20, tau_max=3, **groups)["counts"]
    assert list(table["bonds"]) == list(expected.count_by_time())
    assert sum(table["bonds"]) > 0


def test_msd_of_water_begins_at_nothing_and_grows(nanopore: Files) -> None:
    table = run_builtin("msd", nanopore, stop=20, tau_max=5)["msd"]
    assert table["msd"][0] == pytest.approx(0, abs=1e-6)
    assert (np.diff(table["msd"]) > 0).all()


def test_survival_of_water_begins_at_one_and_falls(nanopore: Files) -> None:
    survival = run_builtin("water-residence", nanopore, stop=20, solute="name K", tau_max=5)["survival"]["survival"]
    assert survival[0] == 1
    assert (np.diff(survival) <= 0).all()
    assert 0 < survival[-1] < 1


def test_ion_permeation() -> None:
    filter_ends: dict[str, Any] = {"top": "resid 66 and name O", "bottom": "resid 63 and name OG1", "radius": 2.5}
    trajectory, topology = sample("kcsa")
    table = run_builtin("ion-permeation", (str(trajectory), str(topology)), **filter_ends)["counts"]
    assert dict(zip(table["direction"], table["events"], strict=True)) == {"down": 3, "up": 4}


def test_every_built_in_describes_itself() -> None:
    assert len(BUILTINS) > 6
    for name in BUILTINS:
        assert all(parameter.doc for parameter in load(name).parameters().values())
