"""The page of a report: `report_page()` renders the template ``report.html.j2`` within a limit of bytes."""

from __future__ import annotations

import base64
import io
import json
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup, escape

from himach.errors import UsageError
from himach.output.cells import EDGE_CELLS, edge_cells
from himach.output.text import alignment, cells_text, count
from himach.report.folder import AnalysisFiles, RunFolder, stages
from himach.report.methods import compose_methods
from himach.report.results import result_lines, trust
from himach.report.template import render

#: A page is smaller than this, so that it can be sent by mail.
MOST_BYTES = 2_000_000
#: Longer tables show their first and last rows, wider ones their first columns.
MOST_ROWS, MOST_COLUMNS = 16, 12
KINDS = {".svg": "image/svg+xml", ".png": "image/png"}
#: Colours of a reduced figure, whose lines, bands and text need few.
COLOURS = 64
#: Options of a run that are listed if they are not defaults.
OPTIONS = (
    "start", "stop", "step", "selected", "whole", "nojump", "center", "wrap", "fit", "reference", "confidence",
    "equilibration",
)  # fmt: skip
MARK = "\x00"  # before and after the number of a piece: no text of a page has it


def report_page(folders: Sequence[RunFolder], directory: Path | None = None) -> str:
    """Return the report of runs as HTML, by the user's templates of `directory`, if given.

    Equal folders give equal text. Raises UsageError if a folder is given twice, or a template is wrong.
    """
    runs = [_run(name, i, folder) for i, (name, folder) in enumerate(zip(_names(folders), folders, strict=True))]
    methods, references = compose_methods(folders, directory)
    values = {"runs": runs, "methods": methods, "references": references}
    for reduced in (False, True):  # reduce the colours of figures if the page is too large
        pieces = Pieces(MOST_BYTES - 1)
        page = render("report.html", directory, piece=pieces.add, image=partial(_image, reduced=reduced), **values)
        if pieces.all_fit(page):
            break
    return pieces.fit(page)


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


def _run(name: str, index: int, folder: RunFolder) -> dict[str, Any]:
    """Return the data of a run for the template."""
    record = folder.record
    analyses = [
        {
            "label": analysis.label,
            "key": _anchor("run", index, name, analysis.label),
            "results": result_lines(folder, analysis),
            "figures": [_figure(folder, analysis, kinds) for kinds in analysis.figures],
            "tables": [_table(folder, table) for table in analysis.tables],
            "others": analysis.others,
            "parameters": dict.fromkeys(
                (name, json.dumps(value, ensure_ascii=False))
                for stage in stages(analysis.entry)
                for name, value in stage["parameters"].items()
            ),
        }
        for analysis in folder.analyses
    ]
    lone = [
        f"{analysis.label} ({analysis.entry.get('unrepeatable')})"
        for analysis in folder.analyses
        if not analysis.entry.get("source")
    ]
    return {
        "name": name,
        "key": _anchor("run", index, name),
        "folder": folder,
        "record": record,
        "analyses": analyses,
        "trust": trust(folder),
        "command": None if record["command"] is None else shlex.join(record["command"]),
        "options": {option: record[option] for option in OPTIONS if record.get(option) not in (None, False)},
        "unrepeatable": lone,
    }


def _anchor(*words: object) -> str:
    """Return an id for a part of a page, of ASCII letters, digits and hyphens."""
    return re.sub(r"[^A-Za-z0-9]+", "-", "-".join(map(str, words))).strip("-").lower()


def _table(folder: RunFolder, name: str) -> dict[str, Any]:
    """Return a table for the template; of a long one the first and last rows, and the range of each column."""
    try:
        table = folder.table(name)
    except UsageError as error:
        return {"name": name, "error": str(error).replace(str(folder.path), folder.name)}
    columns, hidden = list(table.items())[:MOST_COLUMNS], len(table) - MOST_COLUMNS
    long = table.rows > MOST_ROWS
    texts = [cells_text(edge_cells(cells) if long else cells) for _, cells in columns]
    return {
        "name": name,
        "file": folder.tables[name],
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


def _figure(folder: RunFolder, analysis: AnalysisFiles, kinds: Any) -> dict[str, Any]:
    """Return a figure for the template, with its smallest file that a page can show."""
    contents = {suffix: folder.files[file].read_bytes() for suffix, file in kinds.items() if suffix in KINDS}
    suffix = min(contents, key=lambda suffix: (len(contents[suffix]), suffix), default="")
    caption = analysis.entry.get("caption")
    return {
        "content": contents.get(suffix, b""),
        "kind": KINDS.get(suffix),
        "caption": caption or analysis.label,
        "alt": f"{analysis.label}: {caption}" if caption else f"Figure of {analysis.label}",
        "files": list(kinds.values()),
    }


def _image(figure: dict[str, Any], reduced: bool) -> Markup:
    """Return a figure as a data URL; with fewer colours if `reduced` and that is smaller."""
    content = figure["content"]
    if reduced and figure["kind"] == KINDS[".png"]:
        content = min(_fewer_colours(content), content, key=len)
    return Markup(f"data:{figure['kind']};base64,{base64.b64encode(content).decode()}")


def _fewer_colours(content: bytes) -> bytes:
    """Reduce the colours of a PNG; return it unchanged if it cannot be read."""
    from PIL import Image  # installed with Matplotlib

    buffer = io.BytesIO()
    try:
        with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
            reduced = image.convert("RGB").quantize(COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
            reduced.save(buffer, "PNG")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return content
    return buffer.getvalue()


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

    def all_fit(self, page: str) -> bool:
        """Tell whether all pieces fit."""
        parts = page.split(MARK)
        return sum(map(_bytes, parts[::2])) + sum(_bytes(self._pieces[int(n)][1]) for n in parts[1::2]) <= self.limit

    def fit(self, page: str) -> str:
        """Return the page with the pieces that fit."""
        parts = page.split(MARK)
        order = [int(number) for number in parts[1::2]]
        chosen = [self._pieces[number][2] for number in order]
        room = self.limit - sum(map(_bytes, [*parts[::2], *chosen]))
        for slot in sorted(range(len(order)), key=lambda slot: self._pieces[order[slot]][0]):
            growth = _bytes(piece := self._pieces[order[slot]][1]) - _bytes(chosen[slot])
            if growth <= room:
                chosen[slot] = piece
                room -= max(0, growth)
        parts[1::2] = chosen
        return "".join(parts)


def _bytes(text: str) -> int:
    return len(text.encode())
