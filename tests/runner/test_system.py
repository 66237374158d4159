"""What a record says of the system that was simulated, as MDAnalysis says it."""

from __future__ import annotations

from collections import Counter
from copy import copy

import MDAnalysis
import numpy as np
import pytest
from MDAnalysisTests.datafiles import DCD, GRO, PSF, XTC, LAMMPSdata2, LAMMPSdcd2

import himach
from himach.runner.outcome.system import MOST_KINDS, residue_kinds


class Times(himach.Analysis):
    """The time of each frame."""

    def map(self, frame):
        yield himach.Row(step=frame.step)


@pytest.mark.parametrize(
    ("trajectory", "topology", "slices"),
    [(XTC, GRO, {}), (XTC, GRO, {"start": 7, "stop": 1, "step": -2}), (DCD, PSF, {"stop": 1})],
)
def test_the_system_is_that_of_mdanalysis(trajectory, topology, slices):
    universe = MDAnalysis.Universe(topology, trajectory)
    asked = slice(slices.get("start"), slices.get("stop"), slices.get("step"))
    selected = [(ts.time, copy(ts.dimensions)) for ts in universe.trajectory[asked]]
    system = himach.run(Times(), trajectory, topology, **slices, cache="off").record["system"]
    assert system["atoms"] == universe.atoms.n_atoms
    np.testing.assert_allclose(system["time_ps"], [selected[0][0], selected[-1][0]])
    box = selected[0][1]
    assert system["box"] is None if box is None else np.allclose(system["box"], box)
    for kind, selection in (("protein", "protein"), ("water", "water"), ("nucleic acid", "nucleic")):
        assert system["residues"].get(kind, 0) == universe.select_atoms(selection).residues.n_residues
    others = universe.select_atoms("not (protein or water or nucleic)").residues.resnames
    named = {kind: n for kind, n in system["residues"].items() if kind not in ("protein", "water", "nucleic acid")}
    assert named == Counter(others.tolist())
    assert list(system["residues"].values()) == sorted(system["residues"].values(), reverse=True)


def test_a_topology_without_names_of_residues():
    record = himach.run(Times(), LAMMPSdcd2, LAMMPSdata2, stop=2, cache="off").record
    assert record["system"]["residues"] == {}


def test_many_kinds_are_counted_together():
    names = [f"L{i:03}" for i in range(60)]
    universe = MDAnalysis.Universe.empty(60, 60, atom_resindex=range(60), residue_segindex=[0] * 60)
    universe.add_TopologyAttr("resnames", names)
    kinds = residue_kinds(universe._topology)
    assert len(kinds) == MOST_KINDS
    assert kinds["other"] == 60 - MOST_KINDS + 1
    assert sum(kinds.values()) == 60


def test_an_ensemble_says_it_of_each_member():
    members = [himach.Member("a", XTC, GRO, stop=2), himach.Member("b", DCD, PSF, start=3, stop=5)]
    record = himach.run(Times(), ensemble=members, cache="off").record
    assert [one["system"]["atoms"] for one in record["ensemble"]] == [47681, 3341]
    assert "system" not in record
    assert record["faulty"] == {"damaged": 0, "missing": 0}
    assert record["units"]["Times"]["time_ps"] == "ps"
