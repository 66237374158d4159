"""What ends a read says why: no exception of ours is raised with its name for a text."""

import ast
import importlib
from pathlib import Path

import pytest

import himach
from himach.io.trajectory.messages import reason

ROOT = Path(himach.__file__).parent


def bare() -> list[tuple[str, str]]:
    """Return module and name of every exception class of himach's readers that is raised without a text."""
    found = set()
    for path in sorted(ROOT.glob("io/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Name) and node.exc.id[0].isupper():
                module = path.relative_to(ROOT.parent).with_suffix("").as_posix().replace("/", ".")
                found.add((module, node.exc.id))
    return sorted(found)


@pytest.mark.parametrize(("module", "name"), bare())
def test_an_error_raised_without_words_has_some(module, name):
    kind = getattr(importlib.import_module(module), name, None) or getattr(__import__("builtins"), name)
    assert kind.__module__ == "builtins" or " " in reason(kind())
