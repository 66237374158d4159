"""Frames of trajectories of every format are those that MDAnalysis reads in them, to the last bit."""

from typing import Any

import MDAnalysis as mda
import pytest
from MDAnalysis.core._get_readers import get_reader_for
from MDAnalysisTests import datafiles

from himach.io.trajectories.origin import open_origin

from .trajectory_formats import read_by_mdanalysis, read_frames

#: Name of the trajectory -> name of the topology that tells its number of atoms, and keywords.
SAMPLES: dict[str, tuple[str | None, dict[str, Any]]] = {
    **dict.fromkeys(("GMS_ASYMOPT", "XYZ_bz2", "NCDF", "PDB_multiframe", "mol2_molecules", "INPCRD"), (None, {})),
    **dict.fromkeys(("TRC_TRAJ1_VAC", "PDBQT_input", "DMS", "PQR", "CRD", "XYZ_five", "TXYZ", "ARC"), (None, {})),
    "TRJ_bz2": ("PRM", {}),
    "TRJpbc_bz2": ("PRMpbc", {}),
    "TRJncdf": ("PRMncdf", {}),
    "TRZ": ("TRZ_psf", {}),
    "LAMMPSdata": ("LAMMPSdata", {}),
    "LAMMPSDUMP": (None, {"format": "LAMMPSDUMP"}),
    "LAMMPSDUMP_additional_columns": (None, {"format": "LAMMPSDUMP", "additional_columns": True}),
    "DLP_HISTORY": (None, {"format": "HISTORY"}),
    "DLP_CONFIG": (None, {"format": "CONFIG"}),
}


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SAMPLES)
def test_frames_from_any_first_one_after_the_pickle(name):
    topology, keywords = SAMPLES[name]
    path = getattr(datafiles, name)
    topology = topology and getattr(datafiles, topology)
    reader = get_reader_for(path, format=keywords.get("format"))
    own = {} if topology is None else {"n_atoms": mda.Universe(topology).atoms.n_atoms}
    own |= {word: value for word, value in keywords.items() if word != "format"}
    expected = read_by_mdanalysis(reader, path, **own)
    origin = open_origin([path], topology, keywords)
    n = origin.n_frames
    firsts = sorted({*range(min(n, 12)), n // 2, max(0, n - 2), n - 1})
    for numbers in (*(range(first, min(first + 3, n)) for first in firsts), range(0, n, 2)[:5], range(n)[::-1][:5]):
        assert read_frames(origin, numbers) == [expected[number] for number in numbers]
    assert n == len(expected)
