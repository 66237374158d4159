"""The version: written once, in meson.build; the newest release of the changelog and a release's tag agree with it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RELEASE = re.compile(r"^## \[?(\d+\.\d+\.\d+)\b", re.MULTILINE)


@pytest.fixture
def version() -> str:
    (found,) = re.findall(r"^  version: '(.*?)'", (ROOT / "meson.build").read_text(encoding="utf-8"), re.MULTILINE)
    return found


def test_it_is_that_of_the_newest_release_in_the_changelog(version):
    releases = RELEASE.findall((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    assert releases
    assert releases[0] == version
    assert releases == sorted(releases, key=lambda one: [int(part) for part in one.split(".")], reverse=True)


def test_it_is_that_of_the_tag_here(version):
    """A commit that is tagged as a release is that release."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("needs git and a clone")
    command = ["git", "-c", f"safe.directory={ROOT}", "tag", "--points-at", "HEAD", "--list", "v[0-9]*"]
    tags = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert tags in ([], [f"v{version}"])
