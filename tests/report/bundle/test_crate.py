"""A bundle is a Process Run Crate, by libraries that nobody here wrote; where two files differ first is told."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from urllib.parse import unquote

import pytest
from MDAnalysisTests.datafiles import DCD, PSF
from support import needs
from support.commands import himach as command

import himach
from himach.examples import load
from himach.report.bundle.compare import difference

VALIDATOR = Path(__file__).with_name("validator.py")
#: What a crate should have, and a bundle that is told nothing but a name has not.
NOT_TOLD = {"affiliation", "publisher"}


@pytest.fixture(scope="module")
def crate(tmp_path_factory) -> Path:
    """A bundle of two runs, one of a script in a folder with a name that addresses cannot hold as it is."""
    pytest.importorskip("rocrate", reason="pip install 'himach[test]'")
    folder = tmp_path_factory.mktemp("crate")
    (folder / "my script ü").mkdir()
    (folder / "my script ü" / "count frames.py").write_text(
        "import himach\nclass Count(himach.Analysis):\n    every: int = 2\n    words: list[str] = ['a']\n"
        "    def map(self, frame):\n        yield frame.number // self.every, 1\n"
        "    def reduce(self, key, series):\n        return len(series)\n"
    )
    himach.run([load("rmsd")(), load("radius-of-gyration")()], DCD, PSF, stop=4, out=folder / "built in")
    words = ["-t", DCD, "-s", PSF, "--stop", 5, "--cache", "off", "--out", "counted"]
    assert command("run", "my script ü/count frames.py", *words, cwd=folder).returncode == 0
    licence = ["--author", "N. N.", "--license", "https://creativecommons.org/licenses/by/4.0/", "--title", "Title"]
    command("bundle", "built in", "counted", "--out", "b.zip", *licence, cwd=folder, code=0)
    return folder / "b.zip"


def test_rocrate_reads_it(crate):
    from rocrate.rocrate import ROCrate

    read = ROCrate(crate)
    with zipfile.ZipFile(crate) as archive:
        names = set(archive.namelist()) - {"ro-crate-metadata.json"}
    assert {unquote(entity.id) for entity in read.data_entities} == names
    assert f"files{crate.parent}/my script ü/count frames.py" in names
    root = read.root_dataset
    assert root["conformsTo"].id == "https://w3id.org/ro/wfrun/process/0.5"
    assert (root["name"], root["license"].id) == ("Title", "https://creativecommons.org/licenses/by/4.0/")
    actions = read.get_by_type("CreateAction")
    assert {action.id for action in root["mentions"]} == {action.id for action in actions}
    counted = read.dereference("#runs/counted")
    values = {entity["name"]: entity["value"] for entity in counted["object"] if entity.type == "PropertyValue"}
    assert (values["Count.every"], values["Count.words"]) == (2, '["a"]')
    assert {unquote(entity.id) for entity in counted["result"]} == {"runs/counted/Count.csv", "runs/counted/run.json"}
    assert counted["instrument"]["name"] == "himach"
    versions = {entity["name"]: entity["softwareVersion"] for entity in counted["instrument"]["softwareRequirements"]}
    assert versions["python"] == sys.version.split()[0]
    record = json.loads(zipfile.ZipFile(crate).read("runs/counted/run.json"))
    assert (counted["startTime"], counted["endTime"]) == (record["times"]["start"], record["times"]["end"])
    trajectory = next(entity for entity in counted["object"] if "Trajectory" in str(entity.get("name")))
    assert trajectory["identifier"] == record["dataset"]["fingerprint"]


@pytest.mark.slow
def test_a_validator_finds_nothing_wrong(crate, tmp_path):
    *issues, count = _validated(crate, tmp_path)
    assert int(count.split()[0]) > 90
    assert [issue for issue in issues if not any(word in issue for word in NOT_TOLD)] == []


def _validated(crate: Path, folder: Path) -> list[str]:
    # An environment of its own, where it is named: the validator and import-linter ask for different versions of rich.
    python = os.environ.get("HIMACH_CRATE_VALIDATOR")
    if not python:
        needs.module("rocrate_validator")
    words = [python or sys.executable, str(VALIDATOR), str(crate), str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


TABLE = "time_ps,rmsd\n0,1.5\n2,2.5\n4,3.5\n"


def describe(tmp_path, suffix, old, new) -> str:
    old_path, new_path = tmp_path / f"then{suffix}", tmp_path / f"now{suffix}"
    for path, content in ((old_path, old), (new_path, new)):
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return difference(old_path, new_path)


@pytest.mark.parametrize(
    ("suffix", "old", "new", "words"),
    [
        (".csv", TABLE, TABLE, ""),
        (".csv", TABLE, TABLE.replace("2.5", "2.75"), "line 3, column rmsd: it was 2.5, and is 2.75"),
        (
            ".csv",
            TABLE,
            TABLE.replace("1.5", "1.6").replace("3.5", "3.5000001"),
            "line 2, column rmsd: it was 1.5, and is 1.6; 2 cells differ, by a part of 0.06 at most",
        ),
        (".csv", TABLE, TABLE.replace("rmsd", "rg"), "its columns were time_ps,rmsd, and are time_ps,rg"),
        (".csv", TABLE, TABLE + "6,4.5\n", "it had 4 lines, and has 5"),
        (".csv", "ion\nK\n", "ion\nNa\n", "line 2, column ion: it was K, and is Na"),
        (".csv", "a\n1\n", 'a\n"1"\n', "from byte 3 on of 4, and of 6 now"),
        (".csv", b"a\n\xff\n", b"a\n\xfe\n", "from byte 3 on of 4"),
        (".png", b"12345", b"12x45", "from byte 3 on of 5"),
        (".png", b"12345", b"123", "from byte 4 on of 5, and of 3 now"),
    ],
)
def test_the_first_difference(tmp_path, suffix, old, new, words):
    assert describe(tmp_path, suffix, old, new).startswith(words)
    assert bool(words) == bool(describe(tmp_path, suffix, old, new))
