"""The checklist for molecular-dynamics simulations of Communications Biology, as far as runs can fill it.

`checklist_of()` answers its questions, or leaves a blank that says who knows: simulations are not himach's. The
questions are in short those of Table 1 of "Reliability and reproducibility checklist for molecular dynamics
simulations", Communications Biology 6, 268 (2023), doi 10.1038/s42003-023-04653-0, an editorial under CC BY 4.0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from himach.report.markup import printable
from himach.report.prose import MARK, code
from himach.report.record_shape import as_dict
from himach.report.run_folder import RunFolder

__all__ = ["SOURCE", "Answer", "checklist_markdown", "checklist_of"]

SOURCE = (
    "After Table 1 of: Reliability and reproducibility checklist for molecular dynamics simulations. Communications "
    "Biology 6, 268 (2023), https://doi.org/10.1038/s42003-023-04653-0, CC BY 4.0; the questions are shortened."
)
QUESTIONS = {
    "1a": "Is it shown that the property measured has equilibrated?",
    "1b": "How are simulations split into equilibration and production, and how much was analysed?",
    "1c": "Are there at least 3 simulations per condition, with statistical analysis?",
    "1d": "Are results shown to be independent of the initial configuration?",
    "2a": "Are there calculations that can connect to experiments?",
    "3a": "Are there membranes, disordered proteins, glycans, nucleic acids, polymers, cryptic binding?",
    "3b": "Is the accuracy of the chosen models sufficient for the question?",
    "3c": "Is enhanced sampling needed, and are its parameters and convergence stated?",
    "4a": "System: box, atoms, water molecules, salt concentration, lipids",
    "4b": "Other parameters of the setup: protonation, restraints, cutoffs, thermostat, barostat",
    "4c": "Software for simulation and analysis, with versions",
    "4d": "Are initial coordinates, inputs and final coordinates provided?",
    "4e": "Is there custom code, and is it provided?",
}
#: What only the authors know, by question; of those that runs answer, what is missing there.
BLANKS = {
    "1d": "from which configurations the simulations began",
    "2a": "which of the results experiments can test",
    "3a": "whether there are any",
    "3b": "force field, water model, and why they are good enough",
    "3c": "how long the events take, and how they were sampled",
    "4a": "salt concentration",
    "4b": "protonation, restraints, nonbonded cutoff, thermostat, barostat",
    "4c": "the program that made the simulations, and its version",
    "4d": "where the files are to be had",
}
ENOUGH = 3  # simulations per condition, as 1c asks


@dataclass(frozen=True)
class Answer:
    """An answer to a question of the checklist.

    Attributes
    ----------
    number, question
        Such as ``1a``.
    told
        What runs tell, a sentence each; empty: nothing.
    blank
        What the authors are to say; "" if nothing is missing.
    """

    number: str
    question: str
    told: tuple[str, ...]
    blank: str


def checklist_of(folders: Sequence[RunFolder]) -> list[Answer]:
    """Return the checklist of runs, in its order; names of files and selections are between backticks."""
    answers = {"1a": _equilibrated, "1b": _analysed, "1c": _replicas, "1d": _beginnings, "4a": _system, "4c": _software}
    answers["4e"] = _own_code
    return [
        Answer(
            number,
            question,
            tuple(dict.fromkeys(said for folder in folders for said in answers[number](folder)))
            if number in answers
            else (),
            BLANKS.get(number, ""),
        )
        for number, question in QUESTIONS.items()
    ]


def checklist_markdown(answers: Sequence[Answer]) -> str:
    """Return the checklist as a table of Markdown."""
    rows = [f"| {one.number} | {one.question} | {'<br>'.join(map(_cell, _said(one)))} |" for one in answers]
    lines = [
        f"<!-- {MARK} -->",
        "## Checklist",
        "",
        SOURCE,
        "",
        "| | question | answer |",
        "| --- | --- | --- |",
        *rows,
        "",
    ]
    return printable("\n".join(lines))


def _said(answer: Answer) -> list[str]:
    return [*answer.told, *([f"**To be filled in:** {answer.blank}."] if answer.blank else [])]


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


def _equilibrated(folder: RunFolder) -> Iterator[str]:
    """Say of each mean in time from when on it is equilibrated, and of each table whether it converged."""
    alone = folder.analyses[0].label if len(folder.analyses) == 1 else ""
    for table, told in as_dict(folder.record.get("uncertainty")).items():
        name = table if alone in ("", table) else f"{alone}/{table}"
        means = as_dict(as_dict(told).get("means"))
        for column, mean in means.items():
            where = name if column == name.rpartition("/")[2] else f"{name}, {column}"
            start = mean.get("start_ps")
            since = "" if start is None else f"equilibrated from {_number(start)} ps, "
            yield f"{code(where)}: {since}{_halves(mean)}{_worth(mean)}."
        if not means:
            yield f"{code(name)}: {_worth(told)}."


def _analysed(folder: RunFolder) -> Iterator[str]:
    record = folder.record
    picked = [f"{name} {record[name]}" for name in ("start", "stop", "step") if record.get(name) is not None]
    cut = record.get("equilibration")
    left_out = {None: "nothing was left out of means", "auto": "of means, what is before equilibration was left out"}
    left = left_out.get(cut) if cut is None or cut == "auto" else f"of means, what is before {cut} ps was left out"
    there = as_dict(record.get("dataset")).get("frames")
    which = f" ({', '.join(picked)})" if picked else ""
    yield f"{code(folder.name)}: {record.get('frames')} of {there} frames{which} were analysed; {left}."


def _replicas(folder: RunFolder) -> Iterator[str]:
    """Say how many simulations there are of each condition."""
    if not folder.members:
        yield f"No: {code(folder.name)} is of one simulation, whose intervals are by blocks of it."
        return
    groups: dict[str, int] = {}
    for member in folder.members:
        if not member.get("error"):
            groups[str(member.get("group") or "all")] = groups.get(str(member.get("group") or "all"), 0) + 1
    counts = ", ".join(f"{code(name)}: {count}" for name, count in groups.items())
    enough = "Yes" if groups and all(count >= ENOUGH for count in groups.values()) else "No"
    yield f"{enough}: simulations by condition are {counts}; means over them have intervals by Student's t."


def _beginnings(folder: RunFolder) -> Iterator[str]:
    if folder.members:
        yield f"{code(folder.name)} has tables of every simulation by itself, and how they differ."


def _system(folder: RunFolder) -> Iterator[str]:
    """Give box, atoms and residues, of every system once."""
    systems = [as_dict(folder.record.get("system")), *(as_dict(member.get("system")) for member in folder.members)]
    told = False
    for system in filter(None, systems):
        box, residues = system.get("box"), as_dict(system.get("residues"))
        sides = f"{_numbers(box[:3], ' x ')} Å, {_numbers(box[3:], ', ')}°" if box else "none"
        others = ", ".join(f"{name} {count}" for name, count in residues.items() if name != "water")
        told = True
        yield (
            f"Box of the first frame: {sides}. Atoms: {system.get('atoms')}. Water molecules: "
            f"{residues.get('water', 0)}. Other residues: {others or 'none'}."
        )
    if not told:
        yield f"Atoms: {as_dict(folder.record.get('dataset')).get('atoms')}."


def _software(folder: RunFolder) -> Iterator[str]:
    versions = {"himach": folder.record["himach"], **as_dict(folder.record.get("versions"))}
    yield f"Analysis: {', '.join(f'{name} {version}' for name, version in versions.items() if version)}."


def _own_code(folder: RunFolder) -> Iterator[str]:
    """Name the scripts of the analyses, with digests of their content."""
    folders, digests = folder.record.get("code_folders"), as_dict(folder.record.get("digests"))
    own = [PurePath(str(one)) for one in folders] if isinstance(folders, list) else []
    files = [path for path in digests if path.endswith(".py") and any(map(PurePath(path).is_relative_to, own))]
    for path in files:
        yield f"Analysis: {code(PurePath(path).name)}, SHA-256 {digests[path]}."
    nowhere = [entry for entry in folder.record["analyses"] if not entry.get("source")]
    for entry in nowhere:
        yield f"Analysis: {code(entry['name'])}, of which there is no file ({entry.get('unrepeatable') or 'not told'})."
    if not files and not nowhere:
        yield f"None in the analysis of {code(folder.name)}."


def _halves(mean: Mapping[str, Any]) -> str:
    """Say whether both halves of a series have the same mean, as far as can be told."""
    found = mean.get("halves")
    if not isinstance(found, list) or None in found:
        return ""
    return "both halves agree, " if found[1] <= 0 <= found[2] else "its halves differ, "


def _worth(told: Mapping[str, Any]) -> str:
    """Say how many independent values there are, and whether there was enough for an interval."""
    method, n_eff = str(told.get("method", "")), told.get("n_eff")
    worth = (
        ""
        if n_eff is None or not math.isfinite(n_eff)
        else f"{_number(round(n_eff, 1) if n_eff < 100 else round(n_eff))} independent values, "
    )
    return f"{worth}not converged" if method.startswith("none") else f"{worth}interval by {method}"


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, int | float) else str(value)


def _numbers(values: Sequence[Any], between: str) -> str:
    return between.join(map(_number, values))
