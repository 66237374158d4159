"""What reports are written by: `render()` a Jinja2 template, himach's or the user's; `render_sentences()` a macro."""

from __future__ import annotations

import contextlib
import functools
import re
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, FileSystemLoader, StrictUndefined
from jinja2.sandbox import SandboxedEnvironment
from markupsafe import Markup

from himach.errors import UsageError
from himach.report.citations import code, parse_pieces
from himach.report.latex import latex, typewriter

OWN = Path(__file__).parent / "data" / "templates"
#: What files begin with that may be written anew; in each in a comment of its own.
MARK = "written by himach"
#: What has no place in a document: control characters, and halves of characters.
UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u202a-\u202e\u2066-\u2069]")


def render(name: str, directory: Path | None = None, **values: Any) -> str:
    """Return a document by its template, ``name.j2``, in a directory of the user's or in himach's own.

    Values are escaped in HTML; elsewhere filters do so: ``markdown`` and ``code``, ``latex`` and ``typewriter``. Raises
    UsageError if there is no such directory, or a template of the user's is wrong.
    """
    with _templates(directory) as templates:
        return templates.get_template(f"{name}.j2").render(mark=MARK, **values)


def render_sentences(macro: str, directory: Path | None, *values: Any) -> list[str]:
    """Return the sentences that a macro of ``prose.j2`` gives, a line each, every one once; raises as `render`."""
    with _templates(directory) as templates:
        return _sentences(getattr(templates.get_template("prose.j2").module, macro)(*values))


@contextlib.contextmanager
def _templates(directory: Path | None) -> Iterator[SandboxedEnvironment]:
    """Give the templates; raise UsageError of those of the user's that are wrong."""
    if directory is not None and not directory.is_dir():
        raise UsageError(f"there is no folder {directory} of templates; himach's own are in {OWN}")
    try:
        yield _environment(directory)
    except Exception as error:
        if directory is None:
            raise
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.endswith(".j2")]
        where = f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else directory
        raise UsageError(f"{where}: {error}; the templates of himach, which are right, are in {OWN}") from None


@functools.lru_cache(8)
def _environment(directory: Path | None) -> SandboxedEnvironment:
    environment = SandboxedEnvironment(
        loader=ChoiceLoader([FileSystemLoader(folder) for folder in (directory, OWN) if folder is not None]),
        autoescape=lambda name: name is not None and name.endswith(".html.j2"),
        undefined=StrictUndefined,
        finalize=lambda value: value if isinstance(value, Markup) else _printable(str(value)),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"markdown": _markdown, "code": code, "latex": latex, "typewriter": typewriter}
    environment.filters |= {"sentences": _sentences, "pieces": parse_pieces}
    return environment


def _printable(text: str) -> str:
    """Return text as a document can hold it: what has no UTF-8, or no place there, is a replacement character."""
    return UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def _sentences(text: str) -> list[str]:
    """Return the lines of a text, each once, as plain text: what a macro gives to HTML is not escaped yet."""
    return list(dict.fromkeys(filter(None, map(str.strip, str.__str__(text).splitlines()))))


def _markdown(text: object) -> str:
    """Return words as Markdown that shows them as they are."""
    return re.sub(r"([\\`*_{}\[\]<>#|~$])", r"\\\1", str(text))
