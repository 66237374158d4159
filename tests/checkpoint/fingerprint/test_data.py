"""What makes one map beside its code: the trajectory, the selection, the topology, parameters."""

import os
import re
import shutil

import MDAnalysis
import pytest
from checkpoint.fingerprint.fingerprints import (
    TOPOLOGY,
    TRAJECTORY,
    cases,
    fingerprint_of,
    fingerprint_of_script,
    text_of,
)

from himach import Analysis, examples
from himach.checkpoint import map_fingerprint
from himach.checkpoint.map_fingerprint import differences


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
    "rmsf": {},
    "rdf": {"a": "name CA", "b": "name CA"},
    "msd": {"selection": "name CA", "tau_max": 5},
    "water-residence": {"water": "name OH2 OW O", "solute": "name CA", "tau_max": 5},
    "hydrogen-bonds": {"tau_max": 5},
    "ion-permeation": {"ions": "name N", "top": "resid 20:30", "bottom": "resid 1:5", "radius": 3.0},
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_built_in_keeps_its_pairs_as_the_trajectory_grows_and_for_other_selections(name, grown):
    def fingerprint(file="short", changed=(), **options):
        analysis = examples.load(name)(**{**PARAMETERS[name], **dict(changed)})
        return fingerprint_of(analysis, [grown / f"{file}.xtc"], **options)

    short, longer = fingerprint(), fingerprint("long")
    for same in (longer, fingerprint("long", step=3), fingerprint(stop=9)):
        assert differences(short, same) == []
    assert differences(short, fingerprint("other")) == ["the trajectory has another content"]
    assert differences(longer, short) == ["the trajectory has another content"]  # it lost frames
    fitted = {"rmsd": ("positions", "superposition"), "rmsf": ("moved",)}.get(name, ())
    assert differences(short, fingerprint(start=5)) == [f"self.{what} is another after setup()" for what in fitted]
    if "tau_max" in PARAMETERS[name]:
        assert differences(short, fingerprint(changed={"tau_max": 6})) == ["tau_max 5 is now 6"]


class Steps(Analysis):
    def map(self, frame):
        yield 1, 1


#: What is said where the trajectory is longer, the first frame is another, or every other frame is left out.
SELECTION = cases(r"""
the step: | frame.step | frame.step | map: yield 1, frame.step
the number of frames: self.frames | self.frames | self.frames | map: yield 1, frame.number / len(self.frames)
the time between frames: | | dt | map: yield 1, frame.number * self.dt
the length of the trajectory: n_frames | | | map: yield 1, len(frame.universe.trajectory)
the step, by a function: | frame.step | frame.step | before: def helper(frame): return frame.step
  map:    yield 1, helper(frame)
the step, by a list of functions: | frame.step | frame.step | map: yield 1, WAYS[0](frame)
  before: def more(frame): return frame.step
          WAYS = [more]
the step, by what setup() chose: | frame.step | frame.step | before: def chosen(frame): return frame.step
  setup:  self.way = chosen | map: yield 1, self.way(frame)
any, by a made-up name: n_frames self.frames totaltime | frame.step self.frames | dt frame.step self.frames
  map:    yield 1, getattr(frame, "".join(["st", "ep"]))
the frame's number, and in reduce() all: | |
  class:  def reduce(self, key, series): return unused(self), self.dt, self.last
  setup:  self.last, first = self.frames[-1], self.frames[:0] | map: yield 1, frame.number
  before: def unused(analysis): return analysis.frames
          def helper(frame): return frame.step
a text: | | | map: yield 1, "the step of frames"
what setup() took from it: self.many after setup() | self.many after setup() | self.many after setup()
  setup:  self.many = len(self.frames) | map: yield 1, self.many
a reference structure: | self.thing after setup() | | setup: self.thing = self.ca.positions | map: yield 1, self.thing
groups: | | | setup: self.thing = [self.ca, u.atoms[3], u.residues, u.segments[0], {"a": u.atoms}]
  map:    yield 1, self.thing
an updating group: | | | setup: self.thing = u.select_atoms("around 4 name CA", updating=True)
  map:    yield 1, self.thing
the Universe, its trajectory and its frame: | | | setup: self.thing = [u, u.trajectory, u.trajectory.ts]
  map:    yield 1, self.thing
a copy of the Universe: self.thing after setup() | self.thing after setup() | | setup: self.thing = u.copy().atoms
  map:    yield 1, self.thing
another Universe: | | | setup: self.thing = MDAnalysis.Universe({topology!r}, {trajectory!r}).atoms
  map:    yield 1, self.thing
what is attached to the Universe: | universe.reference after setup() | | setup: u.reference = u.atoms.positions
  map:    yield 1, frame.universe.reference
an attribute of the topology, from the frame: | the topology |
  setup:  u.add_TopologyAttr("tempfactors", u.atoms.positions[:, 0]) | map: yield 1, 1
""")


@pytest.mark.parametrize("name", SELECTION)
def test_the_selection_counts_where_map_reads_it_and_what_setup_took_of_it(name, grown, place):
    def fingerprint(file="short", **options):
        return fingerprint_of_script(place, text_of(SELECTION[name]), trajectories=[grown / f"{file}.xtc"], **options)

    before = fingerprint()
    rest = (fingerprint("long"), fingerprint(start=2), fingerprint(step=2))
    for other, named in zip(rest, SELECTION[name]["expected"].split("|"), strict=True):
        sentences = " ".join(differences(before, other))
        short = re.sub(r"map\(\) uses (\S+), and the selection is another|is another ?", r"\1", sentences)
        assert short.split() == named.split()


def test_files_of_a_trajectory(grown, tmp_path):
    shutil.copy(grown / "short.xtc", tmp_path / "short.xtc")
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


def test_keywords_and_topology_count(grown, tmp_path):
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
    assert differences(before, guessed) == []


class Reads(Analysis):
    reference: str = ""
    several: list[str] = []  # noqa: RUF012

    def map(self, frame):
        yield 1, self.reference


@pytest.mark.parametrize(
    ("parameter", "value", "file"),
    [
        ("reference", "a.dat", "a.dat"),
        ("several", ["a.dat"], "a.dat"),
        ("reference", "~/a.dat", "a.dat"),
        ("reference", "some", "some/in/a.dat"),
        ("reference", "stem", "stem.dat"),
    ],
)
def test_files_that_parameters_name_count_by_their_content(place, monkeypatch, parameter, value, file):
    def fingerprint():
        return fingerprint_of(Reads(**{parameter: value}))

    monkeypatch.setenv("HOME", str(place))
    (place / file).parent.mkdir(parents=True, exist_ok=True)
    (place / file).write_text("1")
    before = fingerprint()
    os.utime(place / file, (1, 1))
    assert differences(before, fingerprint()) == []
    (place / file).write_text("2")
    name = f"{value if parameter == 'reference' else value[0]} (parameter {parameter})"
    assert differences(before, fingerprint()) == [f"{name} has another content"]
    monkeypatch.setattr(map_fingerprint, "MOST_BYTES", 0)  # of a folder's files, or of several of a name
    assert list(fingerprint().unstable) == [name] * (value in ("some", "stem"))
