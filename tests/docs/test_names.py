"""Modules, names and files that pages name are there; their sentences are plain."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FOLDERS = (ROOT, DOCS, DOCS / "analyses", ROOT / "release")
PAGES = sorted(page for folder in FOLDERS for page in folder.glob("*.md"))
DOTTED = re.compile(r"(?<![\w./-])himach(?:\.[A-Za-z_]\w*)+(?![\w/])")
IMPORTED = re.compile(r"^from (himach(?:\.\w+)*) import ([\w, ]+)", re.MULTILINE)
FILE = re.compile(r"(?<![\w./~-])(?:(?:himach|native|tests|benchmarks|examples|release|docs)/[\w./-]*\w|\.ci/[\w-]+)")
#: What looks like a name of himach: files of the user, and the host of a public repository to come.
OTHERS = {"himach.example", "himach.json", "himach.tar.gz"}
#: Words of sentences whose subject comes late.
HARD = re.compile(r"\b[Ww]hoever\b|, of which\b|\b(?:is|are) (?:meant|told)\b|so-manieth")
#: What is written there by a run, or by the build of the documentation.
MADE = ("docs/build", "docs/gallery_pages", "docs/plan-example")


def exists(dotted: str) -> bool:
    """Tell whether a dotted name can be imported, module by module, and then attribute by attribute."""
    found = importlib.import_module("himach")
    path = "himach"
    for part in dotted.split(".")[1:]:
        path += f".{part}"
        if not hasattr(found, part):
            try:
                importlib.import_module(path)
            except ImportError:
                return False
        found = getattr(found, part)
    return True


def names(text: str) -> set[str]:
    """Return the dotted names of a page, those that its examples import included."""
    imported = {f"{module}.{name.strip()}" for module, group in IMPORTED.findall(text) for name in group.split(",")}
    return {name for name in imported | set(DOTTED.findall(text)) if name not in OTHERS}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_in_pages_are_there(page):
    text = page.read_text(encoding="utf-8")
    assert [name for name in sorted(names(text)) if not exists(name)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_in_pages_are_there(page):
    named = {name for name in FILE.findall(page.read_text(encoding="utf-8")) if not name.startswith(MADE)}
    beside = [page.parent, ROOT]
    assert [name for name in sorted(named) if not any((folder / name).exists() for folder in beside)] == []


def test_names_and_files_are_found():
    pages = [page.read_text(encoding="utf-8") for page in PAGES]
    assert len(set().union(*map(names, pages))) > 20
    assert sum(len(FILE.findall(text)) for text in pages) > 20
    assert not exists("himach.comm")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_sentences_have_a_subject(page):
    """In all pages but the tutorial and the rows that are made of the first lines of files."""
    text = re.sub(r"^(### `|\| `[\w.]+`).*$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    found = HARD.findall(text) if page.name != "tutorial.md" else []
    assert found == []
