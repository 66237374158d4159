"""Text as LaTeX that every engine and BibTeX read: `latex()` and `typewriter()` give plain ASCII, `address()` a URL."""

from __future__ import annotations

import functools
import re
import tomllib
import unicodedata
from pathlib import Path
from urllib.parse import quote

TABLE = Path(__file__).parent / "data" / "latex.toml"
#: Accents by combining character.
ACCENTS = {
    "\u0300": r"\`", "\u0301": r"\'", "\u0302": r"\^", "\u0303": r"\~", "\u0304": r"\=", "\u0306": r"\u",
    "\u0307": r"\.", "\u0308": r"\"", "\u030a": r"\r", "\u030b": r"\H", "\u030c": r"\v", "\u0327": r"\c",
    "\u0328": r"\k",
}  # fmt: skip
BELOW = ("\u0327", "\u0328")  # with these a letter keeps its dot
#: Letters on either side of a break within a long word.
WORD = 20
#: Signs of a URL that LaTeX's ``\url`` takes unchanged; BibTeX breaks lines at spaces, and counts braces.
PLAIN = "/:;.,()<>?&=+-_~!*'@$"


def latex(text: str) -> str:
    r"""Return text as LaTeX in plain ASCII; characters without LaTeX form become their numbers."""
    return "".join(map(_character, unicodedata.normalize("NFC", re.sub(r"\s+", " ", text))))


def typewriter(text: str) -> str:
    r"""Return text as LaTeX in typewriter font, breakable after punctuation and within long words."""
    parts = re.split(rf"(?<=[/._:;,()\-])(?=\S)|(?<=\S{{{WORD}}})(?=\S{{{WORD}}})", text)
    breaks = r"\allowbreak{}"
    return rf"\texttt{{{breaks.join(map(latex, parts))}}}"


def address(url: str) -> str:
    """Escape with percent signs what LaTeX's ``url`` or BibTeX cannot take."""
    return quote(url, safe=PLAIN + "%#")


@functools.cache
def _signs() -> dict[str, str]:
    """Return the LaTeX forms of characters."""
    words = tomllib.loads(TABLE.read_text(encoding="utf-8"))["pairs"].split()
    return dict(zip(words[::2], words[1::2], strict=True))


def _character(character: str) -> str:
    if character in _signs():
        return _signs()[character]
    if character.isascii():
        return character if character.isprintable() else " "
    kind, _, parts = unicodedata.decomposition(character).rpartition("> ")
    if kind in ("<super", "<sub") and " " not in parts:  # superscript or subscript digit
        return rf"\text{'superscript' if kind == '<super' else 'subscript'}{{{_character(chr(int(parts, 16)))}}}"
    base, *marks = list(unicodedata.normalize("NFD", character))
    if not marks or not base.isascii() or not ACCENTS.keys() >= set(marks):
        return rf"[U+{ord(character):04X}]\allowbreak{{}}"
    written = rf"\{base}" if base in "ij" and marks[0] not in BELOW else base
    for mark in marks:
        accent = ACCENTS[mark]
        space = " " if accent[-1].isalpha() and not written.startswith(("{", "\\")) else ""
        written = f"{{{accent}{space}{written}}}"
    return written
