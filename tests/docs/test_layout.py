"""Rooms: each folder has one subject, which it names, and few files; tests lie where the files that they test lie."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Their folders are rooms, which name their subject in an __init__.py, or in a README.md where there is no Python.
HOUSES = ("himach", "native", "benchmarks", "examples", "tests")
SOURCES = {".py", ".pyx", ".pxd", ".pxi", ".c", ".h", ".f90"}
MOST = 15
#: Folders with more files, and why.
LARGER: dict[str, str] = {
    "tests/io/server": "a file for each thing that clients, servers and those between them may do"
}
#: Folders of tests that are about no room alone.
OF_ALL = {"support", "native/power", "native/mutants"}
#: Folders that hold no code of ours: data, seeds, scripts of other tools, what a test reads.
NO_ROOMS = {"data", "golden", "golden_packed", "results", "peers", "analyses", "__pycache__"}


def folders(house: str) -> list[Path]:
    """Return a house and its rooms, but for folders that hold next to nothing, as git leaves them behind."""
    inside = sorted({path.parent for path in (ROOT / house).rglob("*") if path.is_file()} - {ROOT / house})
    rooms = [path for path in inside if not NO_ROOMS & set(path.relative_to(ROOT).parts)]
    return [ROOT / house, *(path for path in rooms if "seeds_" not in path.name)]


def sources(folder: Path) -> list[str]:
    """Return the source files of a folder that somebody has to read to know it."""
    return sorted(path.name for path in folder.iterdir() if path.suffix in SOURCES and path.name != "__init__.py")


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("house", HOUSES)
def test_a_folder_has_few_files(house):
    counts = {name(folder): len(sources(folder)) for folder in folders(house)}
    over = {folder: count for folder, count in counts.items() if count > MOST}
    assert over.keys() == {folder for folder in LARGER if folder.split("/")[0] == house}, over
    assert sum(counts.values()) > 5, "files are not found"


@pytest.mark.parametrize("house", HOUSES[:-1])
def test_a_folder_names_its_subject_in_one_line(house):
    silent = []
    for folder in folders(house):
        init, readme = folder / "__init__.py", folder / "README.md"
        if init.exists():
            words = ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))) or ""
        else:
            words = readme.read_text(encoding="utf-8") if readme.exists() else ""
        if not words.partition("\n")[0].strip("# "):
            silent.append(name(folder))
    assert not silent


def test_tests_lie_where_what_they_test_lies():
    homeless = []
    for folder in folders("tests")[1:]:
        path = folder.relative_to(ROOT / "tests")
        home = ROOT if path.parts[0] in (*HOUSES, "docs") else ROOT / "himach"
        if path.as_posix() not in OF_ALL and not (home / path).is_dir():
            homeless.append(name(folder))
    assert not homeless


def test_what_is_imported_is_installed():
    """Tests that find a file beside them do not tell that the build's lists lack it."""
    listed = {
        (build.parent / name).resolve()
        for build in (ROOT / "himach").rglob("meson.build")
        for name in re.findall(r"'([\w/]+\.py)'", build.read_text())
    }
    modules = {file for file in (ROOT / "himach").rglob("*.py") if file.name != "__init__.py"}
    assert modules <= listed, modules - listed
