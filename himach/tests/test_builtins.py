"""Built-in analyses beside MDAnalysis's own."""

import MDAnalysis as mda
import numpy as np
from MDAnalysis.analysis.rdf import InterRDF
from MDAnalysis.analysis.rms import RMSD

import himach
from himach.examples import BUILTINS, load, sample
from himach.tests.conftest import Files


def test_rmsd(villin: Files, universe: mda.Universe) -> None:
    expected = RMSD(universe, select="protein and backbone").run().results.rmsd
    table = himach.run(load("rmsd")(), *villin, progress=False).outcome["rmsd"]
    assert np.allclose(table["time_ps"], expected[:, 1])
    assert np.allclose(table["rmsd"], expected[:, 2], atol=1e-5)


def test_rdf() -> None:
    trajectory, topology = sample("nanopore")
    universe = mda.Universe(str(topology), str(trajectory))
    groups = universe.select_atoms("name K"), universe.select_atoms("name O")
    expected = InterRDF(*groups, nbins=50, range=(0.0, 8.0)).run(stop=10).results
    analysis = load("rdf")(a="name K", b="name O", r_max=8.0, bins=50)
    table = himach.run(analysis, trajectory, topology, stop=10, progress=False).outcome["rdf"]
    assert np.allclose(table["r"], expected.bins)
    assert np.allclose(table["g"], expected.rdf, rtol=1e-6)


def test_every_parameter_has_a_description() -> None:
    parameters = [parameter for name in BUILTINS for parameter in load(name).parameters().values()]
    assert all(parameter.doc for parameter in parameters)
