#!/usr/bin/env python3
"""Print the version of this source tree: what tags of git say of it, which meson.build asks for.

At the tag v1.2.3 it is 1.2.3; seven commits later 1.2.4.dev7+g0123abcd; before the first tag 0.1.0.dev0+g0123abcd; and
".dirty" is added where files differ from the commit. An sdist has it in its PKG-INFO; a tarball that `git archive`
made, in .git_archival.txt; a copy of files alone does not know it: 0+unknown.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FIRST = "0.1.0"  # what is worked on until there is a tag
UNKNOWN = "0+unknown"
DESCRIBED = re.compile(r"v(\d+)\.(\d+)\.(\d+)(?:-(\d+)-g[0-9a-f]+)?$")


def version() -> str:
    """Return the version, by the first of these that knows it."""
    return from_sdist() or from_git() or from_archive() or UNKNOWN


def from_sdist() -> str | None:
    """Return what the sdist was called, so that the wheel made of it is called the same."""
    try:
        lines = (ROOT / "PKG-INFO").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return None
    return next((line.removeprefix("Version: ") for line in lines if line.startswith("Version: ")), None)


def from_git() -> str | None:
    """Return what git says, if this is a checkout and no folder within another one's."""
    if not (ROOT / ".git").exists():
        return None
    commit = git("rev-parse", "--short=8", "HEAD")
    if not commit:
        return None
    dirty = bool(git("status", "--porcelain", "--untracked-files=no"))
    return told(git("describe", "--tags", "--match", "v[0-9]*", "--abbrev=8"), commit, dirty)


def from_archive() -> str | None:
    """Return what `git archive` wrote for git."""
    try:
        lines = (ROOT / ".git_archival.txt").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return None
    described, commit = (line.partition(":")[2].strip() for line in lines)
    return None if "$" in commit else told(described, commit[:8], False)


def git(*words: str) -> str:
    """Return what a command of git prints; nothing if it fails, or there is no git."""
    # Whoever builds may be another user than the owner of the checkout, as in a container.
    command = ["git", "-c", f"safe.directory={ROOT}", *words]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def told(described: str, commit: str, dirty: bool) -> str:
    """Return the version of a commit that `git describe` describes so."""
    found = DESCRIBED.match(described)
    if found is None:
        return f"{FIRST}.dev0+g{commit}{'.dirty' * dirty}"
    major, minor, patch, distance = found.groups()
    if not distance and not dirty:
        return f"{major}.{minor}.{patch}"
    return f"{major}.{minor}.{int(patch) + 1}.dev{distance or 0}+g{commit}{'.dirty' * dirty}"


if __name__ == "__main__":
    print(version())
