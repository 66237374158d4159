"""The page of a report: `report_page()` renders the template ``report.html.j2`` within a limit of bytes.

`compose_methods()` makes text on the methods of runs from their records.
"""

import base64
import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup, escape

from himach.errors import UsageError
from himach.output.cells import EDGE_CELLS, edge_cells
from himach.output.text import alignment, cells_text, count
from himach.report.citations import Piece, Reference, code, number_citations, parse_pieces
from himach.report.convergence import small_plot
from himach.report.folder import AnalysisFiles, RunFolder, stages
from himach.report.result_lines import result_lines, trust
from himach.report.template import render, render_sentences
from himach.uncertainty.estimate import Estimate, in_figures

#: A page is smaller than this, so that it can be sent by mail.
MOST_BYTES = 2_000_000
#: Longer tables show their first and last rows, wider ones their first columns.
MOST_ROWS, MOST_COLUMNS = 16, 12
KINDS = {".svg": "image/svg+xml", ".png": "image/png"}
MARK = "\x00"  # before and after the number of a piece: no text of a page has it


def report_page(folders: Sequence[RunFolder], directory: Path | None = None, title: str = "") -> str:
    """Return the report of runs as HTML under a title, by the user's templates of `directory`, if there are any.

    Equal folders give equal text. Raises UsageError if a folder is given twice, or a template is wrong.
    """
    runs = [
        {"name": name, "key": _anchor("run", i, name), "folder": folder, "record": folder.record}
        for i, (name, folder) in enumerate(zip(_names(folders), folders, strict=True))
    ]
    methods, references = compose_methods(folders, directory)
    values = {"runs": runs, "methods": methods, "references": references, "heading": title, **HELPERS}
    pieces = Pieces(MOST_BYTES - 1)
    return pieces.fit(render("report.html", directory, piece=pieces.add, **values))


def _names(folders: Sequence[RunFolder]) -> list[str]:
    """Return unique names of runs: those of the folders, with as many parent folders as needed."""
    paths = [folder.path for folder in folders]
    duplicate = next((path for path in paths if paths.count(path) > 1), None)
    if duplicate is not None:
        raise UsageError(f"the folder {duplicate} is given twice")
    depth = 1
    while len({path.parts[-depth:] for path in paths}) < len(paths):
        depth += 1
    return ["/".join(path.parts[-depth:]) for path in paths]


def _anchor(*words: object) -> str:
    """Return an id for a part of a page, of ASCII letters, digits and hyphens."""
    return re.sub(r"[^A-Za-z0-9]+", "-", "-".join(map(str, words))).strip("-").lower()


def _figures(estimate: Estimate[float]) -> str:
    """Return a mean and its limits with the decimals that they justify."""
    return in_figures(estimate.value, estimate.low, estimate.high, estimate.converged)


def _parameters(analysis: AnalysisFiles) -> list[tuple[str, str]]:
    """Return the parameters of an analysis and of its later stages, as JSON."""
    parameters = [pair for stage in stages(analysis.entry) for pair in stage["parameters"].items()]
    return list(dict.fromkeys((name, json.dumps(value, ensure_ascii=False)) for name, value in parameters))


def _table(folder: RunFolder, name: str) -> dict[str, Any]:
    """Return a table for the template; of a long one the first and last rows, and the range of each column."""
    try:
        table = folder.table(name)
    except UsageError as error:
        return {"error": str(error).replace(str(folder.path), folder.name)}
    columns, hidden = list(table.items())[:MOST_COLUMNS], len(table) - MOST_COLUMNS
    long = table.rows > MOST_ROWS
    texts = [cells_text(edge_cells(cells) if long else cells) for _, cells in columns]
    return {
        "size": count(table.rows, "row") + (f", {count(hidden, 'more column')}" if hidden > 0 else ""),
        "heads": [(table.label(title), alignment(cells) == "right") for title, cells in columns],
        "rows": list(zip(*texts, strict=True)),
        "edge": EDGE_CELLS,
        "gap": table.rows - 2 * EDGE_CELLS if long else 0,
        "ranges": [_range(cells) for _, cells in columns] if long else [],
    }


def _range(cells: Any) -> str:
    """Return the range of a numeric column, or the number of different texts."""
    if not isinstance(cells, np.ndarray):
        return f"{len(set(map(str, cells)))} different"
    finite = cells[np.isfinite(cells)]
    if not len(finite):
        return "\N{EN DASH}"
    low, high = cells_text(np.array([finite.min(), finite.max()]))
    return low if low == high else f"{low} to {high}"


def _figure(folder: RunFolder, kinds: Mapping[str, str]) -> dict[str, Any]:
    """Return the content and the type of the smallest file of a figure that a page can show."""
    contents = {suffix: folder.files[file].read_bytes() for suffix, file in kinds.items() if suffix in KINDS}
    suffix = min(contents, key=lambda suffix: (len(contents[suffix]), suffix), default="")
    return {"content": contents.get(suffix, b""), "kind": KINDS.get(suffix)}


def _image(content: bytes, kind: str) -> Markup:
    """Return a figure as a data URL."""
    return Markup(f"data:{kind};base64,{base64.b64encode(content).decode()}")


#: What the template calls.
HELPERS = {
    "anchor": _anchor, "figure": _figure, "figures": _figures, "image": _image, "join_words": shlex.join,
    "log": np.log, "parameters_of": _parameters, "result_lines": result_lines, "small_plot": small_plot,
    "table": _table, "trust": trust,
}  # fmt: skip


@dataclass
class Pieces:
    """Optional pieces of a page, included by importance within a limit of bytes."""

    limit: int
    _pieces: list[tuple[int, str, str]] = field(default_factory=list)

    def add(self, rank: int, instead: str, caller: Callable[[], str]) -> Markup:
        """Add the piece that `caller` gives; return a placeholder that `fit` replaces by it, or by `instead`.

        Pieces of a lower rank are placed first.
        """
        self._pieces.append((rank, caller(), escape(instead)))
        return Markup(f"{MARK}{len(self._pieces) - 1}{MARK}")

    def fit(self, page: str) -> str:
        """Return the page with the pieces that fit."""
        parts = page.split(MARK)
        pieces = [self._pieces[int(number)] for number in parts[1::2]]
        chosen = [instead for _, _, instead in pieces]
        room = self.limit - sum(map(_bytes, [*parts[::2], *chosen]))
        for slot in sorted(range(len(pieces)), key=lambda slot: pieces[slot][0]):
            growth = _bytes(piece := pieces[slot][1]) - _bytes(chosen[slot])
            if growth <= room:
                chosen[slot] = piece
                room -= max(0, growth)
        parts[1::2] = chosen
        return "".join(parts)


def _bytes(text: str) -> int:
    return len(text.encode())


def compose_methods(
    folders: Sequence[RunFolder], templates: Path | None = None
) -> tuple[list[list[Piece]], list[Reference]]:
    """Return the methods of runs as paragraphs of pieces, without repetition, and the references."""
    records = [folder.record for folder in folders]
    data = " ".join(render_sentences("data", templates, folders))
    certainty = " ".join(render_sentences("certainty", templates, *_certainty(records)))
    paragraphs = [parse_pieces(data), *_analyses(folders), *([parse_pieces(certainty)] if certainty else [])]
    return number_citations(paragraphs, ", ".join(dict.fromkeys(record["himach"] for record in records)))


def _analyses(folders: Sequence[RunFolder]) -> Iterator[list[Piece]]:
    """Yield the methods of the analyses; references without a place in the text are cited at its end."""
    entries = [analysis.entry for folder in folders for analysis in folder.analyses]
    texts = {entry.get("methods") or f"{code(entry['name'])} was computed.": entry for entry in entries}
    for text, entry in texts.items():
        pieces = parse_pieces(text)
        cited = {name for piece in pieces for name in piece.names}
        uncited = tuple(name for name in entry.get("references", ()) if name.strip() and name not in cited)
        if uncited:
            last = pieces.pop() if pieces[-1].text.endswith(".") and not pieces[-1].is_code else Piece(".")
            pieces += [Piece(f"{last.text.removesuffix('.')} "), Piece(names=uncited), Piece(".")]
        yield pieces


def _certainty(records: Sequence[Mapping[str, Any]]) -> tuple[list[float], list[str], list[str], list[set[str | None]]]:
    """Return levels and methods of intervals, the cuts of means, and the groups of each ensemble."""
    levels, methods, cut, ensembles = [], [], [], []
    for record in records:
        tables = record.get("uncertainty", {}).values()
        levels += [table["level"] for table in tables]
        methods += [part["method"] for table in tables for part in (table, *table["means"].values())]
        start = record.get("equilibration")
        cut += ["equilibration" if start == "auto" else f"{start} ps"] if tables and start is not None else []
        if "ensemble" in record and record.get("confidence") != "off":
            levels.append(record.get("confidence") or 0.95)
            ensembles.append({member["group"] for member in record["ensemble"]})
    return levels, methods, cut, ensembles
