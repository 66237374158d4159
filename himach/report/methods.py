"""What a paper says of its methods: `methods_of()` draws it up from what runs recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from himach.report.citations import Piece, Reference, cited, code, pieces_of
from himach.report.folder import RunFolder
from himach.report.template import sentences_of


def methods_of(
    folders: Sequence[RunFolder], templates: Path | None = None
) -> tuple[list[list[Piece]], list[Reference]]:
    """Return the methods of runs, the pieces of each paragraph, each thing said once; and the references."""
    records = [folder.record for folder in folders]
    data = " ".join(sentences_of("data", templates, folders))
    certainty = " ".join(sentences_of("certainty", templates, *_certainty(records)))
    paragraphs = [pieces_of(data), *_analyses(folders), *([pieces_of(certainty)] if certainty else [])]
    return cited(paragraphs, ", ".join(dict.fromkeys(record["himach"] for record in records)))


def _analyses(folders: Sequence[RunFolder]) -> Iterator[list[Piece]]:
    """Give the methods of the analyses, with what they cite at the end where they do not say where."""
    entries = [analysis.entry for folder in folders for analysis in folder.analyses]
    texts = {entry.get("methods") or f"{code(entry['name'])} was computed.": entry for entry in entries}
    for text, entry in texts.items():
        pieces = pieces_of(text)
        within = {name for piece in pieces for name in piece.names}
        others = tuple(name for name in entry.get("references", ()) if name.strip() and name not in within)
        if others:
            last = pieces.pop() if pieces[-1].text.endswith(".") and not pieces[-1].is_code else Piece(".")
            pieces += [Piece(f"{last.text.removesuffix('.')} "), Piece(names=others), Piece(".")]
        yield pieces


def _certainty(records: Sequence[Mapping[str, Any]]) -> tuple[list[float], list[str], list[str], list[set[str | None]]]:
    """Return the levels and methods of intervals, what was cut off means, and the groups of each ensemble."""
    levels, methods, cut, ensembles = [], [], [], []
    for record in records:
        told = record.get("uncertainty", {}).values()
        levels += [one["level"] for one in told]
        methods += [part["method"] for one in told for part in (one, *one["means"].values())]
        start = record.get("equilibration")
        cut += ["equilibration" if start == "auto" else f"{start} ps"] if told and start is not None else []
        if "ensemble" in record and record.get("confidence") != "off":
            levels.append(record.get("confidence") or 0.95)
            ensembles.append({member["group"] for member in record["ensemble"]})
    return levels, methods, cut, ensembles
