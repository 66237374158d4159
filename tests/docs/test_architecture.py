"""The map of the files in docs/architecture.md: each room's section names every file of the room, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
KINDS = {".py", ".pyx", ".pxd", ".pxi", ".c", ".h", ".f90"}
HEADING = re.compile(r"^### `([\w/]+)/`: .+$", re.MULTILINE)


def rooms() -> dict[str, str]:
    """Return the text of each room's section."""
    found = list(HEADING.finditer(PAGE))
    ends = [match.start() for match in found[1:]] + [PAGE.index("## Who owns which buffer")]
    return {match[1]: PAGE[match.end() : end] for match, end in zip(found, ends, strict=True)}


def files_of(room: str) -> set[str]:
    files = [path for path in (ROOT / room).iterdir() if path.suffix in KINDS and not path.name.startswith("__")]
    return {path.name for path in files}


def folders() -> list[str]:
    tops = [ROOT / name for name in ("himach", "native", "examples", "benchmarks")]
    every = [folder for top in tops for folder in (top, *top.rglob("*")) if folder.is_dir()]
    return sorted(str(folder.relative_to(ROOT)) for folder in every if files_of(str(folder.relative_to(ROOT))))


@pytest.mark.parametrize("room", folders())
def test_every_file_is_on_the_map(room):
    if room == "examples/data":
        assert "`data/make_data.py`" in rooms()["examples"]
        return
    named = re.findall(r"`([\w.]+\.(?:pyx|pxd|pxi|py|f90|c|h))`", rooms()[room].split("\n\n### ")[0])
    in_first_column = {
        name for name in named if re.search(rf"^\| [^|]*`{re.escape(name)}`", rooms()[room], re.MULTILINE)
    }
    assert in_first_column == files_of(room)


def test_every_room_on_the_map_is_there():
    assert [room for room in rooms() if not (ROOT / room).is_dir()] == []


def test_questions_are_answered_by_files_that_are_there():
    answers = PAGE[PAGE.index("## Where is ...?") : PAGE.index("## The way of a frame")]
    named = re.findall(r"`((?:himach|native)/[\w/]+\.\w+)`", answers)
    assert len(named) >= 10
    assert [name for name in named if not (ROOT / name).is_file()] == []
