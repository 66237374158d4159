"""MDAnalysis's analyses by their names on the command line, a user's own, and within a map()."""

import json
import re

import MDAnalysis as mda
import numpy as np
import pytest
from MDAnalysis.analysis.density import DensityAnalysis
from MDAnalysis.analysis.dihedrals import Ramachandran
from MDAnalysis.analysis.rms import RMSD
from MDAnalysisTests.datafiles import DCD, GRO, PSF, XTC
from support import cache_data, commands

import himach
from himach.adapted import GROUPS, adapted
from himach.runner.scripts import find_class

SCRIPT = """
import numpy as np
from MDAnalysis.analysis.base import AnalysisBase
from MDAnalysis.analysis.results import ResultsGroup

class Gyration(AnalysisBase):
    _analysis_algorithm_is_parallelizable = True

    def __init__(self, atomgroup, scale=1.0, **kwargs):
        super().__init__(atomgroup.universe.trajectory, **kwargs)
        self._ag = atomgroup
        self._scale = scale

    def _prepare(self):
        self.results.radius = np.zeros(self.n_frames)

    def _single_frame(self):
        self.results.radius[self._frame_index] = self._scale * self._ag.radius_of_gyration()

    def _get_aggregator(self):
        return ResultsGroup({"radius": ResultsGroup.ndarray_hstack})
"""

#: Names that an analysis of himach uses itself, and that arguments of MDAnalysis's may have nonetheless.
OURS = sorted(name for name in dir(adapted(RMSD)) if not name.startswith("__"))
NAMES_OF_OURS = f"""
from MDAnalysis.analysis.base import AnalysisBase
from MDAnalysis.analysis.results import ResultsGroup

class Named(AnalysisBase):
    _analysis_algorithm_is_parallelizable = True

    def __init__(self, atomgroup, {", ".join(OURS)}):
        super().__init__(atomgroup.universe.trajectory)
        self._seen = [{", ".join(f"str({name})" for name in OURS)}]

    def _single_frame(self):
        self.results.seen = [[*self._seen, str(self._ts.frame)]]

    def _get_aggregator(self):
        return ResultsGroup({{"seen": ResultsGroup.flatten_sequence}})
"""


def outcome_of(cls, parameters, trajectory, topology, **options):
    return himach.run(adapted(cls)(**parameters), trajectory, topology, **options).outcome


@pytest.mark.parametrize(
    ("spec", "parameters", "message"),
    [
        ("rms:RMSD", {"atomgroup": "nosuch 5"}, r"parameter atomgroup: 'nosuch 5' cannot be used as a selection"),
        ("rms:RMSD", {"atomgroup": "name X"}, r"parameter atomgroup: 'name X' selects none of the 47681 atoms"),
        ("rdf:InterRDF_s", {"ags": "[1, 2]"}, r"parameter ags: 1 is no selection of atoms"),
        ("dihedrals:Dihedral", {"atomgroups": "resid 2; resid 3"}, r"cannot be made with .*must contain 4 atoms"),
    ],
)
def test_what_cannot_be_made_is_named_with_its_parameter(spec, parameters, message):
    analysis = find_class(f"MDAnalysis.analysis.{spec}")(**parameters)
    with pytest.raises(himach.UsageError, match=message):
        himach.run(analysis, XTC, GRO, stop=3)


def test_an_error_in_the_users_own_class_is_told_by_its_line(tmp_path):
    topology, trajectory = cache_data.make(tmp_path, 3)
    for line, wrong in (("self._ag = atomgroup", "self._ag = atomgroup[9999]"), ("self._scale *", "None *")):
        script = tmp_path / f"wrong_{len(wrong)}.py"
        script.write_text(SCRIPT.replace(line, wrong))
        with pytest.raises(himach.AnalysisError, match=rf"{script}, line \d+.*{re.escape(wrong)}"):
            himach.run(find_class(str(script))(atomgroup="all"), trajectory, topology)


def test_what_an_analysis_keeps_for_itself_is_no_result():
    result = outcome_of(DensityAnalysis, {"atomgroup": "name CA", "delta": 5.0}, XTC, GRO, stop=2)
    assert [name for name in result if name.startswith("_")] == []
    assert "density_grid" in result


def test_any_name_is_an_argument(tmp_path):
    assert {"atoms", "frames", "name", "map", "label", "settings", "arguments"} <= set(OURS)
    script = tmp_path / "named.py"
    script.write_text(NAMES_OF_OURS)
    topology, trajectory = cache_data.make(tmp_path, 3)
    ours = [f"of {name}" for name in OURS if name not in GROUPS]
    texts = {name: "index 0 to 3" if name in GROUPS else f"of {name}" for name in OURS}
    analysis = find_class(str(script))(atomgroup="all", **texts)
    assert analysis.settings() == {"atomgroup": "all", **texts}
    result = himach.run(analysis, trajectory, topology, pairs=tmp_path / "pairs")
    for number, (*seen, frame) in enumerate(result.outcome["seen"]):
        assert [text for text in seen if not text.startswith("<AtomGroup")] == ours
        assert frame == str(number)
    assert result.record["analyses"][0]["parameters"] == {"atomgroup": "all", **texts}
    texts["frames"] = "others"
    again = find_class(str(script))(atomgroup="all", **texts)
    assert himach.run(again, trajectory, topology, pairs=tmp_path / "pairs").record["reused"]["frames"] == 0


def test_a_script_of_the_users_own(tmp_path):
    script = tmp_path / "gyration.py"
    script.write_text(SCRIPT)
    topology, trajectory = cache_data.make(tmp_path, 12)
    cls = find_class(str(script))
    analysis = cls(atomgroup="index 0 to 9", scale=2.0)
    alone = himach.run(analysis, trajectory, topology, pairs=tmp_path / "pairs", stop=5)
    atoms = mda.Universe(topology, trajectory).atoms[:10]
    expected = [2.0 * atoms.radius_of_gyration() for ts in atoms.universe.trajectory]
    assert alone.outcome["radius"].tolist() == expected[:5]
    again = himach.run(cls(atomgroup="index 0 to 9", scale=2.0), trajectory, topology, pairs=tmp_path / "pairs")
    assert again.outcome["radius"].tolist() == expected
    assert again.record["reused"]["frames"] == 5
    assert again.record["analyses"][0]["source"] == f"{script}:Gyration"
    script.write_text(SCRIPT.replace("self._scale *", "3 * self._scale *"))  # other code is another map
    changed = himach.run(
        find_class(str(script))(atomgroup="index 0 to 9"), trajectory, topology,
        pairs=tmp_path / "pairs",
    )  # fmt: skip
    assert changed.outcome["radius"].tolist() == [3.0 * value / 2.0 for value in expected]
    assert changed.record["reused"]["frames"] == 0


@pytest.mark.slow
def test_the_command(tmp_path):
    (tmp_path / "gyration.py").write_text(SCRIPT)
    topology, trajectory = cache_data.make(tmp_path, 12)
    words = ["run", "gyration.py", "MDAnalysis.analysis.rms:RMSD", "-t", trajectory, "--topology", topology, "-n", 2]
    words += ["--out", "out", "-p", "Gyration.atomgroup=all", "-p", "RMSD.atomgroup=index 0 to 20"]
    commands.himach(*words, cwd=tmp_path, code=0)
    universe = mda.Universe(topology, trajectory)
    expected = RMSD(universe.atoms[:21]).run().results.rmsd
    assert np.array_equal(np.load(tmp_path / "out" / "RMSD" / "rmsd.npy"), expected)
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["analyses"][1]["source"] == "MDAnalysis.analysis.rms:RMSD"
    commands.himach("run", "--rerun", "out/run.json", "--out", "again", cwd=tmp_path, code=0)
    assert (tmp_path / "again" / "RMSD" / "rmsd.npy").read_bytes() == (
        tmp_path / "out" / "RMSD" / "rmsd.npy"
    ).read_bytes()


def test_what_mdanalysis_refuses_is_refused():
    with pytest.raises(himach.UsageError, match=r"rms:RMSF cannot be run by ranks.*depend on each other"):
        find_class("MDAnalysis.analysis.rms:RMSF")
    with pytest.raises(himach.UsageError, match=r"AnalysisFromFunction is made with a function"):
        find_class("MDAnalysis.analysis.base:AnalysisFromFunction")
    with pytest.raises(himach.UsageError, match=r"defines no analysis 'RMSDD'; did you mean 'RMSD'"):
        find_class("MDAnalysis.analysis.rms:RMSDD")
    with pytest.raises(himach.UsageError, match="needs a value for its parameter 'atomgroup'"):
        find_class("MDAnalysis.analysis.rms:RMSD")()


class Within(himach.Analysis):
    def setup(self, universe):
        self.atoms = universe.select_atoms("protein")

    def map(self, frame):
        angles = Ramachandran(self.atoms).run()
        assert angles.frames.tolist() == [frame.number]
        assert angles.times.tolist() == [frame.time]
        yield "angles", angles.results.angles[0]

    def finish(self, results):
        return np.array(results["angles"])

    def reduce(self, key, series):
        return list(series.values)


class Elsewhere(Within):
    def map(self, frame):
        yield "angles", Ramachandran(self.atoms).run(stop=2).results.angles[0]


def test_within_a_map_it_works_on_the_present_frame():
    expected = Ramachandran(mda.Universe(PSF, DCD).select_atoms("protein")).run(start=1, step=20).results.angles
    result = himach.run(Within(), DCD, PSF, start=1, step=20)
    assert np.array_equal(result.outcome, expected)
    with pytest.raises(himach.AnalysisError, match="cannot be moved to other frames"):
        himach.run(Elsewhere(), DCD, PSF, start=1, step=20)
