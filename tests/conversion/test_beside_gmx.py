"""The steps of a conversion beside GROMACS: numbers that `gmx trjconv` 2022.5 wrote of AdK in water."""

from __future__ import annotations

import MDAnalysis as mda
import numpy as np
import pytest
from MDAnalysisTests.datafiles import TPR, XTC

import himach

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
ATOMS = [0, 214, 1500, 3340, 20001, 35008, 47680]
# Positions of these in the last frame, of those without jumps in the second: gmx trjconv -f XTC -s TPR, and
IN_BOX = [
    [52.76, 36.81, 30.42], [51.38, 55.88, 19.52], [67.69, 38.82, 45.68], [56.2, 33.98, 19.88], [67.1, 75.67, 15.21],
    [45.49, 67.79, 20.89], [72.25, 114.66, 51.08],
]  # fmt: skip
NO_JUMPS = [
    [54.25, 40.98, 29.27], [53.41, 61.77, 22.76], [71.81, 40.1, 43.84], [58.95, 37.25, 18.57], [29.58, 83.11, 12.62],
    [73.23, 25.37, 8.89], [64.97, 51.38, -8.41],
]  # fmt: skip
FITTED = [
    [53.86, 43.63, 31.98], [54.63, 62.41, 20.54], [70.13, 43.55, 45.95], [55.92, 40.03, 21.31], [72.89, 79.29, 14.3],
    [50.85, 75.14, 21.93], [74.38, 38.74, 51.12],
]  # fmt: skip
GMX = {
    "-pbc whole": ({"whole": True}, [*IN_BOX[:-1], [72.25, 34.57, 51.08]]),
    "-pbc nojump": ({"nojump": True}, NO_JUMPS),
    "-pbc atom -ur tric": ({"wrap": "atoms"}, IN_BOX),
    "-pbc res -ur tric": ({"whole": True, "wrap": "residues"}, IN_BOX),
    "-pbc mol -ur tric": ({"whole": True, "wrap": "molecules"}, IN_BOX),
    "-fit rot+trans, of C-alpha to the first frame, what is whole": ({"whole": True, "fit": "name CA"}, FITTED),
}


@pytest.mark.nightly(but=2)
@pytest.mark.parametrize("case", GMX)
def test_positions_are_those_of_gmx(tmp_path, case):
    keywords, expected = GMX[case]
    done = himach.convert(XTC, TPR, out=tmp_path / "out.xtc", cache="off", **keywords)
    universe = mda.Universe(TPR, str(done.path))
    universe.trajectory[1 if "nojump" in case else -1]
    np.testing.assert_allclose(universe.atoms.positions[ATOMS], expected, atol=0.021)
