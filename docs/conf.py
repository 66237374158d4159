"""Sphinx's settings: ``sphinx-build -W docs DIR`` makes the pages (the extra "docs" installs what that needs)."""

from importlib.metadata import version as installed_version

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
