"""Text on the methods of runs for a paper: `compose_methods()` makes it from their records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from himach.report.citations import Piece, Reference, code, number_citations, parse_pieces
from himach.report.folder import RunFolder
from himach.report.template import render_sentences


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
