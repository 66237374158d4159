"""What a paper says of its methods: `methods_of()` draws it up from what runs recorded, `write_files()` writes it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from himach.errors import UsageError
from himach.files import write_bytes
from himach.report.checklist import checklist_markdown, checklist_of
from himach.report.prose import MARK, Piece, Prose, code, pieces_of
from himach.report.record_shape import as_dict
from himach.report.run_folder import RunFolder

__all__ = ["check_place", "methods_files", "methods_of", "write_files"]

#: Parts of names of methods of intervals, with what is said and cited of them.
INTERVALS = {
    "Student's t over blocks of frames": (
        "Intervals of averages over frames are by Student's t over 4 to 20 blocks of frames, as the jackknife has it "
        "[@kunsch1989], the number of blocks by that of independent ones [@geyer1992]."
    ),
    "Student's t over blocks: events in bursts": (
        "Numbers of events that come in bursts, by their Fano factor [@fano1947], have intervals by Student's t over "
        "ten parts of the time."
    ),
    "Student's t over blocks": (
        "Means in time have intervals by Student's t over 4 to 20 blocks of equal length [@flegal2010], the number of "
        "blocks by that of independent values [@geyer1992]; from when on a series is equilibrated is told by the least "
        "squared standard error of its mean [@clark2024]."
    ),
    "Garwood's": "Numbers of events have the limits of Garwood [@garwood1936].",
    "Wilson's": "Shares have Wilson's interval [@wilson1927, @brown2001], of as many independent values as there are.",
    "Kaplan-Meier": (
        "Survival has limits by the logarithm of its logarithm, about the estimate of Kaplan and Meier [@kaplan1958]."
    ),
    "exponential": (
        "Mean stays have limits by chi-square, if stays end at the same rate however long they last [@cox1953]."
    ),
}


#: What readers of these formats ask to be cited by: MDAnalysis's, and zarrtraj, of which H5MD in Zarr is.
FORMATS = {
    ".h5md": " [@debuyl2014, @jakupovic2021]",
    ".zarr": " [@debuyl2014, @woods2026]",
    ".zarrmd": " [@debuyl2014, @woods2026]",
    ".tng": " [@lundborg2014]",
    ".mmtf": " [@bradley2017]",
}


def methods_of(folders: Sequence[RunFolder]) -> Prose:
    """Return the methods of runs, each thing said once."""
    version = ", ".join(dict.fromkeys(str(folder.record["himach"]) for folder in folders))
    return Prose.of([pieces_of(_software(folders)), *_analyses(folders), *_intervals(folders)], version)


def methods_files(folders: Sequence[RunFolder]) -> dict[str, str]:
    """Return the files of the methods of runs, text by name."""
    methods = methods_of(folders)
    return {
        "methods.md": methods.markdown(),
        "methods.tex": methods.latex(),
        "references.bib": methods.bibtex(),
        "checklist.md": checklist_markdown(checklist_of(folders)),
    }


def check_place(folder: Path, names: Iterable[str]) -> None:
    """Raise UsageError if a file of such a name is there that is not as himach wrote it."""
    for path in (folder / name for name in names):
        if path.exists() and not _is_as_written(path):
            raise UsageError(
                f"{path} is there, and himach did not write it, or it was changed since; name another folder by --out, "
                "or move it"
            )


def write_files(folder: Path, files: Mapping[str, str]) -> list[Path]:
    """Write texts into a folder, which is made; return the paths.

    Raises
    ------
    UsageError
        If a file of such a name is there that himach did not write, or that was changed since, as a checklist is.
    """
    check_place(folder, files)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        write_bytes(folder / name, _signed(text))
    return [folder / name for name in files]


def _signed(text: str) -> bytes:
    """Return a text that tells in its first line, where its mark is, what the other lines were when it was written."""
    first, _, rest = text.partition("\n")
    digest = hashlib.sha256(rest.encode()).hexdigest()[:16]
    return f"{first.replace(MARK, f'{MARK}, {digest}')}\n{rest}".encode()


def _is_as_written(path: Path) -> bool:
    try:
        content = path.read_bytes()
        marked = re.sub(f"{MARK}, [0-9a-f]+", MARK, content.decode(), count=1)
    except (OSError, UnicodeDecodeError):
        return False
    return MARK in marked and _signed(marked) == content


def _software(folders: Sequence[RunFolder]) -> str:
    """Say by what was analysed, and which data."""
    records = [folder.record for folder in folders]
    by = _versions("himach", [record["himach"] for record in records])
    reads = _versions("MDAnalysis", [as_dict(record.get("versions")).get("MDAnalysis") for record in records])
    data = dict.fromkeys(sentence for record in records for sentence in _data(record))
    return " ".join(
        [
            f"Trajectories were analysed with {by} [@himach, @tu2008], which reads them by {reads} [@gowers2016, "
            "@michaudagrawal2011].",
            *data,
        ]
    )


def _versions(name: str, numbers: Sequence[Any]) -> str:
    return " ".join([name, " and ".join(dict.fromkeys(str(number) for number in numbers if number))]).strip()


def _data(record: Mapping[str, Any]) -> Iterator[str]:
    """Say which frames of which trajectory a run took, a sentence each."""
    members = record.get("ensemble")
    if isinstance(members, list) and members:
        taken = [one for one in members if isinstance(one, dict) and not one.get("error")]
        groups: dict[str, int] = {}
        for one in taken:
            groups[str(one.get("group") or "")] = groups.get(str(one.get("group") or ""), 0) + 1
        by_group = "" if set(groups) <= {""} else f" ({', '.join(f'{code(name)}: {n}' for name, n in groups.items())})"
        yield f"The data are {len(taken)} simulations{by_group}, with {record.get('frames')} frames together."
        yield from _treatment(record)
        return
    dataset = as_dict(record.get("dataset"))
    paths = dataset.get("path", "")
    names = [_file(str(path)) for path in (paths if isinstance(paths, list) else [paths])]
    frames, there = record.get("frames"), dataset.get("frames")
    count = f"all {there} frames" if frames == there else f"{frames} of {there} frames"
    picked = [f"{name} {record[name]}" for name in ("start", "stop", "step") if record.get(name) is not None]
    system = as_dict(record.get("system"))
    times, dt = system.get("time_ps"), system.get("dt_ps")
    between = f", from {times[0]:.6g} to {times[1]:.6g} ps" if isinstance(times, list) and len(times) == 2 else ""
    between += f", every {dt:.6g} ps" if between and dt else ""
    yield (
        f"Of {' and '.join(names)} ({dataset.get('atoms')} atoms), {count} were taken"
        f"{' (' + ', '.join(picked) + ')' if picked else ''}{between}."
    )
    yield from _treatment(record)


def _file(path: str) -> str:
    """Return the name of a trajectory's file, and what its format is cited by."""
    return code(PurePath(path).name) + FORMATS.get(PurePath(path).suffix.lower(), "")


def _treatment(record: Mapping[str, Any]) -> Iterator[str]:
    """Say what was done to each frame before the analyses saw it."""
    steps = ["molecules were made whole"] if record.get("whole") else []
    followed = (
        "atoms were followed through the periodic boundary, by the shortest step in each frame's box [@vonbulow2020]"
    )
    steps += [followed] if record.get("nojump") else []
    steps += [f"the box was centred on {code(record['center'])}"] if record.get("center") else []
    onto = code(PurePath(str(record["reference"])).name) if record.get("reference") else "the first frame"
    fitted = f"frames were superposed on {onto} by {code(record.get('fit'))} and the quaternion method [@theobald2005]"
    steps += [fitted] if record.get("fit") else []
    if steps:
        yield f"Before the analysis, {', then '.join(steps)}."


def _analyses(folders: Sequence[RunFolder]) -> Iterator[list[Piece]]:
    """Give the methods of the analyses, with what they cite at the end where they do not say where."""
    said = {}
    for entry in [one.entry for folder in folders for one in folder.analyses]:
        text = str(entry.get("methods") or f"{code(entry['name'])} was computed.")
        listed = entry.get("references")
        said[text] = [str(one) for one in listed if str(one).strip()] if isinstance(listed, list) else []
    for text, listed in said.items():
        pieces = pieces_of(text)
        within = {name for piece in pieces for name in piece.cited}
        others = tuple(name for name in listed if name not in within)
        if others:
            last = pieces.pop() if pieces[-1].text.endswith(".") and not pieces[-1].is_code else Piece(".")
            pieces += [Piece(last.text.removesuffix(".")), Piece(" "), Piece(cited=others), Piece(".")]
        yield pieces


def _intervals(folders: Sequence[RunFolder]) -> Iterator[list[Piece]]:
    """Give one paragraph of how intervals were made, if any were."""
    used, levels, cut, none, ensemble, groups = [], [], [], False, False, False
    for record in [folder.record for folder in folders]:
        told = record.get("uncertainty")
        for one in told.values() if isinstance(told, dict) else ():
            levels.append(one.get("level"))
            each = [one.get("method", ""), *(mean.get("method", "") for mean in (one.get("means") or {}).values())]
            none = none or any(str(method).startswith("none: ") for method in each)
            used += [name for method in each for name in [_kind(str(method))] if name]
        begin = record.get("equilibration")
        if told and begin is not None:
            cut.append("equilibration" if begin == "auto" else f"{begin} ps")
        members = record.get("ensemble")
        if isinstance(members, list) and record.get("confidence") != "off":
            ensemble = True
            levels.append(record.get("confidence") or 0.95)
            groups = groups or len({str(one["group"]) for one in members if one.get("group")}) > 1
    if not levels:
        return
    percent = " and ".join(f"{100 * level:g} %" for level in dict.fromkeys(float(one) for one in levels if one))
    sentences = [f"Intervals are of {percent}."] if used or ensemble else []
    sentences += [INTERVALS[name] for name in INTERVALS if name in used]
    if cut:
        sentences.append(f"Of means in time, values before {' and '.join(dict.fromkeys(cut))} were left out.")
    if none:
        sentences.append("Where there are fewer than eight independent values, there is none [@geyer1992].")
    if ensemble:
        sentences.append("Means over simulations have intervals by Student's t, a simulation being one value.")
    if groups:
        sentences.append(
            "Differences of groups have Welch's interval [@welch1947, @satterthwaite1946]; p is that of Welch's test "
            "and of permutations of the simulations [@ernst2004], both corrected by Holm's method [@holm1979]."
        )
    if sentences:
        yield pieces_of(" ".join(sentences))


def _kind(method: str) -> str:
    return next((name for name in INTERVALS if name in method), "")
