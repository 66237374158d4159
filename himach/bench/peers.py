"""``himach bench peers``: himach beside the tools that a user would take instead, in one command.

`main()` prepares the tools and the data, measures the machine's limits and the benchmarks of `himach.bench.rows`, and
writes the table (``peers.md``) and all figures (``peers.json``). Each benchmark is saved when it is done, so that a run
that was ended goes on with ``--missing``, and one benchmark can be measured again by ``--only``.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from himach.bench import limits
from himach.bench.adk import folder
from himach.bench.contest import Contest
from himach.bench.figures import Row, markdown, markdown_table
from himach.bench.limits import Limit
from himach.bench.rows import ROWS
from himach.bench.tools import here, prepare
from himach.bench.whole import on_cores
from himach.errors import UsageError, nearest
from himach.output.files import write_bytes

__all__ = ["main", "page"]

FULL_REPEATS = 3
FILE_BYTES = 1 << 30


def main(
    only: Sequence[str] = (),
    frames: int | None = None,
    repeats: int = 3,
    ranks: int = 2,
    out: Path | None = None,
    directory: Path | None = None,
    missing: bool = False,
    installed: bool = False,
) -> None:
    """Measure, compare the answers, and write the table.

    Parameters
    ----------
    only
        Names of the benchmarks to run; all by default.
    frames
        The most frames that any benchmark may use.
    repeats
        Turns behind each median.
    ranks
        Ranks of himach, workers of the peers, and cores that both may use.
    out
        Folder of the results; ``himach-bench`` in the current folder by default.
    directory
        Where stores are made; None for ``/var/tmp``. It needs 10 GB for all benchmarks in full.
    missing
        Leave out what the results of an earlier run have.
    installed
        Compare with what this environment has, and install nothing.

    Raises
    ------
    DisagreementError
        If two tools gave different answers.
    UsageError
        If there is no such benchmark.
    """
    for name in only:
        if name not in ROWS:
            raise UsageError(f"there is no benchmark {name!r}{nearest(name, ROWS)}; there are {', '.join(ROWS)}")
    out = out or Path("himach-bench")
    out.mkdir(parents=True, exist_ok=True)
    saved = _load(out / "peers.json")
    names = [name for name in only or ROWS if not (missing and name in saved["benchmarks"])]
    tools = here() if installed else prepare(folder() / "tools")
    with tempfile.TemporaryDirectory(dir=directory or "/var/tmp", prefix="himach-bench-") as place, on_cores(ranks):
        contest = Contest(Path(place), tools, ranks, repeats, frames)
        saved["tools"] = {tool.name: tool.version for tool in tools.values()}
        saved["machine"] = limits.machine()
        saved["limits"] = [
            asdict(limit)
            for limit in limits.measure(Path(place), ranks, repeats, FILE_BYTES if frames is None else FILE_BYTES >> 4)
        ]
        for name in names:
            print(f"{name} ...", file=sys.stderr, flush=True)
            began = time.time()
            row = ROWS[name](contest)
            saved["benchmarks"][name] = {
                **row.as_dict(),
                "himach": version("himach"),
                "began": time.strftime("%Y-%m-%d %H:%M", time.localtime(began)),
                "took": time.time() - began,
                "ranks": ranks,
                "repeats": repeats,
                "trial": frames is not None or repeats < FULL_REPEATS,
            }
            _save(out, saved)
    print((out / "peers.md").read_text())


def page(saved: dict[str, Any]) -> str:
    """Return the results as Markdown: the machine and its limits, then a table a benchmark."""
    tools = ", ".join(f"{name} {version}" for name, version in saved["tools"].items())
    table = [Limit(**{**limit, "values": tuple(limit["values"])}).cells() for limit in saved["limits"]]
    rows = [_row(saved["benchmarks"][name]) for name in ROWS if name in saved["benchmarks"]]
    counts = sorted({(each["ranks"], each["repeats"]) for each in saved["benchmarks"].values()})
    how = "; ".join(
        f"{ranks} ranks or workers on as many cores, medians of {repeats} turns" for ranks, repeats in counts
    )
    return "\n\n".join(
        [
            f"{saved['machine']}. himach {version('himach')}; {tools}. {how}.",
            markdown_table(["limit of the machine", "median", "spread"], table),
            markdown(rows),
        ]
    )


def _row(saved: dict[str, Any]) -> Row:
    """Return a saved benchmark; without bars and with a warning if it was a trial."""
    row = Row.from_dict(saved)
    if not saved["trial"]:
        return row
    trial = "**A trial**, with fewer frames or turns than the bars are meant for."
    return replace(row, figures=[replace(figure, bar=None) for figure in row.figures], notes=[trial, *row.notes])


def _load(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {"benchmarks": {}}
    saved: dict[str, Any] = json.loads(path.read_text())
    return saved


def _save(out: Path, saved: dict[str, Any]) -> None:
    for name, text in (("peers.json", json.dumps(saved, indent=1)), ("peers.md", page(saved))):
        write_bytes(out / name, f"{text}\n".encode())
