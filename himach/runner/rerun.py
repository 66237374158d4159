"""Repetition of a run from its record: `repeatable_record()` and `recorded_job()`."""

import ast
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from himach.errors import UsageError
from himach.io.datasets.member import Member
from himach.io.datasets.request import TransformOptions, absolute_cache
from himach.output.record import read_record
from himach.runner.options import Job, RunOptions
from himach.runner.scripts import find_analyses


def repeatable_record(path: Path) -> dict[str, Any]:
    """Read the record of a run from its file or folder; raises UsageError if an analysis cannot be found again."""
    record = read_record(path)
    for entry in record["analyses"]:
        if not entry.get("source"):
            reason = entry.get("unrepeatable", "it does not say where that was defined")
            raise UsageError(f"{path}: {entry['name']} cannot be repeated from a record: {reason}")
    return record


def recorded_ranks(record: Mapping[str, Any]) -> int:
    """Return how many ranks of this machine repeat a run; raise UsageError if the run had several nodes."""
    ranks, nodes = int(record["ranks"]), int(record["nodes"])
    if nodes > 1:
        raise UsageError(
            f"that run had {ranks} ranks on {nodes} nodes; start them with srun or mpiexec, or say how many there are "
            "to be on this machine: -n RANKS"
        )
    return ranks


def recorded_job(record: dict[str, Any], assignments: Sequence[str], overrides: Mapping[str, Any]) -> Job:
    """Return the job of an earlier run, and change to its working directory."""
    overrides = {name: _resolve_value(name, value) for name, value in overrides.items()}
    steps = vars(TransformOptions.from_steps(overrides.get("transform", ())))
    steps = {name: _resolve_value(name, value) for name, value in steps.items() if value}
    if os.path.isdir(record["directory"]):
        os.chdir(record["directory"])  # so that its relative paths hold
    sources = [entry["source"] for entry in record["analyses"]]
    analyses = find_analyses(sources, assignments, record["analyses"])
    options = RunOptions.from_record(record)
    overrides["transform"] = replace(TransformOptions.from_record(record), **steps).steps()
    slices = ("start", "stop", "step")
    if "frames" in overrides:  # `frames` replaces a slice
        options = {name: value for name, value in options.items() if name not in slices}
    elif not overrides.keys() & set(slices):
        options["frames"] = record.get("selected")
    topology = record.get("topology")
    if overrides.keys() & {"trajectories", "ensemble"}:
        overrides = {"trajectories": [], "ensemble": None, **overrides}
    fields: dict[str, Any] = {
        **options,
        **_sources(record),
        "topology": None if topology is None else Path(topology),
        **overrides,
        "keywords": {**_recorded_keywords(record, overrides["keywords"]), **overrides["keywords"]},
    }
    return Job(analyses=analyses, several=len(analyses) > 1, earlier=record, **fields)


def _sources(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the trajectories of an earlier run, or the members of its ensemble."""
    if not isinstance(record.get("ensemble"), list):
        return {"trajectories": [Path(path) for path in record["trajectory"]]}
    fields = {"name", "trajectory", "topology", "group", "start", "stop", "step", "metadata"}
    try:
        members = [Member(**{name: entry[name] for name in fields}) for entry in record["ensemble"]]
    except (KeyError, TypeError):
        raise UsageError("the record does not tell the members of its ensemble") from None
    return {"trajectories": [], "ensemble": members}


def _recorded_keywords(record: Mapping[str, Any], excluded: Collection[str]) -> dict[str, Any]:
    """Return an earlier run's keywords for MDAnalysis, without the excluded ones."""
    keywords = {name: value for name, value in record["universe"].items() if name not in excluded}
    for name, value in keywords.items():
        try:
            keywords[name] = ast.literal_eval(value["python"]) if isinstance(value, dict) else value
        except (ValueError, SyntaxError, KeyError):
            raise UsageError(
                f"keyword {name} of that run was {value.get('python')}, which no record can hold; give that universe "
                "keyword again"
            ) from None
    return keywords


def _resolve_value(name: str, value: Any) -> Any:
    """Return an option with absolute paths, for use in another folder; keep a dataset's name."""
    if name == "trajectories":
        return [Path(os.path.abspath(path)) if path.exists() else path for path in value]
    if name == "cache":
        return absolute_cache(value)
    return Path(os.path.abspath(os.path.expanduser(value))) if isinstance(value, Path) else value
