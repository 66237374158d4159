"""``himach bench peers``: himach beside the tools that a user would take instead, in one command.

`main()` prepares the tools and the data, measures the machine's limits and the benchmarks of `rows`, and writes the
table (``peers.md``) and all figures (``peers.json``). Each benchmark is saved when it is done, so that a run that was
ended goes on with ``--missing``, and one benchmark can be measured again by ``--only``.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from ..harness import limits
from ..harness.contest import TWIN, Contest
from ..harness.data import folder
from ..harness.figures import Figure, Row, markdown_table
from ..harness.interleave import Times, on_cores, scratch
from ..harness.options import BESIDE, DIRECTORY, OUT, only, repeats
from ..harness.results import chosen, keep, kept, trial
from ..harness.tools import here, prepare
from .rows import ROWS

__all__ = ["main", "page"]

FILE_BYTES = 1 << 30
#: What this version's time may be of another's, beside which it was measured.
NO_SLOWER = 1.05


@only("residence, rmsd, rmsd-again, ten-runs, ten-analyses, rmsd-xtc, rdf-ions, rdf-water, bonds, nothing or start")
@click.option("--missing", is_flag=True, help="Run what the results in --out do not have.")
@click.option("--frames", type=click.IntRange(min=3), help="Use no more frames than that in any benchmark.")
@repeats(3)
@click.option("--ranks", type=click.IntRange(min=1), default=2, show_default=True, help="Also workers and cores.")
@click.option("--installed", is_flag=True, help="Compare with the tools of this environment; install nothing.")
@DIRECTORY
@OUT
@BESIDE
def main(
    only: Sequence[str],
    frames: int | None,
    repeats: int,
    ranks: int,
    out: Path,
    directory: Path | None,
    missing: bool,
    installed: bool,
    beside: str | None,
) -> None:
    """Compare with the tools that do the same, which it installs: time and answers; start-up."""
    names = chosen("benchmark", only, ROWS)
    saved = {"benchmarks": {}, **kept(out, "peers")}
    tools = here() if installed else prepare(folder() / "tools")
    with scratch(directory) as place, on_cores(ranks):
        contest = Contest(place, tools, ranks, repeats, frames, beside)
        nbytes = FILE_BYTES if frames is None else FILE_BYTES >> 4
        saved["tools"] = {tool.name: tool.version for tool in tools.values()}
        saved["machine"] = limits.machine()
        saved["limits"] = [asdict(limit) for limit in limits.measure(place, ranks, repeats, nbytes)]

        def measure(name: str) -> None:
            began = time.time()
            row = ROWS[name](contest)
            saved["benchmarks"][name] = {
                **replace(row, figures=[*row.figures, *_twins(row.times)]).as_dict(),
                "himach": version("himach"),
                "began": time.strftime("%Y-%m-%d %H:%M", time.localtime(began)),
                "took": time.time() - began,
                "ranks": ranks,
                "repeats": repeats,
                "trial": trial(frames, repeats),
            }

        names = [name for name in names if not (missing and name in saved["benchmarks"])]
        keep(out, "peers", saved, names, measure, page)


def page(saved: dict[str, Any]) -> str:
    """Return the results as Markdown: the machine and its limits, then a table a benchmark."""
    tools = ", ".join(f"{name} {version}" for name, version in saved["tools"].items())
    table = [limits.Limit(**{**limit, "values": tuple(limit["values"])}).cells() for limit in saved["limits"]]
    counts = sorted({(each["ranks"], each["repeats"]) for each in saved["benchmarks"].values()})
    how = "; ".join(
        f"{ranks} ranks or workers on as many cores, medians of {repeats} turns" for ranks, repeats in counts
    )
    return "\n\n".join(
        [
            f"{saved['machine']}. himach {version('himach')}; {tools}. {how}.",
            markdown_table(["limit of the machine", "median", "spread"], table),
            *(_row(saved["benchmarks"][name]).markdown() for name in ROWS if name in saved["benchmarks"]),
        ]
    )


def _row(saved: dict[str, Any]) -> Row:
    """Return a saved benchmark; without bars and with a warning if it was a trial."""
    row = Row.from_dict(saved)
    if not saved["trial"]:
        return row
    warning = "**A trial**, with fewer frames or turns than the bars are meant for."
    return replace(row, figures=[replace(figure, bar=None) for figure in row.figures], notes=[warning, *row.notes])


def _twins(times: Times) -> list[Figure]:
    """Return the figures of this himach beside another version: the map phase where it is known, else the process."""
    return [
        Figure(f"{side}, {phase}", times[side][phase], TWIN.strip(", "), times[side + TWIN][phase], "times", NO_SLOWER)
        for side in times
        if side + TWIN in times
        for phase in ("map" if "map" in times[side] else "wall",)
    ]
