"""The map of the files in docs/architecture.md: it names every file of the package, and no file that is not there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
#: Folders that the page describes as a whole.
WHOLE = ("cli", "bench")


def test_every_file_is_on_the_map():
    files = [path for kind in ("*.py", "*.pyx") for path in (ROOT / "himach").rglob(kind)]
    named = [path for path in files if path.parent.name not in WHOLE and not path.name.startswith("__")]
    assert named
    missing = [str(path.relative_to(ROOT)) for path in named if not re.search(rf"[`/]{re.escape(path.name)}`", PAGE)]
    assert not missing


def test_every_file_on_the_map_is_there():
    folders = ("himach", "examples", "native")
    there = {path.name for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()}
    named = {Path(name).name for name in re.findall(r"`([\w/]+\.(?:pyx?|h))`", PAGE)}
    assert named
    assert not named - there
