"""The record of a run: what run.json says.

The classes are plain dicts with checked keys; `Record(...)` takes every field by name.
"""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

from himach.analysis import Analysis


class AnalysisRecord(TypedDict):
    """One analysis and its parameters; `then` is its next stage."""

    name: str
    parameters: dict[str, Any]
    then: NotRequired[AnalysisRecord]


class DatasetRecord(TypedDict):
    """The dataset: its path (several where files follow one another), frames in it, atoms, fingerprint."""

    path: str | list[str]
    frames: int
    atoms: int
    fingerprint: str


class Assignment(TypedDict):
    """Frames by the rule that gave them to their readers."""

    native: int
    alien: int
    residue: int


class Bytes(TypedDict):
    """Bytes read from the cache and from the origin, and bytes of pairs that travelled between ranks."""

    cache: int
    origin: int
    shuffled: int


class Seconds(TypedDict):
    """Wall time by phase."""

    startup: float
    zazen: float
    map: float
    shuffle: float
    reduce: float
    finish: float
    total: float


class Record(TypedDict):
    """What a run was and did.

    Attributes
    ----------
    himach
        Version.
    analyses
        The analyses with their parameters.
    dataset
        What was read from.
    frames
        Frames read.
    ranks, nodes
        How many of each took part.
    assignment, bytes, seconds
        How frames were given to readers, bytes moved, wall time.
    pairs
        Pairs emitted by map().
    errors
        What went wrong without ending the run.
    files
        Files written, relative to the directory of run.json.
    """

    himach: str
    analyses: list[AnalysisRecord]
    dataset: DatasetRecord
    frames: int
    ranks: int
    nodes: int
    assignment: Assignment
    bytes: Bytes
    seconds: Seconds
    pairs: int
    errors: list[str]
    files: NotRequired[list[str]]


def analysis_record(analysis: Analysis) -> AnalysisRecord:
    """Return the entry of an analysis, with its later stages."""
    entry = AnalysisRecord(name=analysis.label(), parameters=analysis.settings())
    following = analysis.next_stage()
    if following is not None:
        entry["then"] = analysis_record(following)
    return entry
