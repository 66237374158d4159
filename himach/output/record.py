"""The record of a run, run.json: `Record`, the type of it and of its parts; docs/run-json.md describes the fields."""

from __future__ import annotations

from typing import Any, TypeAlias

from himach.analysis import Analysis
from himach.parameters import recorded

#: The schema is ``himach/report/data/run-schema.json``.
Record: TypeAlias = dict[str, Any]


def analysis_record(analysis: Analysis) -> Record:
    """Return the record of an analysis and its later stages."""
    settings = {name: recorded(value) for name, value in analysis.settings().items()}
    entry = Record(name=analysis.label(), parameters=settings)
    following = analysis.next_stage()
    if following is not None:
        entry["then"] = analysis_record(following)
    return entry
