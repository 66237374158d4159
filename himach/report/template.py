"""Templates of reports: `render()` renders one of Jinja2, himach's or the user's; `render_sentences()` a macro."""

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
from himach.report.citations import code, latex, parse_pieces, typewriter

OWN = Path(__file__).parent / "data" / "templates"
#: Mark of files that himach may write anew, in a comment of each.
MARK = "written by himach"
#: Characters not allowed in a document: control characters, lone surrogates, direction marks.
UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u202a-\u202e\u2066-\u2069]")


def render(name: str, directory: Path | None = None, **values: Any) -> str:
    """Render the template ``name.j2`` of the user's directory or himach's own.

    Values are escaped in HTML; elsewhere by filters: ``markdown`` and ``code``, ``latex`` and ``typewriter``. Raises
    UsageError if the directory is missing, or a template of the user's is wrong.
    """
    with _templates(directory) as templates:
        return templates.get_template(f"{name}.j2").render(mark=MARK, **values)


def render_sentences(macro: str, directory: Path | None, *values: Any) -> list[str]:
    """Return the lines of a macro of ``prose.j2`` without duplicates; raises as `render`."""
    with _templates(directory) as templates:
        return _sentences(getattr(templates.get_template("prose.j2").module, macro)(*values))


@contextlib.contextmanager
def _templates(directory: Path | None) -> Iterator[SandboxedEnvironment]:
    """Provide the templates; raise UsageError for errors in the user's."""
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
    """Replace characters that a document cannot hold."""
    return UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def _sentences(text: str) -> list[str]:
    """Return the unique lines of a text as plain text: what a macro gives to HTML is not escaped yet."""
    return list(dict.fromkeys(filter(None, map(str.strip, str.__str__(text).splitlines()))))


def _markdown(text: object) -> str:
    """Escape text for Markdown."""
    return re.sub(r"([\\`*_{}\[\]<>#|~$])", r"\\\1", str(text))
