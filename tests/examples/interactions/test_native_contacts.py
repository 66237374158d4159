"""Native contacts beside those of MDAnalysis."""

import MDAnalysis
import numpy as np
import pytest
from MDAnalysis.analysis.contacts import Contacts, hard_cut_q, soft_cut_q
from MDAnalysisTests.datafiles import CRD, DCD, PSF

import himach
from himach.examples.interactions.native_contacts import NativeContacts

HELIX, STRAND = "protein and resid 1:24 and not name H*", "protein and resid 25:90 and not name H*"


@pytest.mark.parametrize(("method", "peer"), [("soft", soft_cut_q), ("hard", hard_cut_q)])
@pytest.mark.parametrize(("reference", "files"), [(None, (PSF, DCD)), (CRD, (PSF, CRD))])
def test_q_is_that_of_mdanalysis(method, peer, reference, files):
    native, universe = MDAnalysis.Universe(*files), MDAnalysis.Universe(PSF, DCD)
    groups = tuple(native.select_atoms(selection) for selection in (HELIX, STRAND))
    contacts = Contacts(universe, (HELIX, STRAND), groups, method=peer, radius=4.5, pbc=False)
    analysis = NativeContacts(a=HELIX, b=STRAND, method=method, exclude=0, reference=reference)
    table = himach.run(analysis, DCD, PSF, step=5, cache="off")["q"]
    np.testing.assert_allclose(table["q"], contacts.run(step=5).results.timeseries[:, 1], atol=1e-6)


def test_hydrogens_and_neighbours_in_sequence_have_no_contacts():
    """A helix of 24 residues: all contacts, and those four residues apart, of heavy atoms alone."""
    universe = MDAnalysis.Universe(PSF, DCD)
    heavy = universe.select_atoms(HELIX)
    i, j = np.triu_indices(len(heavy), 1)
    distances = np.linalg.norm(heavy.positions[i].astype(float) - heavy.positions[j], axis=1)
    for exclude in (0, 4):
        analysis = NativeContacts(a="protein and resid 1:24", exclude=exclude)
        analysis.setup(universe)
        apart = np.abs(heavy.resindices[i] - heavy.resindices[j]) >= exclude
        assert len(analysis.native) == ((distances <= 4.5) & apart).sum()
