"""HTML as text: `text()` escapes, `element()` has attributes, `anchor()` makes ids; nothing else writes a tag."""

from __future__ import annotations

import html
import re
from typing import Any

__all__ = ["Html", "anchor", "element", "join", "printable", "text"]

#: Elements that have no end tag.
VOID = {"img", "meta", "br", "hr", "col", "link"}
#: What has no place in a document: control characters, and halves of characters.
UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u202a-\u202e\u2066-\u2069]")


class Html(str):
    """Text that is HTML already, and is not escaped again."""

    __slots__ = ()


def text(value: Any) -> Html:
    """Return a value as text of a document: escaped, but for `Html`."""
    if isinstance(value, Html):
        return value
    return Html(html.escape(printable(str(value))))


def printable(words: str) -> str:
    """Return words that a document can hold: what has no UTF-8, or no place there, is a replacement character."""
    return UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", words)


def element(tag: str, *content: Any, **attributes: Any) -> Html:
    """Return an element with its content, text or `Html`.

    Attributes that are None or False are left out, and those that are True have no value; ``class_`` is ``class``, and
    ``aria_label`` ``aria-label``.
    """
    written = "".join(
        f" {name.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{text(value)}"')
        for name, value in attributes.items()
        if value is not None and value is not False
    )
    inside = "".join(text(each) for each in content)
    return Html(f"<{tag}{written}>" if tag in VOID else f"<{tag}{written}>{inside}</{tag}>")


def join(parts: Any, between: Any = "") -> Html:
    """Return parts, text or `Html`, one behind the other."""
    return Html(text(between).join(text(part) for part in parts))


def anchor(*words: Any) -> str:
    """Return an id for a part of a page, of plain characters."""
    return re.sub(r"[^A-Za-z0-9]+", "-", "-".join(map(str, words))).strip("-").lower() or "part"
