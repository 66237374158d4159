"""The version of a source tree: at a tag and after it, in an sdist, in a tarball without git, and in mere files."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = ["release/version.py", ".git_archival.txt", ".gitattributes"]

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def git(tree, *words):
    settings = {
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@b",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@b",
    }
    done = subprocess.run(
        ["git", *words], cwd=tree, env=os.environ | settings, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def version(tree):
    done = subprocess.run([tree / "release" / "version.py"], capture_output=True, text=True, check=True, cwd="/")
    return done.stdout.strip()


def copy(target):
    for name in FILES:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target / name)
    return target


@pytest.fixture
def tree(tmp_path):
    tree = copy(tmp_path / "tree")
    git(tree, "init", "-q")
    git(tree, "add", ".")
    git(tree, "commit", "-qm", "first")
    return tree


def commit_of(tree):
    return git(tree, "rev-parse", "--short=8", "HEAD")


def archived(tree, folder):
    """Return what is unpacked from an archive of HEAD."""
    folder.mkdir()
    git(tree, "archive", "-o", f"{folder}.tar", "HEAD")
    subprocess.run(["tar", "-xf", f"{folder}.tar", "-C", folder], check=True)
    return folder


def test_before_the_first_tag(tree, tmp_path):
    expected = f"0.1.0.dev0+g{commit_of(tree)}"
    assert version(tree) == version(archived(tree, tmp_path / "archive")) == expected


def test_at_a_tag_and_after_it(tree, tmp_path):
    git(tree, "tag", "v1.2.3")
    git(tree, "tag", "elsewhere")  # another's
    assert version(tree) == version(archived(tree, tmp_path / "first")) == "1.2.3"
    for number in range(2):
        (tree / "file").write_text(f"{number}")
        git(tree, "add", ".")
        git(tree, "commit", "-qm", "more")
    expected = f"1.2.4.dev2+g{commit_of(tree)}"
    assert version(tree) == version(archived(tree, tmp_path / "second")) == expected
    git(tree, "tag", "-a", "v1.3.0", "-m", "released")
    assert version(tree) == version(archived(tree, tmp_path / "third")) == "1.3.0"


def test_changed_files_are_no_release(tree):
    git(tree, "tag", "v1.2.3")
    (tree / "new").write_text("of no matter")
    assert version(tree) == "1.2.3"
    (tree / ".gitattributes").write_text("other")
    assert version(tree) == f"1.2.4.dev0+g{commit_of(tree)}.dirty"


def test_an_sdist_keeps_what_it_was_called(tree):
    git(tree, "tag", "v1.2.3")
    (tree / "PKG-INFO").write_text("Metadata-Version: 2.4\nName: himach\nVersion: 9.8.7.dev1+gabc.dirty\n")
    assert version(tree) == "9.8.7.dev1+gabc.dirty"


def test_files_alone_do_not_know(tree, tmp_path):
    """Also within the checkout of something else, whose tags say nothing of them."""
    git(tree, "tag", "v1.2.3")
    assert version(copy(tmp_path / "files")) == version(copy(tree / "vendored")) == "0+unknown"
