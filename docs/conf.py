"""Sphinx's settings: ``sphinx-build -W docs DIR`` makes the pages (the extra "docs" installs what that needs)."""

from importlib.metadata import version as installed_version

from docutils.nodes import SkipNode
from latex2mathml.converter import convert as latex_to_mathml

project = "himach"
author = "The himach developers"
release = version = installed_version("himach")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

autodoc_typehints = "none"  # the docstrings state types, shapes and units
autodoc_member_order = "bysource"
napoleon_google_docstring = False
napoleon_use_ivar = False
napoleon_attr_annotations = False

html_theme = "furo"
html_title = f"himach {release}"

html_math_renderer = "mathml"  # formulas are part of the pages: no script, and nothing to fetch


def setup(app):
    """Register formulas as MathML, which every browser draws by itself."""
    app.add_html_math_renderer("mathml", (formula, None), (formula, None))


def formula(translator, node):
    """Write a formula into the page."""
    block = node.tagname == "math_block"
    markup = latex_to_mathml(node.astext(), display="block" if block else "inline")
    translator.body.append(f'<div class="math">{markup}</div>' if block else markup)
    raise SkipNode
