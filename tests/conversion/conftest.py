"""What several files of tests convert."""

import MDAnalysis as mda
import pytest
from MDAnalysisTests.datafiles import GRO, XTC


@pytest.fixture(scope="session")
def long(tmp_path_factory):
    """A trajectory that takes seconds: the frames of AdK in water, thirty times."""
    path = tmp_path_factory.mktemp("long") / "long.xtc"
    universe = mda.Universe(GRO, XTC)
    with mda.Writer(str(path), universe.atoms.n_atoms) as writer:
        for number in range(30 * len(universe.trajectory)):
            ts = universe.trajectory[number % len(universe.trajectory)]
            ts.time, ts.frame = float(number), number
            ts.data["step"] = number
            writer.write(universe.atoms)
    return path
