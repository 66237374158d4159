"""The checklist of a journal as a part of the page: `checklist()`, filled in as far as runs tell."""

from __future__ import annotations

from collections.abc import Sequence

from himach.report.checklist import SOURCE, Answer, checklist_of
from himach.report.markup import Html, element, join
from himach.report.page.contents import scrolling
from himach.report.prose import pieces_of
from himach.report.run_folder import RunFolder

__all__ = ["checklist"]

#: Sentences of an answer that are shown; what more there are is told in checklist.md.
MOST_SAID = 12


def checklist(folders: Sequence[RunFolder]) -> Html:
    """Return the checklist with what runs tell, and what the authors are to fill in by name."""
    head = element("tr", *(element("th", title, scope="col") for title in ("", "question", "answer")))
    rows = [_row(answer) for answer in checklist_of(folders)]
    caption = element("caption", _words(SOURCE))
    return scrolling(element("table", caption, element("thead", head), element("tbody", *rows)), "Checklist")


def _row(answer: Answer) -> Html:
    said = [element("li", _words(sentence)) for sentence in answer.told[:MOST_SAID]]
    if len(answer.told) > MOST_SAID:
        said.append(element("li", f"and {len(answer.told) - MOST_SAID} more: himach cite --out writes all"))
    if answer.blank:
        said.append(element("li", element("b", "To be filled in: "), _words(f"{answer.blank}."), class_="blank"))
    return element(
        "tr",
        element("th", answer.number, scope="row"),
        element("td", _words(answer.question)),
        element("td", element("ul", *said)),
    )


def _words(text: str) -> Html:
    """Return a sentence whose code is between backticks."""
    return join(element("code", one.text) if one.is_code else one.text for one in pieces_of(text))
