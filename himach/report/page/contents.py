"""Figures and tables of an analysis on the page: `figures()` and `tables()`."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from typing import Any

import numpy as np

from himach.errors import UsageError
from himach.output.cells import EDGE_CELLS, Cells, alignment, cells_text, count
from himach.output.table import Table
from himach.report.markup import Html, element, join, text
from himach.report.page.pieces import Pieces
from himach.report.run_folder import AnalysisFiles, RunFolder

__all__ = ["figures", "file_size", "scrolling", "table", "tables"]

#: A longer table shows its first and last rows.
MOST_ROWS = 16
MOST_COLUMNS = 12
KINDS = {".svg": "image/svg+xml", ".png": "image/png"}
#: Ranks of pieces: tables go before figures.
TABLES, FIGURES = 0, 2
#: Colours of a figure that is made smaller; it has lines, bands and text of few.
COLOURS = 64


def figures(folder: RunFolder, analysis: AnalysisFiles, pieces: Pieces) -> Html:
    """Return the figures of an analysis with their captions."""
    return join(_figure(folder, analysis, kinds, pieces) for kinds in analysis.figures)


def tables(folder: RunFolder, analysis: AnalysisFiles, pieces: Pieces) -> Html:
    """Return the tables of an analysis, and the names of its other files."""
    shown = [_table_of(folder, name, pieces) for name in analysis.tables]
    if analysis.others:
        shown.append(element("p", "Other files: ", _files(folder, analysis.others), class_="files"))
    return join(shown)


def table(name: str, columns: Table, note: object = "") -> Html:
    """Return a table; of a long one the first and last rows, of a wide one the first columns."""
    shown = list(columns.items())[:MOST_COLUMNS]
    hidden = list(columns)[MOST_COLUMNS:]
    long = columns.rows > MOST_ROWS
    head = element(
        "tr", *(element("th", columns.label(title), scope="col", class_=_side(cells)) for title, cells in shown)
    )
    cells = [_cells(each, long) for _, each in shown]
    rows = [element("tr", *row) for row in zip(*cells, strict=True)]
    if long:
        gap = element("td", f"\N{VERTICAL ELLIPSIS} {columns.rows - 2 * EDGE_CELLS} rows more", colspan=len(shown))
        rows.insert(EDGE_CELLS, element("tr", gap, class_="gap"))
        rows.append(element("tr", *(_range(cells) for _, cells in shown), class_="range"))
    size = count(columns.rows, "row") + (f", {count(len(hidden), 'more column')}" if hidden else "")
    title = element("caption", element("b", name), f" ({size})", note)
    body = element("table", title, element("thead", head), element("tbody", *rows))
    return scrolling(body, f"Table {name}")


def scrolling(content: Html, name: str) -> Html:
    """Return content that may be wider than the page, in a region that keys can scroll."""
    return element("div", content, class_="scroll", role="region", aria_label=name, tabindex=0)


def file_size(n_bytes: int) -> str:
    """Return a size in words."""
    return (
        f"{n_bytes} bytes"
        if n_bytes < 1000
        else f"{n_bytes / 1000:.3g} kB"
        if n_bytes < 1e6
        else f"{n_bytes / 1e6:.3g} MB"
    )


def _figure(folder: RunFolder, analysis: AnalysisFiles, kinds: Mapping[str, str], pieces: Pieces) -> Html:
    sizes = {suffix: folder.files[file].stat().st_size for suffix, file in kinds.items() if suffix in KINDS}
    caption = text(analysis.entry.get("caption") or analysis.label)
    files = element("span", _files(folder, kinds.values()), class_="files")
    if not sizes:
        return element(
            "figure", element("p", "This figure cannot be shown here."), element("figcaption", caption, " ", files)
        )
    suffix = min(sizes, key=lambda suffix: (sizes[suffix], suffix))
    content = folder.files[kinds[suffix]].read_bytes()

    def shown(content: bytes) -> Html:
        data = f"data:{KINDS[suffix]};base64,{base64.b64encode(content).decode()}"
        alt = f"{analysis.label}: {caption}" if analysis.entry.get("caption") else f"Figure of {analysis.label}"
        image = element("img", alt=Html(alt), src=Html(data))
        return element("figure", image, element("figcaption", caption, " ", files))

    def smaller() -> Html | None:
        small = _fewer_colours(content) if suffix == ".png" else None
        return None if small is None or len(small) >= len(content) else shown(small)

    left_out = f"This figure ({file_size(len(content))}) does not fit into the page; it lies in the folder."
    instead = element("figure", element("p", left_out), element("figcaption", caption, " ", files))
    return pieces.add(shown(content), instead, FIGURES, smaller)


def _fewer_colours(content: bytes) -> bytes | None:
    """Return a PNG in few colours, where Pillow is there, as it is wherever Matplotlib is; None: it cannot be had."""
    try:
        from PIL import Image
    except ImportError:
        return None
    buffer = io.BytesIO()
    try:
        with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
            few = image.convert("RGB").quantize(COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
            few.save(buffer, "PNG")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None
    return buffer.getvalue()


def _table_of(folder: RunFolder, name: str, pieces: Pieces) -> Html:
    file = folder.tables[name]
    try:
        whole = table(name, folder.table(name), element("span", " ", _files(folder, [file]), class_="files"))
    except UsageError as error:
        return element("p", str(error).replace(str(folder.path), folder.name), class_="bad")
    return pieces.add(
        whole, element("p", f"The table {name} does not fit into the page; it lies in the folder: {file}."), TABLES
    )


def _files(folder: RunFolder, names: Any) -> Html:
    return join((element("code", name) for name in names), ", ")


def _side(cells: Cells) -> str | None:
    return "number" if alignment(cells) == "right" else None


def _cells(cells: Cells, long: bool) -> list[Html]:
    if not long:
        texts = cells_text(cells)
    elif isinstance(cells, np.ndarray):
        texts = cells_text(np.concatenate([cells[:EDGE_CELLS], cells[-EDGE_CELLS:]]))
    else:
        texts = cells_text([*cells[:EDGE_CELLS], *cells[-EDGE_CELLS:]])
    return [element("td", each, class_=_side(cells)) for each in texts]


def _range(cells: Cells) -> Html:
    """Return the cell below a long column: from where to where its numbers go, or how many texts differ."""
    if not isinstance(cells, np.ndarray):
        return element("td", f"{len(set(map(str, cells)))} different")
    finite = cells[np.isfinite(cells)]
    if not len(finite):
        return element("td", "\N{EN DASH}", class_="number")
    low, high = cells_text(np.array([finite.min(), finite.max()]))
    return element("td", low if low == high else f"{low} to {high}", class_="number")
