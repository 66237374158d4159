"""Text as LaTeX that every engine and BibTeX read: `latex()` and `typewriter()` give plain ASCII, `address()` a URL."""

# ruff: noqa: RUF001 - the characters that look like others are what this is about

from __future__ import annotations

import re
import unicodedata
from urllib.parse import quote

__all__ = ["address", "latex", "typewriter"]

#: What stands for characters that mean something to LaTeX.
SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "'": "'",
    "`": r"\textasciigrave{}",
}
#: Letters and signs that are no letter with an accent.
SIGNS = {
    "Å": r"\AA{}",
    "å": r"\aa{}",
    "Ø": r"\O{}",
    "ø": r"\o{}",
    "Æ": r"\AE{}",
    "æ": r"\ae{}",
    "Œ": r"\OE{}",
    "œ": r"\oe{}",
    "Ł": r"\L{}",
    "ł": r"\l{}",
    "ß": r"\ss{}",
    "ı": r"\i{}",
    "°": r"\textdegree{}",
    "±": r"\textpm{}",
    "·": r"\textperiodcentered{}",
    "×": r"\texttimes{}",
    "µ": r"\textmu{}",
    "§": r"\S{}",
    "…": r"\ldots{}",
    "–": "--",
    "—": "---",
    "‐": "-",
    "‑": "-",
    "−": r"\ensuremath{-}",
    "‘": "`",
    "’": "'",
    "“": "``",
    "”": "''",
    "„": r"\quotedblbase{}",
    "«": r"\guillemotleft{}",
    "»": r"\guillemotright{}",
    "€": r"\texteuro{}",
    "£": r"\pounds{}",
    "≤": r"\ensuremath{\leq}",
    "≥": r"\ensuremath{\geq}",
    "≈": r"\ensuremath{\approx}",
    "≠": r"\ensuremath{\neq}",
    "→": r"\ensuremath{\rightarrow}",
    "←": r"\ensuremath{\leftarrow}",
    "∞": r"\ensuremath{\infty}",
    "√": r"\ensuremath{\surd}",
    "∑": r"\ensuremath{\sum}",
    "∂": r"\ensuremath{\partial}",
    "⟨": r"\ensuremath{\langle}",
    "⟩": r"\ensuremath{\rangle}",
    "⁻": r"\textsuperscript{-}",
    "₀": r"\textsubscript{0}",
}
#: Accents, as marks that follow their letter.
ACCENTS = {
    "\u0300": r"\`",
    "\u0301": r"\'",
    "\u0302": r"\^",
    "\u0303": r"\~",
    "\u0304": r"\=",
    "\u0306": r"\u",
    "\u0307": r"\.",
    "\u0308": r"\"",
    "\u030a": r"\r",
    "\u030b": r"\H",
    "\u030c": r"\v",
    "\u0327": r"\c",
    "\u0328": r"\k",
}
#: Greek letters that LaTeX has by their names.
GREEK = {
    "alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lamda", "mu", "nu", "xi",
    "pi", "rho", "sigma", "tau", "upsilon", "phi", "chi", "psi", "omega",
}  # fmt: skip
#: Those that have no name there, as they look like Latin ones.
LATIN = {
    "alpha": "A", "beta": "B", "epsilon": "E", "zeta": "Z", "eta": "H", "iota": "I", "kappa": "K", "mu": "M", "nu": "N",
    "omicron": "O", "rho": "P", "tau": "T", "chi": "X",
}  # fmt: skip
#: Letters of a word that has no place to be broken at, before it is and after it.
WORD = 20
#: What of an address LaTeX's ``\url`` takes as it is; BibTeX breaks lines at spaces, and counts braces.
PLAIN = "/:;.,()<>?&=+-_~!*'@$"


def latex(text: str) -> str:
    r"""Return text as LaTeX, in plain ASCII; characters that it has no word for are told by their number.

    Examples
    --------
    >>> print(latex("S_CH of 5 % in Å², by Künsch"))
    S\_CH of 5 \% in \AA{}\textsuperscript{2}, by K{\"u}nsch
    >>> print(latex("水"))
    [U+6C34]\allowbreak{}
    """
    return "".join(_character(character) for character in unicodedata.normalize("NFC", re.sub(r"\s+", " ", text)))


def typewriter(text: str) -> str:
    r"""Return text as LaTeX in the font of programs, where it may be broken behind signs, and within long words.

    Examples
    --------
    >>> print(typewriter("name O*"))
    \texttt{name O*}
    """
    parts = re.split(rf"(?<=[/._:;,()\-])(?=\S)|(?<=\S{{{WORD}}})(?=\S{{{WORD}}})", text)
    breaks = r"\allowbreak{}"
    return rf"\texttt{{{breaks.join(map(latex, parts))}}}"


def address(url: str) -> str:
    """Return an address for LaTeX's ``url``, with what it or BibTeX would trip over in percent signs' way."""
    return quote(url, safe=PLAIN + "%#")


def _character(character: str) -> str:
    if character in SPECIAL:
        return SPECIAL[character]
    if character.isascii():
        return character if character.isprintable() else " "
    if character in SIGNS:
        return SIGNS[character]
    return _greek(character) or _composed(character) or rf"[U+{ord(character):04X}]\allowbreak{{}}"


def _greek(character: str) -> str:
    """Return a Greek letter without accent, "" for another character."""
    kind, _, name = unicodedata.name(character, "").lower().partition(" letter ")
    name = {"final sigma": "sigma"}.get(name, name)
    small = kind == "greek small"
    if not small and kind != "greek capital":
        return ""
    if name in LATIN and (not small or name == "omicron"):
        return LATIN[name].lower() if small else LATIN[name]
    word = name.replace("lamda", "lambda")
    return rf"\ensuremath{{\{word if small else word.capitalize()}}}" if name in GREEK else ""


def _composed(character: str) -> str:
    """Return a letter with accents, or a digit that is high or low, by its parts; "" if LaTeX lacks one of them."""
    kind, _, parts = unicodedata.decomposition(character).rpartition("> ")
    if kind in ("<super", "<sub") and len(parts.split()) == 1:
        inside = _character(chr(int(parts, 16)))
        return rf"\text{'superscript' if kind == '<super' else 'subscript'}{{{inside}}}"
    base, *marks = list(unicodedata.normalize("NFD", character))
    if not marks or not base.isascii() or any(mark not in ACCENTS for mark in marks):
        return ""
    written = {"i": r"\i", "j": r"\j"}.get(base, base) if marks[0] not in ("\u0327", "\u0328") else base
    for mark in marks:
        accent = ACCENTS[mark]
        space = " " if accent[-1].isalpha() and not written.startswith(("{", "\\")) else ""
        written = f"{{{accent}{space}{written}}}"
    return written
