"""docs/architecture.md: its map is made of the files, its questions are answered by files that are there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_the_map_is_up_to_date():
    command = [sys.executable, ROOT / ".ci" / "file-map", "--check"]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_questions_are_answered_by_files_that_are_there():
    answers = PAGE[PAGE.index("## Where is ...?") : PAGE.index("## The way of a frame")]
    named = re.findall(r"`((?:himach|native)/[\w/]+\.\w+)`", answers)
    assert len(named) >= 10
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_what_is_read_before_a_frame_is_short():
    spine = PAGE[PAGE.index("### From `himach run`") : PAGE.index("## The way of a frame")]
    assert 10 < len(re.findall(r"^\| `", spine, re.MULTILINE)) <= 25


def test_few_words_are_its_own():
    words = PAGE[PAGE.index("## Words") : PAGE.index("## Files in reading order")]
    assert 10 < len(re.findall(r"^\| (?!word |---)", words, re.MULTILINE)) <= 20
