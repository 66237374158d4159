"""What makes one map beside its code: the trajectory, the selection, the topology, parameters, versions."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace

import MDAnalysis
import pytest
from checkpoint.fingerprint.fingerprints import TOPOLOGY, TRAJECTORY, fingerprint_of, fingerprint_of_script

from himach import Analysis, examples
from himach.checkpoint import map_fingerprint
from himach.checkpoint.map_fingerprint import MapFingerprint, differences


@pytest.fixture(scope="module")
def grown(tmp_path_factory):
    """The first 20 frames, 30, and 20 of which one is another."""
    folder = tmp_path_factory.mktemp("grown")
    universe = MDAnalysis.Universe(TOPOLOGY, TRAJECTORY)
    for name, n_frames, moved in (("short", 20, -1), ("long", 30, -1), ("other", 20, 7)):
        with MDAnalysis.Writer(str(folder / f"{name}.xtc"), universe.atoms.n_atoms) as writer:
            for ts in universe.trajectory[:n_frames]:
                ts.positions = ts.positions + (ts.frame == moved)
                writer.write(universe.atoms)
    return folder


PARAMETERS = {
    "rmsd": {},
    "rdf": {"a": "name CA", "b": "name CA"},
    "msd": {"selection": "name CA", "tau_max": 5},
    "water-residence": {"water": "name OH2 OW O", "solute": "name CA", "tau_max": 5},
    "hydrogen-bonds": {"tau_max": 5},
    "ion-permeation": {"ions": "name N", "top": "resid 1:5", "bottom": "resid 20:30", "radius": 3.0},
}


def built_in(name, **parameters):
    return examples.load(name)(**{**PARAMETERS[name], **parameters})


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_built_in_keeps_its_pairs_as_the_trajectory_grows_and_for_other_selections(name, grown):
    def found(file="short", **options):
        return fingerprint_of(built_in(name), [grown / f"{file}.xtc"], **options)

    try:
        short = found()
    except Exception as error:
        if "top is not above" not in str(error):
            raise
        PARAMETERS[name] |= {"top": PARAMETERS[name]["bottom"], "bottom": PARAMETERS[name]["top"]}
        short = found()
    assert differences(short, found("long")) == []
    assert differences(short, found("long", step=3)) == []
    assert differences(short, found(stop=9)) == []
    assert differences(short, found("other")) == ["the trajectory has another content"]
    assert differences(found("long"), short) == ["the trajectory has another content"]  # it lost frames
    shifted = differences(short, found(start=5))
    fitted = [f"self.{what} is another after setup()" for what in ("positions", "superposition")]
    assert shifted == (fitted if name == "rmsd" else [])
    other = examples.load(name)(**{**PARAMETERS[name], **({"tau_max": 6} if "tau_max" in PARAMETERS[name] else {})})
    told = differences(short, fingerprint_of(other, [grown / "short.xtc"]))
    assert told == (["tau_max 5 is now 6"] if "tau_max" in PARAMETERS[name] else [])


class Steps(Analysis):
    def map(self, frame):
        yield 1, 1


#: What map() yields, and what is said where the trajectory is longer, the first frame is another, or every other is.
READING = {
    "frame.step": ([], ["frame.step"], ["frame.step"]),
    "frame.number / len(self.frames)": (["self.frames"], ["self.frames"], ["self.frames"]),
    "frame.number * self.dt": ([], [], ["dt"]),
    "len(frame.universe.trajectory)": (["n_frames"], [], []),
    "helper(frame)": ([], ["frame.step"], ["frame.step"]),
    "WAYS[0](frame)": ([], ["frame.step"], ["frame.step"]),
    "self.way(frame)": ([], ["frame.step"], ["frame.step"]),
    "frame.number": ([], [], []),
    "'the step of frames'": ([], [], []),
}
SCRIPT = """
import himach
def helper(frame): return frame.step
def more(frame): return frame.step
def chosen(frame): return frame.step
def unused(analysis): return analysis.frames
WAYS = [MORE]
class Mine(himach.Analysis):
    def setup(self, u):
        self.way, first = CHOSEN, self.frames[:0]
        self.last = self.frames[-1]
    def map(self, frame):
        yield 1, READING
    def reduce(self, key, series):
        return unused(self), self.dt, self.last
"""


def script_of(reading):
    ways = ("more" if "WAYS" in reading else "None", "chosen" if "way" in reading else "None")
    return SCRIPT.replace("READING", reading).replace("MORE", ways[0]).replace("CHOSEN", ways[1])


@pytest.mark.parametrize("reading", READING)
def test_the_selection_counts_where_map_reads_it(reading, grown, tmp_path):
    (tmp_path / "script.py").write_text(script_of(reading))

    def found(file, **options):
        return fingerprint_of_script(tmp_path, trajectories=[grown / f"{file}.xtc"], **options)

    def told(file, **options):
        return [sentence.split()[2].rstrip(",") for sentence in differences(before, found(file, **options))]

    before = found("short")
    longer, shifted, denser = READING[reading]
    assert told("long") == longer
    assert told("short", start=2) == shifted
    assert told("short", step=2) == denser


def test_where_names_are_made_up_all_of_the_selection_counts(grown, tmp_path):
    (tmp_path / "script.py").write_text(script_of("getattr(frame, 'st' + 'ep')"))
    before = fingerprint_of_script(tmp_path, trajectories=[grown / "short.xtc"])
    told = differences(before, fingerprint_of_script(tmp_path, trajectories=[grown / "short.xtc"], start=2))
    assert "map() uses frame.step, and the selection is another" in told


class FromSetup(Analysis):
    def setup(self, universe):
        self.many = len(self.frames)

    def map(self, frame):
        yield 1, self.many


def test_what_setup_took_from_the_selection_counts_as_state(grown):
    before = fingerprint_of(FromSetup(), [grown / "short.xtc"])
    assert "self.many is another after setup()" in differences(
        before, fingerprint_of(FromSetup(), [grown / "long.xtc"])
    )


def test_files_of_a_trajectory(grown, tmp_path):
    for name in ("short", "long"):
        shutil.copy(grown / f"{name}.xtc", tmp_path / f"{name}.xtc")
    later = tmp_path / "later.xtc"
    universe = MDAnalysis.Universe(TOPOLOGY, TRAJECTORY)
    with MDAnalysis.Writer(str(later), universe.atoms.n_atoms) as writer:
        for _ in universe.trajectory[20:30]:
            writer.write(universe.atoms)
    short = fingerprint_of(Steps(), [grown / "short.xtc"])
    assert differences(short, fingerprint_of(Steps(), [tmp_path / "short.xtc"])) == []  # a copy of it
    assert differences(short, fingerprint_of(Steps(), [grown / "short.xtc", later])) == []  # one more file
    assert differences(short, fingerprint_of(Steps(), [tmp_path / "short.xtc", later])) == []
    both = fingerprint_of(Steps(), [grown / "short.xtc", later])
    assert differences(both, short) == ["the trajectory has another content"]


def test_keywords_topology_and_versions_are_told(grown, tmp_path):
    before = fingerprint_of(Steps(), [grown / "short.xtc"])
    dt = fingerprint_of(Steps(), [grown / "short.xtc"], keywords={"dt": 2.0})
    assert differences(before, dt) == ["the universe keyword dt None is now 2.0"]
    other = fingerprint_of(Steps(), [grown / "short.xtc"], keywords={"dt": 1.5})
    assert differences(dt, other) == ["the universe keyword dt 2.0 is now 1.5"]
    assert differences(before, fingerprint_of(Steps(), [grown / "short.xtc"], keywords={"format": "XTC"})) == []
    renamed = tmp_path / "moved.pdb"
    renamed.write_text(TOPOLOGY.read_text())
    assert differences(before, fingerprint_of(Steps(), [grown / "short.xtc"], topology=renamed)) == []
    renamed.write_text(TOPOLOGY.read_text().replace(" CA ", " CX ", 1))
    assert differences(before, fingerprint_of(Steps(), [grown / "short.xtc"], topology=renamed)) == [
        "the topology is another"
    ]
    guessed = fingerprint_of(Steps(), [grown / "short.xtc"], keywords={"to_guess": ["types", "masses", "elements"]})
    assert differences(before, guessed) in ([], ["the topology is another"])
    versions = {**before.parts, "versions": {**before.parts["versions"], "MDAnalysis": ("3", "3")}}
    assert differences(before, replace(before, parts=versions)) == [f"MDAnalysis {MDAnalysis.__version__} is now 3"]


class Reads(Analysis):
    reference: str = ""
    several: list[str] = []  # noqa: RUF012

    def map(self, frame):
        yield 1, self.reference


def test_files_that_parameters_name_count_by_their_content(tmp_path):
    file = tmp_path / "a.dat"
    file.write_text("1")
    one, many = Reads(reference=str(file)), Reads(several=[str(file)])
    before, listed = fingerprint_of(one), fingerprint_of(many)
    os.utime(file, (1, 1))
    assert differences(before, fingerprint_of(one)) == []
    file.write_text("2")
    assert differences(before, fingerprint_of(one)) == [f"{file} (parameter reference) has another content"]
    assert differences(listed, fingerprint_of(many)) == [f"{file} (parameter several) has another content"]


@pytest.mark.parametrize(("given", "file"), [("~/a.dat", "a.dat"), ("some", "some/in/a.dat"), ("stem", "stem.dat")])
def test_what_parameters_name_otherwise_counts_too(tmp_path, monkeypatch, given, file):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text("1")
    before = fingerprint_of(Reads(reference=given))
    os.utime(tmp_path / file, (1, 1))
    assert differences(before, fingerprint_of(Reads(reference=given))) == []
    (tmp_path / file).write_text("2")
    now = fingerprint_of(Reads(reference=given))
    assert differences(before, now) == [f"{given} (parameter reference) has another content"]
    monkeypatch.setattr(map_fingerprint, "MOST_BYTES", 0)
    if file != given and not given.startswith("~"):
        found = fingerprint_of(Reads(reference=given))
        assert list(found.unstable) == [f"{given} (parameter reference)"]


def test_a_damaged_identity_is_refused():
    found = fingerprint_of(Steps()).to_json()
    assert MapFingerprint.from_json(found) == fingerprint_of_again(found)
    for wrong in (None, 3, {}, [], {"parts": {}}, {"parts": 3, "dataset": found["dataset"]}, {**found, "dataset": "x"}):
        with pytest.raises(ValueError):
            MapFingerprint.from_json(wrong)
    for kind in found["parts"]:
        with pytest.raises(ValueError):
            MapFingerprint.from_json({**found, "parts": {**found["parts"], kind: {"a": 3}}})


def fingerprint_of_again(found):
    return MapFingerprint.from_json(json.loads(json.dumps(found)))
