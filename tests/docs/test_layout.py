"""Rooms: a folder has one subject, which it names, and few files; tests lie beside what they test; names are nouns."""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Their folders are rooms, which name their subject in an __init__.py, or in a README.md where there is no Python.
HOUSES = ("himach", "native", "benchmarks", "examples", "tests")
SOURCES = {".py", ".pyx", ".pxd", ".pxi", ".c", ".h", ".f90"}
LEAST, MOST = 5, 15
#: Folders with fewer files or more, and why: words of the first line of their __init__.py or README.md.
OTHERS: dict[str, str] = {
    "benchmarks": "the programs of ``himach bench``, the tools beside it, and the last results",
    "himach/io/trajectories/h5md": "groups of arrays in an HDF5 file",
    "himach/io": "everything that touches a disk or a socket",
    "himach/io/trajectories/urls": "Files by URL, read by ranges",
    "himach/ranks/slurm": "Ranks in a SLURM job",
    "himach/rows": "Tables with one row per frame",
    "himach/kernels": "Geometry of one frame at the speed of the machine, for any map()",
    "himach/tests": "Tests that come with himach",
    "native": "the frame store of a node, its server, and pushing to it",
    "native/xtc": "decoding and encoding them",
    "native/examples": "`push.c` in C, `push.f90` in Fortran",
    "native/assemble": "a floor of its own between the network and the server",
}
#: Folders of tests that are about no room alone, or about a part of one.
OF_ALL = {"support", "native/power", "native/mutants", "checkpoint/fingerprint"}
#: Folders that hold no code of ours: data, seeds, scripts of other tools, what a test reads.
NO_ROOMS = {"data", "golden", "golden_packed", "results", "peers", "analyses", "__pycache__"}
#: Room -> lines of source that it may have. A merge lowers a figure; none is raised.
BUDGETS: dict[str, int] = {
    "himach": 3618,
    "himach/checkpoint": 1479,
    "himach/cli": 1321,
    "himach/conversion": 1177,
    "himach/engine": 4724,
    "himach/io": 72,
    "himach/io/datasets": 3739,
    "himach/io/push": 933,
    "himach/io/server": 1040,
    "himach/io/store": 2079,
    "himach/io/trajectories": 4430,
    "himach/io/universe": 990,
    "himach/kernels": 5908,
    "himach/mdanalysis": 916,
    "himach/mount": 804,
    "himach/output": 2475,
    "himach/planning": 1129,
    "himach/ranks": 3254,
    "himach/report": 2175,
    "himach/rows": 184,
    "himach/runner": 4902,
    "himach/staging": 1275,
    "himach/tests": 222,
    "himach/uncertainty": 1317,
    "himach/zazen": 956,
    "native": 546,
    "native/assemble": 538,
    "native/base": 1163,
    "native/codec": 1284,
    "native/examples": 94,
    "native/fuzz": 397,
    "native/net": 2539,
    "native/read": 1331,
    "native/segments": 1719,
    "native/server": 2156,
    "native/store": 2046,
    "native/write": 1530,
    "native/xtc": 654,
}

#: Participles and pronouns; a noun in their place tells what there is.
WORDS = {
    "asked", "begin", "ends", "found", "given", "held", "holding", "look", "of", "one", "others", "said", "seen",
    "settle", "shown", "since", "some", "told", "wanted",
}  # fmt: skip
#: House -> names that are such a word. Figures only fall.
CEILINGS = {"himach": 246, "native": 39, "tests": 2083}
#: Comments and texts of Cython and C.
TEXTS = re.compile(r'"""(?:.|\n)*?"""|/\*(?:.|\n)*?\*/|//.*|#(?!\w).*|"(?:\\.|[^"\n])*"|\'(?:\\.|[^\'\n])*\'')


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


def first_line(folder: Path) -> str:
    """Return the line in which a folder says what it is."""
    init, readme = folder / "__init__.py", folder / "README.md"
    if init.exists():
        words = ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))) or ""
    else:
        words = readme.read_text(encoding="utf-8") if readme.exists() else ""
    return words.partition("\n")[0].strip("# ")


@pytest.mark.parametrize("house", HOUSES[:-1])
def test_a_folder_has_five_to_fifteen_files_or_says_why_not(house):
    counts = {name(folder): len(sources(folder)) for folder in folders(house)}
    rest = {folder: count for folder, count in counts.items() if not LEAST <= count <= MOST}
    named = {folder: why for folder, why in OTHERS.items() if folder.split("/")[0] == house}
    assert rest.keys() == named.keys(), rest
    assert [folder for folder, why in named.items() if not why or why not in first_line(ROOT / folder)] == []
    assert sum(counts.values()) > 5, "files are not found"


def test_a_folder_of_tests_has_at_most_fifteen_files():
    counts = {name(folder): len(sources(folder)) for folder in folders("tests")}
    assert {folder for folder, count in counts.items() if count > MOST} == set()


@pytest.mark.parametrize("house", HOUSES[:-1])
def test_a_folder_names_its_subject_in_one_line(house):
    assert [name(folder) for folder in folders(house) if not first_line(folder)] == []


def test_tests_lie_where_what_they_test_lies():
    homeless = []
    for folder in folders("tests")[1:]:
        path = folder.relative_to(ROOT / "tests")
        home = ROOT if path.parts[0] in (*HOUSES, "docs") else ROOT / "himach"
        if path.as_posix() not in OF_ALL and not (home / path).is_dir():
            homeless.append(name(folder))
    assert not homeless


def room_of(file: Path) -> str:
    """Return the room that a file's lines count for: a folder of himach, of himach/io or of native, or the root."""
    parts = file.relative_to(ROOT).parts[:-1]
    return "/".join(parts[: 3 if parts[:2] == ("himach", "io") else 2])


def test_no_room_grows():
    sizes: dict[str, int] = {}
    for file in sorted(path for house in ("himach", "native") for path in (ROOT / house).rglob("*")):
        if file.suffix in SOURCES | {".pyi"}:
            room = room_of(file)
            sizes[room] = sizes.get(room, 0) + len(file.read_text(encoding="utf-8").splitlines())
    assert {room: size for room, size in sizes.items() if size > BUDGETS.get(room, 0)} == {}
    assert BUDGETS.keys() == sizes.keys()


def identifiers(path: Path) -> list[str]:
    """Return the names in a source file, each as often as it is there."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return re.findall(r"[A-Za-z_]\w*", TEXTS.sub(" ", text))
    return [
        token.string for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type == tokenize.NAME
    ]


@pytest.mark.parametrize("house", CEILINGS)
def test_names_are_nouns(house):
    files = [path for path in (ROOT / house).rglob("*") if path.suffix in {".py", ".pyx", ".pyi", ".pxi", ".c", ".h"}]
    counts = dict.fromkeys(sorted(WORDS), 0)
    for name in (name.strip("_") for path in files for name in identifiers(path)):
        if name in counts:
            counts[name] += 1
    assert len(files) > 50, "files are not found"
    assert sum(counts.values()) <= CEILINGS[house], counts
