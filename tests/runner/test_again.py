"""`himach run --rerun run.json` leaves the files of that run, and says what is not as it was then."""

import json
import shutil
import sys
from pathlib import Path

import MDAnalysis
import numpy as np
import pytest
from MDAnalysisTests.datafiles import DCD, PSF
from support.commands import DATA, himach, run_python, same_files, write_analysis

import himach as package
from himach.runner.run_record import find_source

SCRIPT = """
import himach
from helper import FACTOR

class Largest(himach.Analysis):
    name = "largest"
    keep: float = float("inf")
    def map(self, frame):
        yield 0, 0.0
    def reduce(self, key, series):
        yield "largest", min(self.keep, max(value for _, value in series))

class Path(himach.Analysis):
    "How far atoms go."
    selection: str = "name CA"
    reference: str | None = None
    then = Largest
    def setup(self, universe):
        self.atoms_ = universe.select_atoms(self.selection)
        self.offset = float(open(self.reference).read()) if self.reference else 0.0
    def map(self, frame):
        for atom, place in zip(self.atoms_.indices.tolist(), self.atoms_.positions):
            yield atom % 7, float(place[0]) * FACTOR + self.offset
    def reduce(self, key, series):
        yield 0, max(value for _, value in series)

class Count(himach.Analysis):
    every: int = 1
    words: list[str] = []
    def map(self, frame):
        yield frame.number // self.every, 1
    def reduce(self, key, series):
        return len(series)
"""
SCRIPT = SCRIPT.replace('yield "largest", min', "return min")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a script of two analyses, its helper, a file that a parameter names, and two trajectories."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "mine.py").write_text(SCRIPT)
    (folder / "helper.py").write_text("FACTOR = 2\n")
    (folder / "offset.txt").write_text("0.5\n")
    universe = MDAnalysis.Universe(str(PSF), str(DCD))
    for name, part in (("a.xtc", slice(0, 6)), ("b.xtc", slice(6, 11))):
        universe.atoms.write(str(folder / name), frames=universe.trajectory[part])
    shutil.copy(str(PSF), folder / "top.psf")
    return folder


def record(out: Path) -> dict:
    return json.loads((out / "run.json").read_bytes())


def done(*words, cwd: Path | None = None) -> str:
    """Run himach, which must end well; return what it said."""
    return himach(*words, cwd=cwd, code=0).stderr


def test_a_record_tells_what_was_asked_for_and_by_what(project, tmp_path):
    words = ["run", "mine.py:Path", "-t", "a.xtc", "-t", "b.xtc", "-s", "top.psf", "--universe", "dt=2"]
    words += ["--start", 1, "--step", 2, "-p", "reference=offset.txt", "--cache", "off", "--out", "out", "-n", 2]
    done(*words, cwd=project)
    details = record(project / "out")
    assert details["trajectory"] == [str(project / "a.xtc"), str(project / "b.xtc")]
    assert details["topology"] == str(project / "top.psf")
    assert (details["start"], details["stop"], details["step"], details["universe"]) == (1, None, 2, {"dt": 2})
    assert details["command"] == ["himach", *map(str, words)]
    assert details["directory"] == str(project)
    assert details["code_folders"] == [str(project)]
    assert sorted(details["digests"]) == [
        str(project / name) for name in ("helper.py", "mine.py", "offset.txt", "top.psf")
    ]
    assert details["analyses"][0]["source"] == f"{project}/mine.py:Path"
    assert details["versions"]["numpy"] == np.__version__
    assert details["versions"]["python"] == sys.version.split()[0]
    assert "MPI" in details["versions"]["MPI"]
    assert details["date"] == details["times"]["start"][:10]
    assert details["times"]["start"] < details["times"]["end"]
    assert details["warnings"] == []


def test_a_built_in_is_repeated_from_another_folder(project, tmp_path):
    words = ["-t", "a.xtc", "-s", "top.psf", "--stop", 4, "-p", "selection=name CA", "--universe", "dt=0.1"]
    words += ["--pairs", "kept", "--reuse", "never", "--units"]
    done("run", "rmsd", *words, "--out", "out", cwd=project)
    other = tmp_path / "other"
    other.mkdir()
    again = done("run", "--rerun", project / "out" / "run.json", "--out", "out", cwd=other)
    same_files(project / "out", other / "out")
    assert (other / "out" / "rmsd.csv").read_text().startswith("time_ps,rmsd (Å)\n")
    assert "warning" not in again
    first, second = record(project / "out"), record(other / "out")
    assert (first["pairs_directory"], first["reuse"]) == (str(project / "kept"), "never")
    same = ("analyses", "dataset", "trajectory", "topology", "universe", "stop", "digests", "versions", "ranks")
    for name in (*same, "pairs_directory", "reuse"):
        assert first[name] == second[name], name


@pytest.mark.slow
def test_several_analyses_chains_files_and_ranks_are_repeated(project, tmp_path):
    words = ["mine.py:Path", "mine.py:Count", "rmsd", "-t", "a.xtc", "-t", "b.xtc", "-s", "top.psf", "-n", 2]
    words += ["-p", "Path.reference=offset.txt", "-p", 'Count.words=["a,b", "c"]', "-p", "Count.every=3"]
    done("run", *words, "-p", "rmsd.selection=name CA", "--out", "out", cwd=project)
    assert record(project / "out")["analyses"][0]["then"]["parameters"] == {"keep": "Infinity"}
    done("run", "--rerun", project / "out", "--out", tmp_path / "two")
    assert record(tmp_path / "two")["ranks"] == 2
    same_files(project / "out", tmp_path / "two")
    # The repetition can be repeated, with options of its own.
    done("run", "--rerun", "two", "--out", "three", "-n1", "--cache", "off", cwd=tmp_path)
    assert record(tmp_path / "three")["ranks"] == 1
    assert record(tmp_path / "three")["cache"] == "off"
    same_files(project / "out", tmp_path / "three")
    # Some of what was asked for can be another.
    done("run", "--rerun", "two", "--out", "four", "-n1", "-p", "Count.every=2", "--stop", 5, cwd=tmp_path)
    four = record(tmp_path / "four")
    assert (four["frames"], four["analyses"][1]["parameters"]) == (5, {"every": 2, "words": ["a,b", "c"]})


@pytest.mark.nightly
def test_a_dataset_by_its_name_is_repeated(project, tmp_path):
    store = tmp_path / "store"
    done("stage", "a.xtc", "-s", "top.psf", "--dataset", "mine", "--cache", store, cwd=project)
    done("run", "rmsd", "-t", "mine", "--cache", store, "-p", "selection=name CA", "--out", "out", cwd=project)
    assert record(project / "out")["trajectory"] == ["mine"]
    done("run", "--rerun", project / "out", "--out", tmp_path / "two")
    same_files(project / "out", tmp_path / "two")
    # So is a trajectory that went away, by the path that it had.
    done("run", "rmsd", "-t", "b.xtc", "-s", "top.psf", "--cache", store, "--out", "b", cwd=project)
    (project / "b.xtc").unlink()
    done("run", "rmsd", "-t", "b.xtc", "-s", "top.psf", "--cache", store, "--out", "b", cwd=project)
    done("run", "--rerun", project / "b", "--out", tmp_path / "three")
    same_files(project / "b", tmp_path / "three")


@pytest.mark.nightly
def test_what_is_not_as_it_was_is_said(project, tmp_path):
    words = ["mine.py:Path", "-t", "a.xtc", "-s", "top.psf", "--out", "out", "--cache", "off"]
    done("run", *words, cwd=project)
    (project / "helper.py").write_text("FACTOR = 3\n")
    shutil.copy(project / "b.xtc", project / "a.xtc")
    changed = record(project / "out")
    changed["versions"]["numpy"] = "1.0"
    (project / "out" / "run.json").write_text(json.dumps(changed))
    again = done("run", "--rerun", project / "out", "--out", tmp_path / "two")
    for words in (f"{project}/helper.py has changed", "numpy was 1.0", f"{project}/a.xtc had 6 frames, and has 5"):
        assert f"himach: warning: {words}" in again
        assert any(words in details for details in record(tmp_path / "two")["warnings"])
    assert "mine.py has changed" not in again
    (project / "mine.py").unlink()
    gone = himach("run", "--rerun", project / "out")
    assert (gone.returncode, "mine.py" in gone.stderr) == (2, True)


def test_what_only_another_rank_warns_of_is_in_the_record(project):
    warn = "warnings.warn(f'frame {frame.number} is odd')\nyield 1, 1"
    write_analysis(project / "warns.py", warn, before="import warnings")
    done("run", "warns.py", "-t", "a.xtc", "-s", "top.psf", "--out", "out", "-n", 3, cwd=project)
    assert {f"frame {number} is odd" for number in range(6)} <= set(record(project / "out")["warnings"])


def test_words_that_do_not_go_together_are_refused(project):
    done("run", "rmsd", "-t", "a.xtc", "-s", "top.psf", "-p", "selection=name CA", "--out", "out", cwd=project)
    refused = himach("run", "rmsd", "--rerun", "out", cwd=project)
    assert (refused.returncode, "leave rmsd out" in refused.stderr) == (2, True)
    several = {**record(project / "out"), "nodes": 2, "ranks": 64}
    (project / "run.json").write_text(json.dumps(several))
    refused = himach("run", "--rerun", "run.json", cwd=project)
    assert (refused.returncode, "64 ranks on 2 nodes" in refused.stderr) == (2, True)
    for lacking in (["run", "rmsd"], ["run", "-t", DCD]):
        refused = himach(*lacking)
        assert (refused.returncode, "Missing" in refused.stderr) == (2, True)


class Counted(package.Analysis):
    every: int = 1

    def map(self, frame):
        yield frame.number // self.every, 1

    def reduce(self, key, series):
        return len(series)


class Own(Counted):
    def __init__(self, every):
        super().__init__(every=every)


def test_a_run_from_python_is_repeated_where_a_name_leads_to_its_analysis(tmp_path, monkeypatch):
    (tmp_path / "counting.py").write_text(
        "import himach\nclass C(himach.Analysis):\n    every: int = 1\n    def map(self, frame):\n"
        "        yield frame.number // self.every, 1\n    def reduce(self, key, series):\n        return len(series)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    import counting

    analysis = counting.C(every=np.int64(7))
    for out in ("one", "two"):  # an instance may run twice
        result = package.run(analysis, DCD, PSF, universe={"dt": np.float64(0.5)}, stop=30, out=tmp_path / out)
    assert result.record["files"] == ["C.csv"]
    done("run", "--rerun", tmp_path / "two", "--out", tmp_path / "three")
    same_files(tmp_path / "one", tmp_path / "three")


@pytest.mark.nightly
def test_what_no_name_leads_to_is_refused_by_name(tmp_path):
    by_hand = Counted()
    by_hand.reach = 3
    chained = Counted()
    chained.then = Counted()
    local = type("Local", (Counted,), {})
    for analysis, why in ((by_hand, "self.reach"), (chained, "stages"), (Own(1), "__init__"), (local(), "function")):
        obtained = find_source(analysis)
        assert obtained.spec is None
        assert why in obtained.reason
    package.run(by_hand, DCD, PSF, stop=3, out=tmp_path)
    refused = himach("run", "--rerun", tmp_path, code=2)
    assert "Counted cannot be repeated from a record: self.reach was set by hand" in refused.stderr
    program = tmp_path / "program.py"
    call = f"himach.run(Count(), {DATA[1]!r}, {DATA[3]!r}, out={str(tmp_path / 'by')!r})"
    program.write_text(SCRIPT.replace("from helper import FACTOR", "FACTOR = 1") + f"\n{call}\n")
    run_python(program, check=True)
    details = record(tmp_path / "by")
    assert details["command"] == [str(program)]
    refused = himach("run", "--rerun", tmp_path / "by")
    assert (refused.returncode, f"the program {program}" in refused.stderr) == (2, True)
    package.run(Counted(), DCD, PSF, stop=3, out=tmp_path, universe={"guess_bonds": False, "dt": np.float64(2)})
    assert record(tmp_path)["universe"] == {"guess_bonds": False, "dt": 2}


@pytest.mark.nightly
def test_frames_by_number_are_repeated_or_chosen_anew(project):
    words = ["run", "mine.py:Count", "-t", "a.xtc", "-s", "top.psf", "--cache", "off", "--frames", "0,2-3,5"]
    done(*words, "--out", "out", cwd=project)
    assert (record(project / "out")["selected"], record(project / "out")["frames"]) == ("0,2-3,5", 4)
    done("run", "--rerun", "out", "--out", "again", cwd=project)
    same_files(project / "out", project / "again")
    assert record(project / "again")["selected"] == "0,2-3,5"
    done("run", "--rerun", "out", "--out", "other", "--frames", "1,4", cwd=project)
    assert record(project / "other")["selected"] == "1,4"
    done("run", "--rerun", "out", "--out", "sliced", "--stop", 2, cwd=project)
    assert [record(project / "sliced")[name] for name in ("selected", "stop", "frames")] == [None, 2, 2]
    assert "frames cannot be given with start" in himach(*words, "--start", 1, cwd=project, code=2).stderr


@pytest.mark.nightly
def test_a_run_over_a_universe_is_repeated_from_its_files_and_a_change_of_its_topology_is_told(project):
    universe = MDAnalysis.Universe(str(project / "top.psf"), str(project / "a.xtc"))
    rmsd = package.examples.load("rmsd")
    out = project / "out"
    package.run(rmsd, universe, out=out, cache="off")
    assert "not that of the Universe" not in done("run", "--rerun", out, "--out", project / "again")
    same_files(out, project / "again")
    universe.atoms[0].name = "X"
    package.run(rmsd, universe, out=out, cache="off")
    assert "top.psf is not that of the Universe of that run" in done("run", "--rerun", out, "--out", project / "again")
