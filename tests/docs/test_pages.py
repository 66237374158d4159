"""The documentation: pages and names in them, links, options, the gallery, what others are said to do."""

import importlib
import inspect
import pydoc
import re
import statistics
import subprocess
import sys
from pathlib import Path

import click
import pytest
from support import needs
from support.ranks import clean_environment

from himach.examples import BUILTINS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_the_list_of_files_names_every_subject():
    listed = subprocess.run([sys.executable, ROOT / ".ci" / "file-map"], capture_output=True, text=True, check=False)
    assert listed.returncode == 0, listed.stderr
    assert len(re.findall(r"^\| `", listed.stdout, re.MULTILINE)) > 400


def test_the_map_is_short():
    spine = PAGE[PAGE.index("### From `himach run`") : PAGE.index("## The way of a frame")]
    words = PAGE[PAGE.index("## Words") :]
    assert len(PAGE.splitlines()) <= 150
    assert 10 < len(re.findall(r"^\| `", spine, re.MULTILINE)) <= 22
    assert 10 < len(re.findall(r"^\| (?!word |---)", words, re.MULTILINE)) <= 20


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
    result = importlib.import_module("himach")
    path = "himach"
    for part in dotted.split(".")[1:]:
        path += f".{part}"
        if not hasattr(result, part):
            try:
                importlib.import_module(path)
            except ImportError:
                return False
        result = getattr(result, part)
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_sentences_have_a_subject(page):
    """In all pages but the tutorial and the rows that are made of the first lines of files."""
    text = re.sub(r"^(### `|\| `[\w.]+`).*$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    result = HARD.findall(text) if page.name != "tutorial.md" else []
    assert result == []


#: Parts of a page without sentences: its head, code, rows of tables, headings, comments.
NO_PROSE = re.compile(r"\A---\n.*?^---$|^( *)```.*?^\1```|^ *\|[^\n]*$|^#[^\n]*$|<!--.*?-->", re.MULTILINE | re.DOTALL)
MAX_WORDS, MAX_LONG_PART, MAX_MEDIAN_WORDS = 30, 0.02, 16


def sentence_lengths(page: Path) -> list[int]:
    """Return the words of each sentence of a page; an item of a list ends a sentence."""
    text = re.sub(r"\]\([^)]*\)", "]", NO_PROSE.sub("\n\n", page.read_text(encoding="utf-8")))
    blocks = re.split(r"\n\s*\n|^ *(?:[-*]|\d+\.) ", text, flags=re.MULTILINE)
    sentences = [sentence for block in blocks for sentence in re.split(r"(?<=[.!?])\s+", block)]
    return [words for sentence in sentences if (words := len(re.findall(r"\S*\w\S*", sentence))) > 1]


def test_sentences_are_short():
    docs = [words for page in sorted(DOCS.glob("*.md")) for words in sentence_lengths(page)]
    root = [
        words for name in ("README", "CONTRIBUTING", "CHANGELOG") for words in sentence_lengths(ROOT / f"{name}.md")
    ]
    assert len(docs) > 1000
    assert statistics.median(docs) <= MAX_MEDIAN_WORDS
    assert sum(words > MAX_WORDS for words in docs + root) <= MAX_LONG_PART * len(docs + root)


LINKS_FOLDERS = (".", "docs", "docs/analyses", "release", "examples", "benchmarks", "native")
LINKS_PAGES = sorted(page.relative_to(ROOT) for folder in LINKS_FOLDERS for page in (ROOT / folder).glob("*.md"))
LINKS_MADE = ("gallery_pages/", "plan-example/")  # by the build of the documentation
FENCED = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and MyST make them."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    titles = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title) for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)]
    slugs = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
    return {*slugs, *(f"{slug}-{slugs[:i].count(slug)}" for i, slug in enumerate(slugs) if slug in slugs[:i])}


@pytest.mark.parametrize("page", LINKS_PAGES, ids=str)
def test_links_of_files_lead_to_files_and_headings(page):
    text = FENCED.sub("", (ROOT / page).read_text(encoding="utf-8"))
    text = re.sub(r"`[^`\n]*`", "", text)
    faults = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"\w+:", link) or link.startswith(LINKS_MADE):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            faults.append(link)
    assert not faults


def check(folder: Path) -> list[str]:
    done = subprocess.run([sys.executable, ROOT / ".ci" / "links", folder], capture_output=True, text=True, check=False)
    assert done.returncode == (1 if done.stderr else 0)
    return done.stderr.splitlines()


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ('<a href="two.html">', "one.html: there is no two.html"),
        ('<a href="#b">', "one.html: there is no anchor #b"),
        ('<a href="one.html#b">', "one.html: there is no anchor one.html#b"),
        ('<img src="picture.png">', "one.html: there is no picture.png"),
        ('<script src="https://example.org/x.js">', "one.html: <script> is fetched from https://example.org/x.js"),
        ('<link href="//example.org/x.css">', "one.html: <link> is fetched from //example.org/x.css"),
        ('<img src="http://example.org/x.png">', "one.html: <img> is fetched from http://example.org/x.png"),
    ],
)
def test_a_link_that_leads_nowhere_or_elsewhere_is_named(tmp_path, line, fault):
    (tmp_path / "one.html").write_text(f'<p id="a"></p>{line}')
    assert check(tmp_path) == [fault]


@pytest.mark.nightly
@pytest.mark.parametrize("page", sorted((DOCS / "gallery" / "others").glob("plot_*.py")), ids=lambda page: page.stem)
def test_ranks_give_what_the_package_gives_alone(page, tmp_path):
    needs.module(page.stem.removeprefix("plot_"))
    environment = {**clean_environment(), "MPLBACKEND": "agg", "HIMACH_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(page)],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


OPTIONS_PAGE = (DOCS / "api.md").read_text(encoding="utf-8")
BENCHMARKS = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
SECTION = re.compile(r"^### (.*`himach .*)\n((?:(?!##).*\n)*)", re.MULTILINE)
OPTION = re.compile(r"(?<![\w-])--?[a-z][\w-]*")

himach = importlib.import_module("himach.cli").himach


def commands(group: click.Group, words: str) -> dict[str, click.Command]:
    """Return the commands of a group, and of groups in it, by the words by which they are called."""
    result: dict[str, click.Command] = {}
    context = click.Context(group)
    for name, inner in ((name, group.get_command(context, name)) for name in group.list_commands(context)):
        if isinstance(inner, click.Group):
            result |= commands(inner, f"{words} {name}")
        elif not inner.hidden:
            result[f"{words} {name}"] = inner
    return result


_ALL = commands(himach, "himach")
#: What measures himach is told of in docs/benchmarks.md.
BENCH = [words for words in _ALL if words.startswith("himach bench ")]
EVERY = {words: command for words, command in _ALL.items() if words not in BENCH}
COMMANDS = sorted(EVERY)


def options(words: str) -> set[str]:
    params = [item for item in EVERY[words].params if isinstance(item, click.Option) and not item.hidden]
    return {name for item in params for name in (*item.opts, *item.secondary_opts)}


def documented(words: str) -> set[str]:
    """Return the options in the first column of a command's tables; in a group's, behind its row or before any."""
    result: set[str] = set()
    ours = " ".join(words.split()[:2])
    for heading, text in SECTION.findall(OPTIONS_PAGE):
        mine = f"`{ours}`" in heading
        for cell in re.findall(r"^\| (`.*?`) \|", text, re.MULTILINE) if mine else []:
            named = re.match(r"`(himach \w+ \w+)", cell)
            mine = mine if named is None else named[1] == words or named[1] not in EVERY
            result |= set(OPTION.findall(cell)) if mine else set()
    return result


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_is_told_with_all_its_options(words):
    assert re.search(rf"^\| `{words}\b", OPTIONS_PAGE, re.MULTILINE), f"{words} stands in no table"
    assert options(words) - documented(words) == set()


def test_no_option_is_told_that_is_none():
    for heading, text in SECTION.findall(OPTIONS_PAGE):
        known = {item for words in COMMANDS if f"`{' '.join(words.split()[:2])}`" in heading for item in options(words)}
        cells = re.findall(r"^\| (`.*?`) \|", text, re.MULTILINE)
        assert {item for cell in cells for item in OPTION.findall(cell)} - known == set(), heading


@pytest.mark.parametrize("words", BENCH)
def test_a_benchmark_is_told_where_the_page_says(words):
    assert "| `himach bench NAME` | [measure himach](benchmarks.md)" in OPTIONS_PAGE
    assert re.search(rf"^\| `{words}\b", BENCHMARKS, re.MULTILINE), f"{words} stands in no table"


def test_options_of_all_commands_are_told():
    assert all(f"`{name}" in OPTIONS_PAGE for name in ("himach --version", "himach COMMAND --help"))


def listing(directive: str, name: str, bare: str, members: str) -> list[str]:
    """Return the rows of what a directive puts on the page: how it is called, and the first line of its docstring."""
    rows = []
    for path in [name, *(f"{name}.{member}" for member in re.findall(r"\w+", members))]:
        thing = pydoc.locate(path)
        called = ""
        if callable(thing) and directive != "exception" and not (path == name and bare):
            signature = inspect.signature(thing)
            plain = [
                item.replace(annotation=item.empty) for item in signature.parameters.values() if item.name != "self"
            ]
            called = str(signature.replace(parameters=plain, return_annotation=signature.empty))
        rows.append(
            f"| `{path.removeprefix('himach.')}{called}` | {inspect.getdoc(thing).splitlines()[0].replace('``', '`')} |"
        )
    return rows


def test_the_page_lists_in_plain_text_what_docstrings_say_at_length():
    put = re.findall(r"^\.\. auto(\w+):: ([\w.]+)(\(\))?(?:\n   :members: (.*))?$", OPTIONS_PAGE, re.MULTILINE)
    table = "\n".join(
        ["| in `himach` | what it is |", "| --- | --- |", *(row for item in put for row in listing(*item))]
    )
    assert len(put) > 25
    assert table in OPTIONS_PAGE, f"put this table into docs/api.md:\n\n{table}"


def test_every_built_in_has_a_page():
    pages = [path.read_text(encoding="utf-8") for path in (DOCS / "gallery" / "builtins").glob("plot_*.py")]
    assert {name for page in pages for name in re.findall(r'load\("([\w-]+)"\)', page)} == set(BUILTINS)


@pytest.mark.parametrize("page", sorted((DOCS / "gallery").glob("*/plot_*.py")), ids=lambda page: page.stem)
def test_every_page_has_a_picture(page):
    """The build takes what pyplot knows: a figure that result.plot() made by itself would be missing."""
    text = page.read_text(encoding="utf-8")
    assert "plt.subplots(" in text
    assert "plot()" not in re.sub(r"``[^`]*``", "", text)


def test_the_analyses_ported_in_the_pages_are_there():
    section = (DOCS / "mdanalysis.md").read_text(encoding="utf-8").partition("## Side by side")[2]
    ported = re.findall(r"^### (\w+)$", section, re.MULTILINE)
    pages = [path.read_text(encoding="utf-8") for path in (DOCS / "gallery" / "ported").glob("plot_*_ported.py")]
    assert len(ported) >= 4
    assert sorted(page.splitlines()[1].partition(",")[0] for page in pages) == sorted(ported)
