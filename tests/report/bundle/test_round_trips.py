"""What runs left is bundled with its code, and comes out the same where the project is gone and folders are others."""

import importlib
import json
import os
import shutil
import sys
import zipfile
from pathlib import Path

import MDAnalysis
import pytest
from click.testing import CliRunner
from MDAnalysisTests.datafiles import DCD, PSF, PDB_small
from support.commands import himach, write_analysis

import himach as package
from himach.errors import UsageError
from himach.report.bundle.archive import METADATA, Payload, extract, write_archive
from himach.report.bundle.crate import collect_contents, metadata
from himach.report.bundle.data import Inputs
from himach.report.bundle.verify import verify
from himach.report.folder import read_folder

root = importlib.import_module("himach.cli").himach

SCRIPT = """
import himach
from helper import FACTOR
from away import SHIFT

WEIGHT = 1.0

class Mean(himach.Analysis):
    "Where atoms are."
    selection: str = "name CA"
    offset: str = "offset.txt"
    base: str = ""
    def setup(self, universe):
        self.atoms_ = universe.select_atoms(self.selection)
        self.start = float(open(self.offset).read())
        with open("weight.txt") as file:  # which no parameter names
            self.weight = float(file.read())
        self.base_value = float(open(self.base).read()) if self.base else 0.0
    def map(self, frame):
        import late
        x = float(self.atoms_.positions[:, 0].astype(float).mean())
        yield frame.number, x * FACTOR * self.weight + self.start + SHIFT + late.MORE + self.base_value
    def reduce(self, key, series):
        return series.values[0]
    def plot(self, outcome, axes):
        axes.plot(outcome["key"], outcome["result"])
"""
PACKAGED = """
import himach
from ..common import scaled

class Ends(himach.Analysis):
    def map(self, frame):
        yield frame.number, scaled(float(frame.positions[0, 0]))
    def reduce(self, key, series):
        return series.values[0]
"""
FILES = {
    "project/mine.py": SCRIPT,
    "project/helper.py": "FACTOR = 2\n",
    "project/late.py": "MORE = 0.25\n",
    "project/offset.txt": "0.5\n",
    "project/weight.txt": "3.0\n",
    "library/away.py": "SHIFT = 0.125\n",
    "library/pack/__init__.py": "",
    "library/pack/common.py": "def scaled(x):\n    return 2 * x\n",
    "library/pack/inner/__init__.py": "",
    "library/pack/inner/ends.py": PACKAGED,
    "base/base.txt": "0.0625\n",
}


def done(*words, cwd: Path, **environ: str) -> str:
    run = himach(*words, cwd=cwd, **environ, code=0)
    return run.stdout


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A folder with bundles of runs, ``data`` as others have it, and nothing else of what the runs read."""
    here = tmp_path_factory.mktemp("made")
    for name, text in FILES.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(text)
    universe = MDAnalysis.Universe(str(PSF), str(DCD))
    for name, part in (("one", slice(0, 6)), ("two", slice(6, 11)), ("three", slice(20, 25))):
        (here / "sims" / name).mkdir(parents=True)
        universe.atoms.write(str(here / "sims" / name / "traj.xtc"), frames=universe.trajectory[part])
    shutil.copy(str(PSF), here / "project" / "top.psf")
    rows = [
        f"{name},../sims/{name}/traj.xtc,top.psf,{group}"
        for name, group in zip(("one", "two", "three"), "aab", strict=True)
    ]
    (here / "project" / "members.csv").write_text("\n".join(["name,trajectory,topology,group", *rows]))
    at, library = here / "project", {"PYTHONPATH": os.pathsep.join([str(here / "library"), *_path()])}
    common = ["-s", "top.psf", "--cache", "off"]
    # A parameter with an absolute path, several analyses, several files that follow one another.
    words = ["mine.py", "rmsd", "-p", "rmsd.selection=name CA", "-p", f"Mean.base={here}/base/base.txt"]
    parts = ["-t", "../sims/one/traj.xtc", "-t", "../sims/two/traj.xtc"]
    done("run", *words, *parts, *common, "-n", 2, "--out", "../mixed", cwd=at, **library)
    done("run", "pack.inner.ends:Ends", *parts[:2], *common, "--out", "../packaged", cwd=at, **library)
    over = ["--ensemble", "members.csv", "--cache", "off", "--features"]
    done("run", "mine.py", "rmsd", "-p", "rmsd.selection=name CA", *over, "--out", "../many", cwd=at, **library)
    bundled_run = himach(
        "bundle", "mixed", "packaged", "many", "--out", "all.zip", "--author", "N. N.", cwd=here, code=0
    )
    assert bundled_run.stderr.count("late.py is in it as it is now") == 1
    data = here / "data"
    data.mkdir()
    for name in ("one", "two", "three"):
        (here / "sims" / name / "traj.xtc").rename(data / f"{name}.xtc")
    (at / "top.psf").rename(data / "top.psf")
    (here / "gone").mkdir()
    for folder in ("project", "library", "base", "sims"):
        (here / folder).rename(here / "gone" / folder)
    return here


def _path() -> list[str]:
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]


def verified(words: list, cwd: Path, ranks: int = 0) -> tuple[int, list[str]]:
    """Verify in a process of its own; return the exit code and the lines."""
    run = himach("bundle", "verify", *words, *(["-n", ranks] if ranks else []), cwd=cwd)
    assert "Traceback" not in run.stderr
    return run.returncode, run.stdout.splitlines()


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize("ranks", [0, pytest.param(3, marks=pytest.mark.slow)])
def test_all_comes_out_the_same_elsewhere(made, tmp_path, ranks):
    other = tmp_path / "other.psf"
    other.write_text("PSF of another run\n")
    words = [made / "all.zip", "--ensemble", "data/*.xtc", "-s", other, "-s", "data/top.psf"]
    words += ["-t", "data/one.xtc", "-t", "data/two.xtc"]
    code, lines = verified(words, made, ranks)
    assert code == 0, lines
    assert lines[-1] == "all.zip: verified"
    with zipfile.ZipFile(made / "all.zip") as bundle:
        files = [name for name in bundle.namelist() if name.startswith("runs/") and not name.endswith("run.json")]
        scripts = [name for name in bundle.namelist() if name.endswith(".py")]
    equal = [line.split()[1] for line in lines if line.startswith("  equal ")]
    assert sorted(equal) == sorted(name.split("/", 2)[2] for name in files)
    assert {name.rpartition(".")[2] for name in equal} == {"csv", "png", "npz"}
    listed = lines[2 : 2 + len(scripts)]
    assert [line.split()[0] for line in listed] == sorted(scripts)  # before anything is run
    names = {Path(name).stem for name in scripts}
    assert names >= {"mine", "helper", "late", "away", "ends", "common"}


@pytest.mark.nightly
def test_equal_folders_make_equal_bundles(made):
    (made / "twice").mkdir(exist_ok=True)
    (made / "gone" / "project").rename(made / "project")
    for folder in ("library", "base"):
        (made / "gone" / folder).rename(made / folder)
    try:
        words = ["mixed", "packaged", "many", "--author", "N. N.", "--out"]
        done("bundle", *words, "twice/all.zip", cwd=made)
        assert (made / "twice" / "all.zip").read_bytes() == (made / "all.zip").read_bytes()
        (made / "project" / "helper.py").write_text("FACTOR = 3\n")
        refused = himach("bundle", *words, "twice/other.zip", cwd=made, code=2)
        assert "project/helper.py has changed since the run" in refused.stderr
        assert not (made / "twice" / "other.zip").exists()
        (made / "project" / "helper.py").unlink()
        refused = himach("bundle", *words, "twice/other.zip", cwd=made)
        assert (refused.returncode, "helper.py, which is not there any more" in refused.stderr) == (2, True)
        (made / "project" / "helper.py").write_text("FACTOR = 2\n")
    finally:
        for folder in ("project", "library", "base"):
            (made / folder).rename(made / "gone" / folder)


@pytest.fixture(scope="module")
def plain(made, tmp_path_factory) -> Path:
    """A folder that a run of a built-in left."""
    out = tmp_path_factory.mktemp("plain") / "out"
    rmsd = package.examples.load("rmsd")(selection="name CA")
    package.run(rmsd, made / "data" / "one.xtc", made / "data" / "top.psf", out=out, cache="off")
    return out


def bundled(folder: Path, file: Path) -> Path:
    contents = collect_contents([read_folder(folder)])
    write_archive(file, {**contents.members, METADATA: Payload.from_source(metadata(contents))})
    return file


def lines_of(bundle: Path, inputs: Inputs, **options) -> tuple[bool, list[str]]:
    lines: list[str] = []
    return verify(bundle, inputs, cache="off", log=lines.append, **options), lines


def copy(plain: Path, tmp_path: Path) -> Path:
    shutil.copytree(plain, tmp_path / "out")
    return tmp_path / "out"


def test_nothing_is_run_without_a_simulation(made, plain, tmp_path):
    equal, lines = lines_of(bundled(plain, tmp_path / "b.zip"), Inputs())
    assert equal
    assert lines[1] == "There is no code in it: its analyses are himach's, or of packages that are installed here."
    assert "--trajectory" in lines[-1]
    answer = CliRunner().invoke(root, ["bundle", "verify", str(made / "all.zip")], standalone_mode=False)
    assert (answer.return_value, "mine.py" in answer.output, "equal" in answer.output) == (0, True, False)


def test_what_differs_is_told_with_its_first_place_and_another_version(made, plain, tmp_path):
    out = copy(plain, tmp_path)
    table = (out / "rmsd.csv").read_text().splitlines()
    cells = table[3].split(",")
    table[3] = ",".join([cells[0], "9.5", *cells[2:]])
    (out / "rmsd.csv").write_text("\n".join(table) + "\n")
    record = json.loads((out / "run.json").read_bytes())
    record["versions"] |= {"numpy": "1.0", "python": "3.0.1", "MDAnalysis": "1.1"}
    record["himach"] = "0.0.1"
    (out / "run.json").write_text(json.dumps(record))
    data = Inputs([made / "data" / "one.xtc"], [made / "data" / "top.psf"])
    equal, lines = lines_of(bundled(out, tmp_path / "b.zip"), data)
    assert not equal
    assert f"  differs  rmsd.csv: line 4, column rmsd: it was 9.5, and is {cells[1]}" in lines
    assert "  equal    rmsd.png" in lines
    assert [line.split(" was ")[0] for line in lines if line.startswith("  version")] == [
        "  version  himach", "  version  python", "  version  numpy", "  version  MDAnalysis",
    ]  # fmt: skip
    assert lines[-2].startswith("  What is of another version may be why")
    assert lines[-1] == "\nb.zip: NOT verified"
    answer = CliRunner().invoke(
        root,
        ["bundle", "verify", *map(str, [tmp_path / "b.zip", "-t", data.trajectories[0], "-s", data.topologies[0]])],
        standalone_mode=False,
    )
    assert answer.return_value == 1


def test_other_simulations_are_told_apart_and_not_run(made, plain, tmp_path):
    trajectory, other, top = (made / "data" / name for name in ("one.xtc", "two.xtc", "top.psf"))
    bundle = bundled(plain, tmp_path / "b.zip")
    changed = tmp_path / "top.psf"
    changed.write_bytes(top.read_bytes() + b"\n")
    for inputs, words in (
        (
            Inputs([other], [top]),
            f"not run: {other}: another trajectory than it read, which was one.xtc of 6 frames of 3,341 a",
        ),
        (Inputs([trajectory], [changed]), f"not run: {changed}: another topology than it read, which was top.psf"),
        (Inputs([trajectory]), "not run: it read the topology top.psf: give it by --topology"),
        (Inputs(ensemble=str(made / "data" / "*.xtc")), "not run: it read one.xtc of 6 frames"),
        (Inputs([tmp_path / "none.xtc"], [top]), "not run: there is no trajectory"),
    ):
        equal, lines = lines_of(bundle, inputs)
        assert not equal
        assert [line for line in lines if line.startswith(f"  {words}")], lines
        assert not [line for line in lines if "equal " in line]
    # By content, not by name: either of several, wherever it stands.
    shutil.copy(trajectory, tmp_path / "renamed.xtc")
    assert lines_of(bundle, Inputs([other, tmp_path / "renamed.xtc"], [changed, top]))[0]


@pytest.mark.nightly
def test_runs_with_code_of_the_same_names_keep_apart(made, tmp_path):
    """One process verifies both: each run imports its own."""
    text = (
        "import himach\nfrom same import FACTOR\nclass First(himach.Analysis):\n    def map(self, frame):\n"
        "        yield frame.number, FACTOR * float(frame.positions[0, 0])\n"
        "    def reduce(self, key, series):\n        return series.values[0]\n"
    )
    data = Inputs([made / "data" / "one.xtc"], [made / "data" / "top.psf"])
    for name, factor in (("a", 2), ("b", 3)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "first.py").write_text(text)
        (tmp_path / name / "same.py").write_text(f"FACTOR = {factor}\n")
        words = ["-t", data.trajectories[0], "-s", data.topologies[0], "--cache", "off", "--out", f"out-{name}"]
        done("run", f"{name}/first.py", *words, cwd=tmp_path)
    done("bundle", "out-a", "out-b", "--out", "b.zip", cwd=tmp_path)
    for name in ("a", "b"):
        shutil.rmtree(tmp_path / name)
    before, path, modules = Path.cwd(), list(sys.path), set(sys.modules)
    equal, lines = lines_of(tmp_path / "b.zip", data)
    assert equal, lines
    assert [line for line in lines if line.startswith("runs/") or "\nruns/" in line] == [
        "\nruns/out-a (First)",
        "\nruns/out-b (First)",
    ]
    assert (Path.cwd(), sys.path) == (before, path)
    assert "same" not in sys.modules
    assert not [name for name in sys.modules.keys() - modules if "first" in name]


def test_structures_to_fit_to_are_in_it(made, tmp_path):
    trajectory, top = made / "data" / "one.xtc", made / "data" / "top.psf"
    universe = MDAnalysis.Universe(str(top), str(trajectory))
    universe.trajectory[3]
    reference = tmp_path / "reference.gro"
    universe.atoms.write(str(reference))
    there = package.examples.load("rmsd")(selection="name CA", fit="none", reference=str(PDB_small))  # in a package
    transform = [package.transformations.Fit("name CA", reference=reference)]
    package.run(there, trajectory, top, transform=transform, out=tmp_path / "out", cache="off")
    bundle = bundled(tmp_path / "out", tmp_path / "b.zip")
    reference.unlink()
    with zipfile.ZipFile(bundle) as archive:
        inside = {Path(name).name for name in archive.namelist() if name.startswith("files/")}
    assert inside == {"reference.gro", Path(PDB_small).name}
    equal, lines = lines_of(bundle, Inputs([trajectory], [top]))
    assert equal, lines


class Unnamed(package.Analysis):
    def map(self, frame):
        yield frame.number, 1

    def reduce(self, key, series):
        return 1


def test_what_cannot_be_bundled_is_refused_by_name(made, plain, tmp_path):
    by_hand = Unnamed()
    by_hand.reach = 3
    package.run(by_hand, DCD, PSF, stop=2, out=tmp_path / "hand", cache="off")
    with pytest.raises(UsageError, match=r"Unnamed cannot be bundled: self\.reach was set by hand; put its class"):
        collect_contents([read_folder(tmp_path / "hand")])
    out = copy(plain, tmp_path)
    (out / "rmsd.png").unlink()
    with pytest.raises(UsageError, match=r"lacks rmsd.png: himach run --rerun"):
        collect_contents([read_folder(out)])
    record = json.loads((out / "run.json").read_bytes())
    (out / "run.json").write_text(json.dumps({**record, "errors": ["member b failed: no"]}))
    with pytest.raises(UsageError, match=r"did not end well \(member b failed: no\)"):
        collect_contents([read_folder(out)])


def test_a_script_that_needs_what_is_not_there_is_told(made, tmp_path):
    """As when it imports a package that is not installed here: the run's error is told, and the rest goes on."""
    extract(made / "all.zip", tmp_path)
    out = tmp_path / "runs" / "mixed"
    contents = collect_contents([read_folder(_at_home(made, out, tmp_path))])
    script = next(name for name in contents.members if name.endswith("mine.py"))
    members = {**contents.members, script: Payload.from_source(b"import not_installed_anywhere\n")}
    broken = type(contents)(contents.runs, members, ())
    write_archive(tmp_path / "b.zip", {**members, METADATA: Payload.from_source(metadata(broken))})
    data = Inputs([made / "data" / "one.xtc", made / "data" / "two.xtc"], [made / "data" / "top.psf"])
    equal, lines = lines_of(tmp_path / "b.zip", data)
    assert not equal
    assert [line for line in lines if "not run" in line and "No module named 'not_installed_anywhere'" in line], lines


def _at_home(made: Path, out: Path, tmp_path: Path) -> Path:
    """Let the record of a run name the files of its project where they are now."""
    record = (out / "run.json").read_text()
    for folder in ("project", "library", "base"):
        record = record.replace(f"{made}/{folder}", f"{made}/gone/{folder}")
    (out / "run.json").write_text(record)
    return out


def test_the_code_of_a_namespace_package_is_bundled(tmp_path, monkeypatch):
    (tmp_path / "space").mkdir()
    write_analysis(tmp_path / "space" / "counting.py", "yield 1, 1")
    monkeypatch.syspath_prepend(tmp_path)
    package.run("space.counting:Count", DCD, PSF, stop=2, cache="off", out=tmp_path / "out")
    members = collect_contents([read_folder(tmp_path / "out")]).members
    assert any(name.endswith("space/counting.py") for name in members)
