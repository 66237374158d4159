"""The page of a report, put together: `report_page()`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from himach.errors import UsageError
from himach.output.cells import count
from himach.report.markup import Html, anchor, element, join
from himach.report.methods import methods_of
from himach.report.page.checklist import checklist
from himach.report.page.contents import figures, tables
from himach.report.page.pieces import Pieces
from himach.report.page.provenance import provenance, system
from himach.report.page.results import result_lines
from himach.report.page.trust import LEGEND, trust
from himach.report.run_folder import RunFolder

__all__ = ["MOST_BYTES", "report_page"]

#: A page is smaller, so that it can be sent by mail.
MOST_BYTES = 2_000_000
#: What a browser may load for the page: what is in it.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def report_page(folders: Sequence[RunFolder]) -> str:
    """Return the report of runs as HTML: the same text for the same folders.

    Raises
    ------
    UsageError
        If a folder is given twice.
    """
    names = _names(folders)
    pieces = Pieces(MOST_BYTES - 1)
    runs = list(zip(names, folders, strict=True))
    title = f"Report of {', '.join(names[:3])}" + (f" and {len(names) - 3} more runs" if len(names) > 3 else "")
    legend = element("p", LEGEND, class_="note")
    panels = [_of_run("trust", name, trust(folder, pieces)) for name, folder in runs]
    sections = [
        ("results", "Results", join(_results(*run) for run in runs)),
        ("trust", "Can this be trusted?", join([legend, *panels])),
        *(
            (anchor("run", at, name), f"Figures and tables: {name}", _contents(at, name, folder, pieces))
            for at, (name, folder) in enumerate(runs)
        ),
        ("methods", "Methods and references", methods_of(folders).html()),
        ("checklist", "Checklist", checklist(folders)),
        (
            "provenance",
            "Where this comes from",
            join(_of_run("from", name, provenance(folder)) for name, folder in runs),
        ),
    ]
    links = [element("li", element("a", heading, href=f"#{key}")) for key, heading, _ in sections]
    head = [
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", Html(Path(__file__).with_name("style.css").read_text(encoding="utf-8"))),
    ]
    body = [
        element("a", "Skip to the results", href="#results", class_="skip"),
        element("header", element("h1", title), element("p", _summary(folders))),
        element("nav", element("ul", *links), aria_label="Contents"),
        element("main", *(_section(key, heading, content) for key, heading, content in sections)),
    ]
    page = element("html", element("head", *head), "\n", element("body", *body), lang="en")
    return pieces.fit(f"<!DOCTYPE html>\n{page}\n")


def _names(folders: Sequence[RunFolder]) -> list[str]:
    """Return names of runs, each once: those of the folders, with as many of the folders above as tell them apart."""
    paths = [folder.path for folder in folders]
    twice = next((path for path in paths if paths.count(path) > 1), None)
    if twice is not None:
        raise UsageError(f"the folder {twice} is given twice")
    depth = 1
    while len({path.parts[-depth:] for path in paths}) < len(paths):
        depth += 1
    return ["/".join(path.parts[-depth:]) for path in paths]


def _summary(folders: Sequence[RunFolder]) -> str:
    """Return how much there is, and by which versions."""
    analyses = sum(len(folder.analyses) for folder in folders)
    versions = ", ".join(sorted({str(folder.record["himach"]) for folder in folders}))
    many = "1 analysis" if analyses == 1 else f"{analyses} analyses"
    return f"{count(len(folders), 'run')}, {many}, made by himach {versions}."


def _section(key: str, heading: str, content: Html) -> Html:
    return element(
        "section", element("h2", heading, id=f"{key}-title"), content, id=key, aria_labelledby=f"{key}-title"
    )


def _of_run(part: str, name: str, content: Html) -> Html:
    return element("section", element("h3", name), content, class_=part)


def _results(name: str, folder: RunFolder) -> Html:
    """Return a line for each result of a run."""
    lists = [
        join([element("dt", analysis.label), *(element("dd", line) for line in result_lines(folder, analysis))])
        for analysis in folder.analyses
    ]
    return join([element("h3", name), element("dl", *lists, class_="results")])


def _contents(at: int, name: str, folder: RunFolder, pieces: Pieces) -> Html:
    """Return what was simulated, and the figures and tables of each analysis."""
    parts = [element("h3", "What was simulated"), system(folder)]
    for analysis in folder.analyses:
        key = anchor("run", at, name, analysis.label)
        title = element("h3", analysis.label, id=key)
        parts.append(
            element(
                "section",
                title,
                figures(folder, analysis, pieces),
                tables(folder, analysis, pieces),
                aria_labelledby=key,
            )
        )
    return join(parts)
