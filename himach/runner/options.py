"""Options of a run: `RunOptions`, `LiveOptions` over arriving frames, `Output`; `Job` is a run with its analyses.

Fields with a help text become options of the command line (`himach.cli.shared`). A run's record holds them, and
``--rerun`` reads them from it. `himach.run` documents each.
"""

import ast
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from himach.errors import UsageError
from himach.files import content_digest
from himach.io.datasets.request import FramesRequest, option
from himach.io.store.sizes import parse_size
from himach.output.file_names import FIGURES, TABLES, figure_formats, table_formats
from himach.ranks.duration import parse_seconds
from himach.ranks.launch.memory import MIN_LIMIT_BYTES

if TYPE_CHECKING:
    from himach.analysis import Analysis
    from himach.output.figures.drawer import Drawer
    from himach.selection import Selected

#: Part of `max_time` that is reserved for commits: this fraction, but at most this many seconds.
LEFT, MOST_LEFT = 0.05, 20.0
#: Options of files in `out`, with their names in `Output`.
OUTPUT = {"table": "tables", "figure": "figures", "units": "units", "features": "features", "force": "force"}
#: Maximum number of stages in a chain: more come from a `then` that makes new ones for ever.
MOST_STAGES = 1000


def _number(value: Any, word: str, refusal: str, low: float = -math.inf, high: float = math.inf) -> float | str | None:
    """Return a value strictly between `low` and `high` as a float, or `word` or None; raises UsageError."""
    if value is None or value == word:
        return None if value is None else word
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not low < number < high:
        raise UsageError(refusal)
    return number


@dataclass(frozen=True)
class Output:
    """What a run leaves in its output directory: `out` of `himach.run`, where a directory alone does not say it all.

    Parameters
    ----------
    directory
        Where tables, arrays, plots and the record of the run go.
    tables
        Formats of tables beside CSV: ``"parquet"``, ``"nc"`` (NetCDF), ``"xvg"``; several as a list, or as a text with
        commas between.
    figures
        Formats of plots: ``"png"``, ``"svg"``, ``"pdf"``, or several of them, such as ``"svg,pdf"``.
    units
        Whether the headers of CSV files have units: ``r (Å)`` in place of ``r``.
    features
        Whether to write, of each member of an ensemble, the columns of tables in time as ``features/TABLE/MEMBER.npz``:
        ``X`` (frames, columns), ``time_ps`` and ``columns``.
    force
        Whether to replace what a run of other analyses left there.
    """

    directory: str | os.PathLike[str]
    tables: str | Sequence[str] = "csv"
    figures: str | Sequence[str] = "png"
    units: bool = False
    features: bool = False
    force: bool = False

    @staticmethod
    def options(out: "str | os.PathLike[str] | Output | None") -> dict[str, Any]:
        """Return what an `out` says, as fields of `RunOptions`."""
        if out is None:
            return {}
        out = out if isinstance(out, Output) else Output(out)
        values = {name: getattr(out, attribute) for name, attribute in OUTPUT.items()}
        return {"out": Path(out.directory), **values}


@dataclass(frozen=True)
class RunOptions(FramesRequest):
    """Options of a run, without its analyses; sizes as text (``"2GB"``) become bytes, times become seconds."""

    index: Path | None = option(
        "GROMACS index file: 'group NAME' in a selection has the atoms of its group.", type=Path, metavar="NDX"
    )
    memory: int | str | None = option(
        "Memory for pairs on a node, for example 2GB; more pairs go to its disk.  [default: a quarter of all]",
        metavar="SIZE",
    )
    pairs: Path | None = option(
        "Keep the pairs of map() here; a run with the same DIR maps only missing frames.",
        type=Path, metavar="DIR", recorded="pairs_directory",
    )  # fmt: skip
    reuse: str = option(
        "For kept pairs of other code, parameters or data: auto maps again and says why, always uses them, "
        "never maps all frames.  "
        "[default: auto]",
        default="auto", choices=("auto", "always", "never"),
    )  # fmt: skip
    max_time: float | str | None = option(
        "Stop mapping in time (55m, 1h30m, HH:MM:SS), keep the pairs, exit with 75; the same command resumes.",
        metavar="TIME", recorded="",
    )  # fmt: skip
    out: Path | None = option("Write tables, plot and record here.", type=Path, metavar="DIR", short="-o", recorded="")
    force: bool = option(
        "Replace what a run of other analyses left in --out.", default=False, is_flag=True, recorded=""
    )
    units: bool = option(
        "Write units into the headers of tables in --out: r (Å) in place of r.",
        default=False, is_flag=True, recorded="units_in_headers",
    )  # fmt: skip
    table: str | Sequence[str] = option(
        "Formats of tables in --out beside csv: parquet, nc, xvg, or several as parquet,nc.  [default: csv]",
        default="csv", metavar="LIST",
    )  # fmt: skip
    figure: str | Sequence[str] = option(
        "Formats of plots in --out: png, svg, pdf, or several as svg,pdf.  [default: png]",
        default="png", metavar="LIST",
    )  # fmt: skip
    confidence: float | str | None = option(
        "Confidence of intervals, or off: none.  [default: 0.95]", metavar="LEVEL|off"
    )
    equilibration: float | str | None = option(
        "Discard the start of time series before averaging: auto detects equilibration, TIME (ps) fixes it.  "
        "[default: report it only]",
        metavar="auto|TIME",
    )  # fmt: skip
    features: bool = option(
        "Write each member's columns in time to --out/features/TABLE/MEMBER.npz, for Markov models.",
        default=False, is_flag=True,
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.features and self.ensemble is None:
            raise UsageError("features are of the members of an ensemble; of one trajectory, tables in out have them")
        if self.out is not None and self.out.suffix[1:] in (*TABLES, *FIGURES) and not self.out.is_dir():
            raise UsageError(f"out {self.out} is a folder: leave out {self.out.suffix}; --table, --figure name formats")
        level, start = self.confidence, self.equilibration
        refusal = f"confidence {level!r}: it is a level between 0 and 1, such as 0.95, or 'off'"
        self._set_fields(confidence=_number(level, "off", refusal, 0, 1))
        refusal = f"equilibration {start!r}: it is a time in ps, such as 500, or 'auto'"
        self._set_fields(equilibration=_number(start, "auto", refusal))
        self._set_fields(table=table_formats(self.table), figure=figure_formats(self.figure))
        if self.index is not None:
            self._set_fields(index=Path(os.path.abspath(os.path.expanduser(self.index))))
        if isinstance(self.memory, str):
            try:
                self._set_fields(memory=parse_size(self.memory))
            except UsageError as error:
                raise UsageError(f"memory: {error}") from None
        if isinstance(self.memory, int) and self.memory < MIN_LIMIT_BYTES:
            raise UsageError(f"memory must be at least {MIN_LIMIT_BYTES} bytes (1MiB), not {self.memory}")
        if self.pairs is not None:
            if not str(self.pairs) or "\0" in str(self.pairs):
                raise UsageError(f"pairs {str(self.pairs)!r}: it is a directory, in which pairs are kept")
            self._set_fields(pairs=Path(os.path.abspath(os.path.expanduser(self.pairs))))
        if self.max_time is not None:
            self._set_fields(max_time=parse_seconds(self.max_time, "max_time"))

    def steps(self, frames: "Selected") -> dict[str, Any]:
        """Return the transformations as in `FramesRequest.steps`, and a digest of the index file."""
        return super().steps(frames) | ({} if self.index is None else {"index": content_digest(str(self.index))})

    def recorded(self) -> dict[str, Any]:
        """Return the options as a run's record stores them."""
        values = {name: getattr(self, attr) for name, attr in _in_records().items()} | vars(self.transform_options)
        texts = {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}
        return {"cache": self.cache, **texts}

    @staticmethod
    def from_record(record: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options stored in a run's record."""
        values = {attr: record[name] for name, attr in _in_records().items() if record.get(name) is not None}
        return {"cache": record["cache"], **values}


def _in_records() -> dict[str, str]:
    """Return the names of options by their names in a run's record."""
    items = [item for item in fields(RunOptions) if item.metadata]
    return {item.metadata.get("recorded", item.name): item.name for item in items if item.metadata.get("recorded", "-")}


@dataclass(frozen=True)
class LiveOptions:
    """Options of a run over arriving frames, in addition to `RunOptions`."""

    every: int | None = option("Write --out anew every N frames that come.", type=int, metavar="N")
    idle: float | None = option(
        "End when no frame came for this long.  [default: never]", type=float, metavar="SECONDS"
    )
    until: str | None = option(
        "End when intervals of a column were within X, such as 'rdf.g<0.02', at three outcomes (--every) in a row.",
        metavar="TABLE.COLUMN<X",
    )  # fmt: skip
    dataset: str | None = option("Keep the frames of a running engine under this name.", metavar="NAME")
    buffer: int | str | None = option(
        "Pause the engine where the analysis is behind by more than this.  [default: 2GB]", metavar="SIZE"
    )
    stride_when_late: int | None = option(
        "Where the analysis is late, keep every Nth frame, and do not pause the engine.", type=int, metavar="N"
    )


@dataclass(frozen=True)
class Job(RunOptions):
    """One run, the same on all its ranks."""

    analyses: "Sequence[Analysis]" = ()  # share one pass over the frames
    several: bool = False  # whether the result is a dict of outcomes, even of a single one
    command: Sequence[str] = ()  # words of the user's command, for the record
    earlier: Mapping[str, Any] | None = None  # record of the run that this one repeats
    # Private directory that keeps pairs from one run of `himach.follow` to the next, or of an ensemble under `out`
    # until all its members are done.
    between: Path | None = None
    live: Mapping[str, Any] | None = None  # source and options of a run over arriving frames, for the record
    loaded: Mapping[str, str] = field(default_factory=dict)  # digests of files that modules opened when loaded, by path
    member: str | None = None  # name of the member of an ensemble
    drawer: "Drawer | None" = None  # process that draws figures

    @property
    def labels(self) -> list[str]:
        """Names of the analyses."""
        return [analysis.label() for analysis in self.analyses]

    @property
    def level(self) -> float | None:
        """Confidence of intervals, by default 0.95; None for no intervals."""
        return None if self.confidence == "off" else float(self.confidence or 0.95)

    @property
    def keeps(self) -> bool:
        """Whether there is a directory in which pairs can be kept."""
        return bool(self.pairs or self.between or (self.out is not None and not self.unkept))

    @property
    def unkept(self) -> str:
        """Reason why pairs of this run are not kept; "" if they are."""
        return "" if self.universe_input is None else self.universe_input.unkept

    def __post_init__(self) -> None:
        if not self.analyses:
            raise UsageError("no analysis to run")
        super().__post_init__()
        if self.universe_input is not None and self.universe_input.transformations and self.transform_options.nojump:
            raise UsageError(
                "nojump: the Universe has transformations, and atoms are followed before these; leave one of both out"
            )
        for name in ("pairs", "max_time") if self.unkept else ():
            if getattr(self, name) is not None:
                raise UsageError(f"{name} cannot be had for this Universe: {self.unkept}")

    def check_place(self) -> None:
        """Raise UsageError for `max_time` without a directory for pairs (on the first rank, which knows `out`)."""
        if self.max_time is not None and not self.keeps:
            raise UsageError("max_time needs a place for what is mapped by then: a directory for pairs, or for out")


@dataclass(frozen=True)
class Update:
    """One of the runs of a live run."""

    frames: Mapping[str, Any]  # fields of the request that select the frames so far
    pairs: Path | None  # directory for pairs between updates; None if there is none or the user named one
    details: Mapping[str, Any]  # for the record
    last: bool
    new: bool  # whether there are more frames than in the previous update

    def changes(self, quiet: bool) -> dict[str, Any]:
        """Return the `Job` fields in which this update differs from the live run, whose `quiet` is given."""
        return {**self.frames, "between": self.pairs, "live": self.details, "quiet": quiet or not self.last}


def stages(analysis: "Analysis") -> "list[Analysis]":
    """Return the analysis and the stages that follow by `then`."""
    chain = [analysis]
    visited = {id(analysis)}
    while (stage := chain[-1].next_stage()) is not None:
        # One class may serve in several stages, as instances with their own `then`; a `then` that repeats never ends.
        stage_id = id(chain[-1].then)
        if stage_id in visited or len(chain) == MOST_STAGES:
            raise UsageError(f"{analysis.label()}: its stages come back to {stage.label()}; a chain must end")
        visited.add(stage_id)
        chain.append(stage)
    rows = len(chain) == 1 and analysis.yields_rows()
    needed = [(chain[0], "map"), *((stage, "reduce") for stage in chain if not rows)]
    for stage, method in needed:
        if not stage.defines(method):
            raise UsageError(f"{stage.label()} has no {method}(): every analysis needs one")
    return chain


def mapping_deadline(max_time: float | str | None, started: float) -> float | None:
    """Return the time at which mapping stops so that commits still fit; None for no limit."""
    if max_time is None:
        return None
    seconds = float(max_time)
    return started + seconds - min(LEFT * seconds, MOST_LEFT)


def this_command() -> tuple[str, ...]:
    """Return the command line of this process; empty in a notebook or at a prompt."""
    if hasattr(sys, "ps1") or "ipykernel" in sys.modules:
        return ()
    return tuple(sys.argv)


def parse_keywords(assignments: Sequence[str]) -> dict[str, Any]:
    """Parse ``NAME=VALUE`` words into keywords for MDAnalysis; evaluate Python literals; raises UsageError."""
    keywords: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"--universe {assignment}: a keyword is set as NAME=VALUE")
        try:
            keywords[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            keywords[name] = text  # atom_style="id type x y z" is not a literal
    return keywords
