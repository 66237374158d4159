"""Sphinx's settings: ``sphinx-build -W docs DIR`` makes the pages (the extra "docs" installs what that needs)."""

import importlib.util
import logging
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib
import matplotlib.style
from docutils.nodes import SkipNode, container
from latex2mathml.converter import convert as latex_to_mathml
from sphinx.util.docutils import SphinxDirective

import himach

project = "himach"
author = "The himach developers"
release = version = himach.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_gallery.gen_gallery"]
exclude_patterns = ["gallery"]  # of which sphinx-gallery makes the pages in gallery_pages
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

autodoc_typehints = "none"  # the docstrings state types, shapes and units
autodoc_member_order = "bysource"
napoleon_google_docstring = False
napoleon_use_ivar = False
napoleon_attr_annotations = False

# A page of the gallery that fails makes the build fail. What runs keep goes with the build.
cache = tempfile.TemporaryDirectory(prefix="himach-docs-")
os.environ["HIMACH_CACHE"] = cache.name
logging.getLogger("MDAnalysis").setLevel(logging.ERROR)  # what it does step by step is no part of the build's words
absent = [
    page.stem
    for page in Path(__file__).parent.glob("gallery/others/plot_*.py")
    if importlib.util.find_spec(page.stem[5:]) is None
]


def pattern_of_pages() -> str:
    """Return which pages are run: all, or those that changed or whose analysis did, of the files in HIMACH_CHANGED."""
    docs = Path(__file__).resolve().parent
    examples = docs.parent / "examples"
    changed = [docs.parent / name for name in os.environ.get("HIMACH_CHANGED", "").split()]
    folders = {path.parent for path in changed if path.suffix == ".py"}
    every = "HIMACH_CHANGED" not in os.environ or examples in folders
    names = []
    for page in sorted(docs.glob("gallery/**/plot_*.py")):
        analyses = re.findall(r'load\("([\w-]+)"\)', page.read_text(encoding="utf-8"))
        homes = {path.parent for name in analyses for path in examples.glob(f"*/{name.replace('-', '_')}.py")}
        if every or page in changed or folders & homes:
            names.append(page.stem)
    names = [name for name in names if name not in absent]  # without the extra "gallery"
    return f"/({'|'.join(names)})\\.py" if names else "/no page$"


def use_style(_config, _page):
    """Draw the figures of a page in himach's style, whatever the page before it set."""
    matplotlib.rcdefaults()
    matplotlib.style.use("himach")


suppress_warnings = ["config.cache"]  # sphinx-gallery takes a function, which Sphinx does not keep
sphinx_gallery_conf = {
    "reset_modules": (use_style,),
    "filename_pattern": pattern_of_pages(),
    "examples_dirs": ["gallery"],
    "gallery_dirs": ["gallery_pages"],
    "within_subsection_order": "FileNameSortKey",
    "capture_repr": (),
    "download_all_examples": False,
    "show_signature": False,
    "min_reported_time": 1e9,  # pages do not differ with the machine
    "write_computation_times": False,
}

html_theme = "furo"
html_title = f"himach {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {"navigation_with_keys": True}

html_math_renderer = "mathml"  # formulas are part of the pages: no script, and nothing to fetch


def setup(app):
    """Register formulas as MathML, which every browser draws by itself."""
    app.add_html_math_renderer("mathml", (formula, None), (formula, None))
    app.connect("builder-inited", plan_example)
    app.add_directive("analyses", Analyses)
    app.add_directive("files", Files)


class Analyses(SphinxDirective):
    """The table of analyses.md as cards: thumbnails of the gallery lead to its pages, names to what is told of them."""

    def run(self):
        """Return one card an analysis, in the order of the table."""
        self.env.note_dependency("analyses.md")
        page = Path(self.env.doc2path("analyses")).read_text(encoding="utf-8")
        cards = container(classes=["cards"])
        for name, link, what in re.findall(r"^\| \[`([\w-]+)`\]\((\S+)\) \| (.+) \|$", page, re.MULTILINE):
            script = f"plot_{name.replace('-', '_')}"
            picture = f"gallery_pages/builtins/images/thumb/sphx_glr_{script}_thumb.png"
            text = f"[![{name}]({picture})](gallery_pages/builtins/{script}.rst)\n\n[`{name}`]({link})\n\n{what}"
            cards += container("", *self.parse_text_to_nodes(text), classes=["card"])
        return [cards]


class Files(SphinxDirective):
    """The list of files of the code, as their first lines are."""

    def run(self):
        """Return one section a room."""
        command = [sys.executable, Path(__file__).parents[1] / ".ci" / "file-map"]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return self.parse_text_to_nodes(text, allow_section_headings=True)


def plan_example(app):
    """Make what plan.md shows, by a real run on this machine, where that page is among those to be built."""
    if not (Path(app.srcdir) / "plan.md").exists():
        return
    spec = importlib.util.spec_from_file_location("plan_example", Path(__file__).with_name("plan_example.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.make()


def formula(translator, node):
    """Write a formula into the page."""
    block = node.tagname == "math_block"
    markup = latex_to_mathml(node.astext(), display="block" if block else "inline")
    translator.body.append(f'<div class="math">{markup}</div>' if block else markup)
    raise SkipNode
