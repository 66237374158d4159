"""Citations in text: `parse_pieces()` finds code and citations, `number_citations()` numbers references.

The papers that himach knows are in ``data/references.toml``; no network is used. `latex()` and `typewriter()` give text
as LaTeX that every engine and BibTeX read, in plain ASCII, `address()` a URL.
"""

import functools
import re
import tomllib
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

DATA = Path(__file__).parent / "data"
LIBRARY = DATA / "references.toml"
#: Code between backticks, or a citation.
PIECES = re.compile(r"(?P<fence>`+)(?P<code>.+?)(?P=fence)(?!`)|\[(?P<cited>[^\[\]]*)\]")
DOI = re.compile(r"10\.\d{4,9}/\S+\Z")
#: Fields of BibTeX in the order of output.
FIELDS = ("author", "title", "journal", "booktitle", "year", "volume", "pages", "note", "doi", "url", "howpublished")

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


@dataclass(frozen=True)
class Reference:
    """A cited paper, program or other source; `number` is its place in the bibliography, from 1 on."""

    key: str
    kind: str
    fields: Mapping[str, Any]
    number: int = 0

    @property
    def url(self) -> str:
        """Its address; "" if there is none."""
        doi = self.fields.get("doi")
        return f"https://doi.org/{quote(doi, safe='/:;.,()<>-_~')}" if doi else self.fields.get("url", "")

    @property
    def entry(self) -> list[tuple[str, str]]:
        """Its fields for BibTeX, in plain ASCII."""
        fields = {**self.fields, **({"howpublished": self.url} if self.kind == "misc" and self.url else {})}
        return [(name, _bibtex(name, fields[name])) for name in FIELDS if name in fields]

    @property
    def words(self) -> str:
        """Plain text in one line, without the address."""
        fields = self.fields
        authors = (" ".join(reversed(name.strip("{}").split(", ", 1))) for name in fields.get("author", ()))
        venue = fields.get("journal") or fields.get("booktitle") or ""
        if venue:
            venue += f" {fields['volume']}" if "journal" in fields and "volume" in fields else ""
            venue += f", {fields['pages']}" if "pages" in fields else ""
            venue += f" ({fields['year']})" if "year" in fields else ""
        parts = [", ".join(authors), fields.get("title", ""), venue, fields.get("note", "")]
        return " ".join(f"{part.rstrip('.')}." for part in parts if part)


@dataclass(frozen=True)
class Piece:
    """A part of a paragraph: text, code, or citations by `names` and, once numbered, `references`."""

    text: str = ""
    is_code: bool = False
    names: tuple[str, ...] = ()
    references: tuple[Reference, ...] = ()


def parse_pieces(text: str) -> list[Piece]:
    """Split a text: code is between backticks, citations are DOIs and ``@keys`` in square brackets."""
    pieces, start = [], 0
    for match in PIECES.finditer(text):
        names = re.split(r"[,;]\s+", (match["cited"] or "").strip())
        cites = all(DOI.match(name) or (name.startswith("@") and name[1:] in _library()) for name in names)
        if match["fence"] or cites:
            pieces += [Piece(text[start : match.start()])] if match.start() > start else []
            names = [name.removeprefix("@") for name in names]
            pieces.append(Piece(names=tuple(names)) if cites else Piece(match["code"].strip(" "), is_code=True))
            start = match.end()
    return [*pieces, Piece(text[start:])] if start < len(text) else pieces


def code(text: object) -> str:
    """Quote a text with one more backtick than its longest run of them."""
    fence = "`" * (1 + max((len(run) for run in re.findall(r"`+", str(text))), default=0))
    return f"{fence} {text} {fence}" if len(fence) > 1 else f"`{text}`"


def number_citations(paragraphs: Sequence[Sequence[Piece]], version: str) -> tuple[list[list[Piece]], list[Reference]]:
    """Add references to the citations of paragraphs; return both, numbered in the order of citation."""
    by_key: dict[str, Reference] = {}
    by_name: dict[str, Reference] = {}
    for name in (name for paragraph in paragraphs for piece in paragraph for name in piece.names):
        reference = find_reference(name)
        key, copies = reference.key, 1
        if key == "himach" and version:
            reference = replace(reference, fields={**reference.fields, "note": f"Version {version}"})
        while name.lower() not in by_name and by_key.get(key, reference).fields != reference.fields:
            copies += 1
            key = f"{reference.key}{chr(96 + copies) if copies < 27 else copies}"
        if name.lower() not in by_name:  # DOIs are case-insensitive
            by_name[name.lower()] = by_key.setdefault(key, replace(reference, key=key, number=len(by_key) + 1))

    def numbered(piece: Piece) -> Piece:
        references = {(reference := by_name[name.lower()]).number: reference for name in piece.names}
        return replace(piece, references=tuple(references[number] for number in sorted(references)))

    return [[numbered(piece) for piece in paragraph] for paragraph in paragraphs], list(by_key.values())


def find_reference(name: str) -> Reference:
    """Return the reference of a DOI, a key of the library or a text; an unknown one contains only the name."""
    text = " ".join(str(name).split())
    if (reference := _library().get(text.lower())) is not None:
        return reference
    if DOI.match(text):
        return Reference(f"doi{_letters(text)}", "misc", {"doi": text})
    if re.match(r"https?://\S+\Z", text):
        return Reference(f"url{_letters(text.partition('//')[2])}", "misc", {"url": text})
    return Reference(f"ref{_letters(text)[:40]}", "misc", {"note": text})


@functools.cache
def _library() -> dict[str, Reference]:
    """Return the references of the library, by key and by DOI in lower case."""
    entries = tomllib.loads(LIBRARY.read_text(encoding="utf-8"))
    library = {key: Reference(key, fields.pop("type"), fields) for key, fields in entries.items()}
    return library | {entry.fields["doi"].lower(): entry for entry in library.values() if "doi" in entry.fields}


def _letters(text: str) -> str:
    """Return the ASCII letters and digits of a text, for a key."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"[^A-Za-z0-9]", "", plain).lower() or "x"


def _bibtex(name: str, value: Any) -> str:
    """Return a field's value."""
    match name:
        case "author":
            return " and ".join(f"{{{latex(item[1:-1])}}}" if item.startswith("{") else latex(item) for item in value)
        case "title":
            return f"{{{latex(value)}}}"  # keeps capitals in any style
        case "pages":
            return latex(value).replace("-", "--")
        case "doi" | "url":
            return address(value)
        case "howpublished":
            return rf"\url{{{address(value)}}}"
    return latex(str(value))


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
    words = tomllib.loads((DATA / "latex.toml").read_text(encoding="utf-8"))["pairs"].split()
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
