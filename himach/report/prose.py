"""Prose of a paper: `pieces_of()` finds code and citations in a text, `Prose` writes it, plain or for LaTeX, HTML."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from himach.report.latex import latex, typewriter
from himach.report.markup import Html, element, join, printable
from himach.report.references import Bibliography, is_known

__all__ = ["MARK", "Piece", "Prose", "code", "pieces_of"]

#: What files begin with that may be written anew; in each in a comment of its own.
MARK = "written by himach"
#: Code between backticks, or a citation.
PIECES = re.compile(r"(?P<fence>`+)(?P<code>.+?)(?P=fence)(?!`)|\[(?P<cited>[^\[\]]*)\]")
DOI = re.compile(r"10\.\d{4,9}/\S+\Z")
#: A document with what the text needs, and nothing that a small installation of TeX lacks.
DOCUMENT = rf"""% {MARK}
\documentclass{{article}}
\usepackage[T1]{{fontenc}}
\usepackage{{times}}
\usepackage{{url}}
\begin{{document}}
\raggedright
\section*{{Methods}}

%s

\bibliographystyle{{unsrt}}
\bibliography{{references}}
\end{{document}}
"""


@dataclass(frozen=True)
class Piece:
    """A part of a paragraph: words, or code, or references that are cited there."""

    text: str = ""
    is_code: bool = False
    cited: tuple[str, ...] = ()


@dataclass(frozen=True)
class Prose:
    """Paragraphs that cite references.

    Attributes
    ----------
    paragraphs
        The pieces of each.
    bibliography
        All that they cite.
    """

    paragraphs: tuple[tuple[Piece, ...], ...]
    bibliography: Bibliography

    @classmethod
    def of(cls, paragraphs: Sequence[Sequence[Piece]], version: str) -> Prose:
        """Return paragraphs with their references, numbered as they come."""
        bibliography = Bibliography(version)
        for piece in (piece for paragraph in paragraphs for piece in paragraph if piece.cited):
            bibliography.cite(piece.cited)
        return cls(tuple(map(tuple, paragraphs)), bibliography)

    def plain(self) -> str:
        """Return them as plain text, code between backticks, with the references below."""
        return printable("\n\n".join(["Methods", *self._paragraphs(str), "References", self._listed(str, "{}")]) + "\n")

    def markdown(self) -> str:
        """Return them as Markdown, with the references below."""
        text, listed = self._paragraphs(_escaped), self._listed(_escaped, "<{}>")
        return printable("\n\n".join([f"<!-- {MARK} -->", "## Methods", *text, "## References", listed]) + "\n")

    def latex(self) -> str:
        """Return a document of LaTeX, which takes references from ``references.bib``."""
        text = [self._written(one, latex, typewriter, self._keys) for one in self.paragraphs]
        return DOCUMENT.replace("%s", "\n\n".join(text))

    def bibtex(self) -> str:
        """Return the references for BibTeX."""
        return f"% {MARK}\n\n{self.bibliography.bibtex()}"

    def html(self) -> Html:
        """Return the paragraphs and a list of the references for a page."""
        text = [element("p", Html(self._written(one, join, _html_code, self._linked))) for one in self.paragraphs]
        listed = [
            element(
                "li", one.words(), " ", element("a", one.url, href=one.url) if one.url else "", id=f"cited-{number}"
            )
            for number, one in enumerate(self.bibliography.references, start=1)
        ]
        return join([*text, element("ol", *listed)])

    def _paragraphs(self, words: Callable[[str], str]) -> list[str]:
        return [self._written(one, words, code, self._numbers) for one in self.paragraphs]

    def _listed(self, words: Callable[[str], str], address: str) -> str:
        """Return the references as a numbered list."""
        return "\n".join(
            f"{number}. {' '.join(filter(None, [words(one.words()), address.format(one.url) if one.url else '']))}"
            for number, one in enumerate(self.bibliography.references, start=1)
        )

    def _written(
        self,
        paragraph: Sequence[Piece],
        words: Callable[[str], str],
        code: Callable[[str], str],
        cite: Callable[[Sequence[str]], str],
    ) -> str:
        """Return a paragraph with its pieces written by three functions."""
        return "".join(
            cite(piece.cited) if piece.cited else (code if piece.is_code else words)(piece.text) for piece in paragraph
        )

    def _numbers(self, names: Sequence[str]) -> str:
        return f"[{', '.join(map(str, self.bibliography.cite(names)))}]"

    def _keys(self, names: Sequence[str]) -> str:
        return rf"\cite{{{','.join(self.bibliography.keys(names))}}}"

    def _linked(self, names: Sequence[str]) -> Html:
        links = [element("a", number, href=f"#cited-{number}") for number in self.bibliography.cite(names)]
        return join(["[", join(links, ", "), "]"])


def pieces_of(text: str) -> list[Piece]:
    """Return the pieces of a text: code is between backticks, DOIs and ``@keys`` in square brackets are citations."""
    found, at = [], 0
    for piece in PIECES.finditer(text):
        cited = _names(piece["cited"] or "")
        if not piece["fence"] and not cited:
            continue
        found += [Piece(text[at : piece.start()])] if piece.start() > at else []
        found.append(Piece(cited=cited) if cited else Piece(piece["code"].strip(" "), is_code=True))
        at = piece.end()
    return [*found, Piece(text[at:])] if at < len(text) else found


def code(text: object) -> str:
    """Return a text between backticks, more of them than it has on end."""
    fence = "`" * (1 + max((len(run) for run in re.findall(r"`+", str(text))), default=0))
    return f"{fence} {text} {fence}" if len(fence) > 1 else f"`{text}`"


def _names(cited: str) -> tuple[str, ...]:
    """Return what is cited between square brackets; nothing where it is no citation."""
    names = re.split(r"[,;]\s+", cited.strip())
    fits = all(DOI.match(name) or (name.startswith("@") and is_known(name[1:])) for name in names)
    return tuple(name.removeprefix("@") for name in names) if fits else ()


def _escaped(text: str) -> str:
    """Return words as Markdown that shows them as they are."""
    return re.sub(r"([\\`*_{}\[\]<>#|~$])", r"\\\1", text)


def _html_code(text: str) -> Html:
    return element("code", text)
