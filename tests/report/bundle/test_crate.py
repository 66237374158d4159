"""A bundle is a Process Run Crate: libraries that nobody here wrote read it and find nothing wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from MDAnalysisTests.datafiles import DCD, PSF
from support import needs
from support.commands import himach as command

import himach
from himach.examples import load

pytest.importorskip("rocrate", reason="pip install 'himach[test]'")

VALIDATOR = Path(__file__).with_name("validator.py")
#: What a crate should have, and a bundle that is told nothing but a name has not.
NOT_TOLD = {"affiliation", "publisher"}


@pytest.fixture(scope="module")
def crate(tmp_path_factory) -> Path:
    """A bundle of two runs, one of a script in a folder with a name that addresses cannot hold as it is."""
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
    from urllib.parse import unquote

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
