import MDAnalysis
import numpy as np
import pytest
from MDAnalysis.analysis import rms
from MDAnalysisTests.datafiles import DCD, GRO, PSF, XTC
from support import plain

import himach
from himach.examples import sample
from himach.examples.rmsd import Rmsd


@pytest.mark.parametrize(
    ("topology", "trajectory", "selection", "start", "step"),
    [(PSF, DCD, "protein and backbone", 0, 1), (PSF, DCD, "name CA", 10, 3), (GRO, XTC, "protein", 0, 1)],
    ids=["from the first", "from the tenth by three", "in water"],
)
def test_against_mdanalysis(topology, trajectory, selection, start, step):
    universe = MDAnalysis.Universe(topology, trajectory)
    universe.trajectory[start]
    reference = MDAnalysis.Merge(universe.select_atoms(selection)).load_new(universe.select_atoms(selection).positions)
    expected = rms.RMSD(universe.select_atoms(selection), reference.atoms).run(start=start, step=step).results.rmsd
    table = plain.run(Rmsd(selection=selection), trajectory, topology, start=start, step=step)["rmsd"]
    np.testing.assert_allclose(table["rmsd"], expected[:, 2], atol=1e-4)
    np.testing.assert_allclose(table["time_ps"], expected[:, 1])


def test_sample():
    table = plain.run(Rmsd(), *sample("villin"))["rmsd"]
    assert len(table["rmsd"]) == 250
    assert table["rmsd"][0] == pytest.approx(0, abs=1e-4)
    assert 0.3 < table["rmsd"][1:].min() < table["rmsd"].max() < 3  # whole molecules, hence no leaps


def test_empty_selection():
    with pytest.raises(himach.UsageError, match="parameter selection"):
        plain.run(Rmsd(), *sample("nanopore"))


def test_units_go_to_labels_and_to_the_record(tmp_path):
    result = himach.run(Rmsd(), DCD, PSF, stop=3, cache="off", out=tmp_path)
    assert result.record["units"] == {"rmsd": {"time_ps": "ps", "rmsd": "Å"}}
    assert result["rmsd"].units == result.to_frame().attrs["units"]
    (axes,) = result.plot().axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("time / ps", "RMSD / Å")
    assert (tmp_path / "rmsd.csv").read_text().splitlines()[0] == "time_ps,rmsd"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rmsd.csv", "rmsd.png", "run.json"]
