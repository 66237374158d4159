"""Commands, options and Python's names in docs/api.md: all that there are, and no others."""

from __future__ import annotations

import importlib
import inspect
import pydoc
import re
from pathlib import Path

import click
import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "api.md").read_text(encoding="utf-8")
BENCHMARKS = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
SECTION = re.compile(r"^### (.*`himach .*)\n((?:(?!##).*\n)*)", re.MULTILINE)
OPTION = re.compile(r"(?<![\w-])--?[a-z][\w-]*")

himach = importlib.import_module("himach.cli").himach


def commands(group: click.Group, words: str) -> dict[str, click.Command]:
    """Return the commands of a group, and of groups in it, by the words by which they are called."""
    found: dict[str, click.Command] = {}
    context = click.Context(group)
    for name, inner in ((name, group.get_command(context, name)) for name in group.list_commands(context)):
        if isinstance(inner, click.Group):
            found |= commands(inner, f"{words} {name}")
        elif not inner.hidden:
            found[f"{words} {name}"] = inner
    return found


_ALL = commands(himach, "himach")
#: What measures himach is told of in docs/benchmarks.md.
BENCH = [words for words in _ALL if words.startswith("himach bench ")]
EVERY = {words: command for words, command in _ALL.items() if words not in BENCH}
COMMANDS = sorted(EVERY)


def options(words: str) -> set[str]:
    """Return the options that the help of a command shows."""
    params = [one for one in EVERY[words].params if isinstance(one, click.Option) and not one.hidden]
    return {name for one in params for name in (*one.opts, *one.secondary_opts)}


def told(words: str) -> set[str]:
    """Return the options in the first column of a command's tables; in a group's, behind its row or before any."""
    found: set[str] = set()
    ours = " ".join(words.split()[:2])
    for heading, text in SECTION.findall(PAGE):
        mine = f"`{ours}`" in heading
        for cell in re.findall(r"^\| (`.*?`) \|", text, re.MULTILINE) if mine else []:
            named = re.match(r"`(himach \w+ \w+)", cell)
            mine = mine if named is None else named[1] == words or named[1] not in EVERY
            found |= set(OPTION.findall(cell)) if mine else set()
    return found


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_is_told_with_all_its_options(words):
    assert re.search(rf"^\| `{words}\b", PAGE, re.MULTILINE), f"{words} stands in no table"
    assert options(words) - told(words) == set()


def test_no_option_is_told_that_is_none():
    for heading, text in SECTION.findall(PAGE):
        known = {one for words in COMMANDS if f"`{' '.join(words.split()[:2])}`" in heading for one in options(words)}
        cells = re.findall(r"^\| (`.*?`) \|", text, re.MULTILINE)
        assert {one for cell in cells for one in OPTION.findall(cell)} - known == set(), heading


@pytest.mark.parametrize("words", BENCH)
def test_a_benchmark_is_told_where_the_page_says(words):
    assert "| `himach bench NAME` | [measure himach](benchmarks.md)" in PAGE
    assert re.search(rf"^\| `{words}\b", BENCHMARKS, re.MULTILINE), f"{words} stands in no table"


def test_options_of_all_commands_are_told():
    assert all(f"`{name}" in PAGE for name in ("himach --version", "himach COMMAND --help"))


def listing(directive: str, name: str, bare: str, members: str) -> list[str]:
    """Return the rows of what a directive puts on the page: how it is called, and the first line of its docstring."""
    rows = []
    for path in [name, *(f"{name}.{member}" for member in re.findall(r"\w+", members))]:
        thing = pydoc.locate(path)
        called = ""
        if callable(thing) and directive != "exception" and not (path == name and bare):
            signature = inspect.signature(thing)
            plain = [one.replace(annotation=one.empty) for one in signature.parameters.values() if one.name != "self"]
            called = str(signature.replace(parameters=plain, return_annotation=signature.empty))
        rows.append(
            f"| `{path.removeprefix('himach.')}{called}` | {inspect.getdoc(thing).splitlines()[0].replace('``', '`')} |"
        )
    return rows


def test_the_page_lists_in_plain_text_what_docstrings_say_at_length():
    put = re.findall(r"^\.\. auto(\w+):: ([\w.]+)(\(\))?(?:\n   :members: (.*))?$", PAGE, re.MULTILINE)
    table = "\n".join(["| in `himach` | what it is |", "| --- | --- |", *(row for one in put for row in listing(*one))])
    assert len(put) > 25
    assert table in PAGE, f"put this table into docs/api.md:\n\n{table}"
