"""What the registry of MDAnalysis's toolkits, and whoever cites himach, are told: complete, in form, and true."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from support import needs

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
#: Entries of the registry's template, each with its type.
REQUIRED = {
    "project_name": str,
    "authors": list,
    "maintainers": list,
    "description": str,
    "keywords": list,
    "license": str,
    "project_home": str,
    "documentation_home": str,
    "documentation_type": str,
}
OPTIONAL = {
    "install": list,
    "src_install": list,
    "import_name": str,
    "python_requires": str,
    "mdanalysis_requires": str,
    "run_tests": list,
    "test_dependencies": list,
    "project_org": str,
    "development_status": str,
    "publications": list,
    "community_home": str,
    "changelog": str,
}


@pytest.fixture
def metadata():
    text = (ROOT / "release" / "mdakits" / "metadata.yaml").read_text(encoding="utf-8")
    return needs.module("yaml").safe_load(text)


def test_metadata_are_in_the_registrys_form(metadata):
    assert metadata.keys() >= REQUIRED.keys()
    assert metadata.keys() <= REQUIRED.keys() | OPTIONAL.keys()
    for name, value in metadata.items():
        assert isinstance(value, {**REQUIRED, **OPTIONAL}[name]), name
        assert value, name
        if isinstance(value, list):
            assert all(isinstance(item, str) and item for item in value), name


def test_metadata_are_true(metadata):
    assert metadata["project_name"] == metadata["import_name"] == PROJECT["name"]
    assert metadata["license"] == PROJECT["license"]
    assert metadata["python_requires"] == PROJECT["requires-python"]
    assert f"MDAnalysis{metadata['mdanalysis_requires']}" in PROJECT["dependencies"]
    (extra,) = re.findall(r"himach\[(\w+)\]", metadata["install"][0])
    assert extra in PROJECT["optional-dependencies"]
    for name in re.findall(r"main/([\w.]+)", f"{metadata['authors']} {metadata['changelog']}"):
        assert (ROOT / name).is_file()
    assert metadata["run_tests"] == ["pytest --pyargs himach"]
    assert PROJECT["optional-dependencies"]["check"][0] in metadata["test_dependencies"][0]


def test_the_citation_is_in_form():
    needs.module("check_jsonschema")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.citation-file-format"]
    done = subprocess.run([*command, ROOT / "CITATION.cff"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_citation_is_true():
    citation = needs.module("yaml").safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["title"] == PROJECT["name"]
    assert citation["license"] == PROJECT["license"]
    assert [author["name"] for author in citation["authors"]] == [author["name"] for author in PROJECT["authors"]]
    assert "version" not in citation  # meson.build alone has it


def test_archives_are_told_the_same():
    codemeta = json.loads((ROOT / "codemeta.json").read_text(encoding="utf-8"))
    zenodo = json.loads((ROOT / ".zenodo.json").read_text(encoding="utf-8"))
    assert codemeta["name"] == zenodo["title"] == PROJECT["name"]
    assert codemeta["license"].endswith("/" + PROJECT["license"])
    assert zenodo["license"] == PROJECT["license"]
    assert codemeta["description"] == zenodo["description"] == PROJECT["description"]
    assert codemeta["keywords"] == zenodo["keywords"] == PROJECT["keywords"]
    authors = [author["name"] for author in PROJECT["authors"]]
    assert [author["name"] for author in codemeta["author"]] == authors
    assert [author["name"] for author in zenodo["creators"]] == authors
    assert f"Python {PROJECT['requires-python']}" in codemeta["softwareRequirements"]


WORKFLOWS = {
    "vendor.github-workflows": sorted((ROOT / ".github" / "workflows").glob("*.yml")),
    "vendor.dependabot": [ROOT / ".github" / "dependabot.yml"],
    "vendor.readthedocs": [ROOT / ".readthedocs.yaml"],
    "vendor.github-issue-forms": sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")),
}


@pytest.mark.parametrize("schema", WORKFLOWS)
def test_what_services_read_is_in_form(schema):
    needs.module("check_jsonschema")
    assert WORKFLOWS[schema]
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema]
    done = subprocess.run([*command, *WORKFLOWS[schema]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
