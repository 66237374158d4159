"""References: what a DOI stands for (`Reference`), those of a text in their order (`Bibliography`), BibTeX, Markdown.

What himach knows of papers lies in ``data/references.toml``, so that nothing is asked of a network.
"""

from __future__ import annotations

import functools
import re
import tomllib
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from himach.report.latex import address, latex

__all__ = ["Bibliography", "Reference", "found", "is_known"]

LIBRARY = Path(__file__).parent / "data" / "references.toml"
DOI = re.compile(r"10\.\d{4,9}/\S+\Z")
#: Fields in the order in which BibTeX gets them.
FIELDS = ("author", "title", "journal", "booktitle", "year", "volume", "pages", "note", "doi", "url", "howpublished")


@dataclass(frozen=True)
class Reference:
    """A paper, a program, or whatever else is cited.

    Attributes
    ----------
    key
        Its key in BibTeX: plain letters and digits, the same each time.
    kind
        ``article``, ``inproceedings`` or ``misc``.
    fields
        As BibTeX has them, in plain text; ``author`` is a list of ``Family, Given``, or ``{Whole name}``.
    """

    key: str
    kind: str
    fields: Mapping[str, Any]

    @property
    def url(self) -> str:
        """Its address; "" if it has none."""
        doi = self.fields.get("doi")
        return f"https://doi.org/{quote(doi, safe='/:;.,()<>-_~')}" if doi else self.fields.get("url", "")

    def bibtex(self) -> str:
        """Return the entry for BibTeX, in plain ASCII."""
        known = dict(self.fields)
        if self.kind == "misc" and self.url:
            known["howpublished"] = self.url
        lines = [f"  {name} = {{{_bibtex(name, known[name])}}}," for name in FIELDS if name in known]
        return "\n".join([f"@{self.kind}{{{self.key},", *lines, "}", ""])

    def words(self) -> str:
        """Return it as a line of plain text, without its address."""
        fields = self.fields
        authors = [_name(one) for one in fields.get("author", ())]
        where = fields.get("journal") or fields.get("booktitle") or ""
        if fields.get("journal") and fields.get("volume"):
            where += f" {fields['volume']}"
        where += f", {fields['pages']}" if fields.get("pages") and where else ""
        where += f" ({fields['year']})" if fields.get("year") and where else ""
        said = [", ".join(authors), fields.get("title", ""), where, fields.get("note", "")]
        return "".join(f"{one.rstrip('.')}. " for one in said if one).strip()


@dataclass
class Bibliography:
    """The references of a text, numbered in the order in which they are cited first.

    Attributes
    ----------
    version
        That of himach, which its own entry names.
    """

    version: str
    _by_key: dict[str, Reference] = field(default_factory=dict)
    _by_name: dict[str, Reference] = field(default_factory=dict)

    @property
    def references(self) -> tuple[Reference, ...]:
        """All of them, in their order."""
        return tuple(self._by_key.values())

    def cite(self, names: Iterable[str]) -> list[int]:
        """Return the numbers of references, ascending: DOIs, keys of the library, or any text."""
        return sorted({self._number(name) for name in names})

    def keys(self, names: Iterable[str]) -> list[str]:
        """Return their keys, in the order of their numbers."""
        numbers = self.cite(names)
        return [self.references[number - 1].key for number in numbers]

    def bibtex(self) -> str:
        """Return all of them for BibTeX."""
        return "\n".join(reference.bibtex() for reference in self.references)

    def _number(self, name: str) -> int:
        reference = self._by_name.get(name.lower()) or self._unlike(found(name))
        if reference.key == "himach" and self.version:
            reference = Reference("himach", "misc", {**reference.fields, "note": f"Version {self.version}"})
        self._by_name[name.lower()] = reference
        self._by_key.setdefault(reference.key, reference)
        return list(self._by_key).index(reference.key) + 1

    def _unlike(self, reference: Reference) -> Reference:
        """Return a reference with a key that no other one has."""
        key, number = reference.key, 1
        while (other := self._by_key.get(key)) is not None and other.fields != reference.fields and key != "himach":
            number += 1
            key = f"{reference.key}{chr(96 + number) if number < 27 else number}"
        return Reference(key, reference.kind, reference.fields)


def found(name: str) -> Reference:
    """Return what a DOI, a key of the library or a text stands for.

    A DOI that himach does not know is an entry that has nothing but it, as a text is one that has nothing but that.
    """
    text = " ".join(str(name).split())
    known = _library().get(text.lower())
    if known is not None:
        return known
    if DOI.match(text):
        return Reference(f"doi{_letters(text)}", "misc", {"doi": text})
    if re.match(r"https?://\S+\Z", text):
        return Reference(f"url{_letters(text.partition('//')[2])}", "misc", {"url": text})
    return Reference(f"ref{_letters(text)[:40]}", "misc", {"note": text})


def is_known(key: str) -> bool:
    """Tell whether the library has an entry of this key."""
    return key in _library()


@functools.cache
def _library() -> dict[str, Reference]:
    """Return what is known, by key and by DOI in small letters."""
    read = tomllib.loads(LIBRARY.read_text(encoding="utf-8"))
    known = {}
    for key, fields in read.items():
        reference = Reference(key, fields.pop("type"), fields)
        known[key] = reference
        if "doi" in fields:
            known[fields["doi"].lower()] = reference
    return known


def _letters(text: str) -> str:
    """Return the plain letters and digits of a text, for a key."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"[^A-Za-z0-9]", "", plain).lower() or "x"


def _name(author: str) -> str:
    """Return an author as a person writes one."""
    family, comma, given = author.partition(", ")
    return f"{given} {family}" if comma else author.strip("{}")


def _bibtex(name: str, value: Any) -> str:
    """Return a field's value."""
    if name == "author":
        return " and ".join(_author(one) for one in value)
    if name == "title":
        return f"{{{latex(value)}}}"  # as it is written, whatever a style does to capitals
    if name == "pages":
        return latex(value).replace("-", "--")
    if name in ("doi", "url"):
        return address(value)
    if name == "howpublished":
        return rf"\url{{{address(value)}}}"
    return latex(str(value))


def _author(name: str) -> str:
    return f"{{{latex(name[1:-1])}}}" if name.startswith("{") and name.endswith("}") else latex(name)
