"""Options: `DatasetRequest` of any command, `RunOptions` of a run, `LiveOptions` of a run over arriving frames.

`FramesRequest` has the common options of runs and conversions; `Job` is a run with its analyses. Fields with a help
text become options of the command line (`himach.cli.shared`). A run's record holds them, and ``--rerun`` reads them
from it. `himach.run` documents each.
"""

from __future__ import annotations

import math
import operator
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from himach.errors import UsageError
from himach.files import content_digest
from himach.io.push.address import is_engine
from himach.io.store.sizes import parse_size
from himach.opening.member import Member
from himach.output.names import figure_formats, table_formats
from himach.ranks.duration import parse_seconds
from himach.ranks.launch.memory import MIN_LIMIT_BYTES

if TYPE_CHECKING:
    from himach.analysis import Analysis
    from himach.opening.universe_input import UniverseInput
    from himach.output.figures.drawer import Drawer
    from himach.selection import Selected
    from himach.transformations import NoJump, Transformation


def option(text: str, **settings: Any) -> Any:
    """Return a dataclass field, None by default, that is also a command-line option with this help text."""
    return field(default=settings.pop("default", None), metadata={"help": text, **settings})


def check_choices(options: DatasetRequest) -> None:
    """Raise UsageError if an option's value is not one of its choices."""
    for item in fields(options):
        value, choices = getattr(options, item.name), item.metadata.get("choices")
        if choices and value not in (*choices, item.default):
            raise UsageError(f"{item.name} {value!r}: there is {', '.join(map(repr, choices))}")


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


def absolute_cache(cache: str) -> str:
    """Return the choice of a cache with an absolute path; keep "auto", "off" and a server's address."""
    if cache in ("auto", "off") or cache.startswith("tcp://"):
        return cache
    return os.path.abspath(os.path.expanduser(cache))


@dataclass(frozen=True)
class DatasetRequest:
    """The dataset that a command works on."""

    trajectories: Sequence[Path]  # consecutive files, one frame directory, or the name of a dataset
    topology: Path | None = None  # None if the trajectory contains it
    keywords: Mapping[str, Any] = field(default_factory=dict)  # for MDAnalysis (dt, atom_style, ...)
    # "auto": the node's store at its default place; "off": none; a store's directory (made absolute), in which {node}
    # stands for the node's name; or a server's tcp://HOST:PORT.
    cache: str = "auto"
    ensemble: str | os.PathLike[str] | Sequence[Member] | None = None  # for `himach.opening.member.read_members`

    def __post_init__(self) -> None:
        if self.ensemble is not None and self.trajectories:
            raise UsageError("an ensemble names its trajectories itself: leave the other ones out")
        if self.ensemble is None and not self.trajectories:
            raise UsageError("no trajectory to analyse")
        if not self.cache or "\0" in self.cache:
            raise UsageError(f"cache {self.cache!r}: there is 'auto', 'off' or the directory of a frame store")
        self._set_fields(cache=absolute_cache(self.cache))

    @property
    def engines(self) -> bool:
        """Whether frames come from a running engine, of the dataset or of any member."""
        from himach.opening.member import read_members

        members = read_members(self.ensemble) if self.ensemble is not None else ()
        return any(is_engine(source.trajectories) for source in (self, *members))

    def _set_fields(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True)
class TransformOptions:
    """Transformations of frames, by the names of options and records."""

    whole: bool = option("Make molecules whole, by their bonds.", default=False, is_flag=True)
    nojump: bool = option(
        "Follow atoms through the periodic boundary, by the shortest step in each frame's box.",
        default=False,
        is_flag=True,
    )
    center: str | None = option("Move these atoms to the middle of the box.", metavar="SELECTION")
    wrap: Any = option("Move all into the box by whole periods.", choices=("atoms", "residues", "molecules"))
    fit: str | None = option("Superpose these atoms on the reference.", metavar="SELECTION")
    reference: Path | None = option("Structure file for --fit.  [default: the first frame]", type=Path, metavar="FILE")

    @classmethod
    def from_steps(cls, steps: Sequence[Transformation | NoJump]) -> TransformOptions:
        """Return the options that give these steps."""
        if not steps:
            return cls()
        from himach.transformations import Fit, NoJump, Whole, Wrap

        values: dict[str, Any] = {}
        for step in steps:
            values[step.name] = True if isinstance(step, (Whole, NoJump)) else step.selection
            if isinstance(step, Wrap):
                values["wrap"] = step.by
            if isinstance(step, Fit):
                values["reference"] = step.reference
        return cls(**values)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> TransformOptions:
        """Return the options stored in a run's record."""
        values = {item.name: record.get(item.name, item.default) for item in fields(cls)}
        return cls(**{**values, "reference": None if values["reference"] is None else Path(values["reference"])})

    def steps(self) -> tuple[Transformation | NoJump, ...]:
        """Return the selected steps in their order; raises UsageError."""
        if self.reference is not None and self.fit is None:
            raise UsageError("a reference is what atoms are superposed on; say which with --fit (fit=...)")
        if not any(vars(self).values()):
            return ()
        from himach.transformations import Center, Fit, NoJump, Whole, Wrap

        steps = (
            self.whole and Whole(),
            self.nojump and NoJump(),
            self.center is not None and Center(self.center),
            self.wrap is not None and Wrap(by=self.wrap),
            self.fit is not None and Fit(self.fit, self.reference),
        )
        return tuple(step for step in steps if not isinstance(step, bool))


def check_transform(steps: Any) -> tuple[Transformation | NoJump, ...]:
    """Return the steps of a transform; raises UsageError for other types, atoms of a Universe, or a wrong order."""
    from himach.transformations import Center, Fit, NoJump, Whole, Wrap

    kinds = (Whole, NoJump, Center, Wrap, Fit)
    names = ", ".join(kind.__name__ for kind in kinds)
    several: tuple[Any, ...] = tuple(steps) if isinstance(steps, (list, tuple)) else (steps,)
    for step in several:
        if not isinstance(step, kinds):
            raise UsageError(f"transform: {step!r:.80} is none of himach.transformations: {names}")
        if not (isinstance(step.selection, str) if isinstance(step, (Center, Fit)) else step.selection == "all"):
            takes = "a selection, not a group of atoms" if isinstance(step, (Center, Fit)) else "all atoms"
            raise UsageError(f"transform: {type(step).__name__} takes {takes}")
        if isinstance(step, Fit) and not isinstance(step.reference, (Path, type(None))):
            raise UsageError("transform: the reference of Fit is a structure file, or None: the first selected frame")
    order = [kinds.index(type(step)) for step in several]
    if order != sorted(set(order)):
        raise UsageError(f"transform: each step stands there once, in the order {names}")
    return several


@dataclass(frozen=True)
class FramesRequest(DatasetRequest):
    """Some frames of a dataset."""

    universe_input: UniverseInput | None = None  # the Universe that gave trajectories, topology and keywords
    start: int | None = option("First frame; negative counts from the end.", type=int, metavar="N")
    stop: int | None = option("Frame before which to stop.", type=int, metavar="N")
    step: int | None = option("Every Nth frame.", type=int, metavar="N")
    frames: Any = option(
        "In place of these, frame numbers such as 0,5,10-20 or 0-1000:10.", metavar="LIST", recorded=""
    )
    transform: Sequence[Transformation | NoJump] = ()
    quiet: bool = False  # show no progress and no summary

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices(self)
        self._check_frames()
        if self.transform:
            self._set_fields(transform=check_transform(self.transform))

    @property
    def transform_options(self) -> TransformOptions:
        """Transformations of frames, by the names of options."""
        return TransformOptions.from_steps(self.transform)

    def _check_frames(self) -> None:
        for name in ("start", "stop", "step"):
            value = getattr(self, name)
            try:
                if isinstance(value, bool):
                    raise TypeError(value)
                self._set_fields(**{name: None if value is None else operator.index(value)})
            except TypeError:
                raise UsageError(f"{name} is {value!r}: it is a whole number") from None
        if self.step == 0:
            raise UsageError("step must not be 0")
        if self.frames is not None:
            others = [name for name in ("start", "stop", "step") if getattr(self, name) is not None]
            if others:
                raise UsageError(f"frames cannot be given with {', '.join(others)}; choose frames by one or the other")
            if isinstance(self.frames, str):
                from himach.selection import parse_frames

                self._set_fields(frames=parse_frames(self.frames))

    def steps(self, frames: Selected) -> dict[str, Any]:
        """Return the transformations of some frames by option name, with a digest in place of a reference file.

        With `nojump`, the result for a frame depends on earlier frames, so the value names the selection.
        """
        from himach.selection import frames_text

        options = {name: value for name, value in vars(self.transform_options).items() if value}
        result = {name: value for name, value in options.items() if name not in ("nojump", "reference")}
        if "nojump" in options:
            if isinstance(frames, range):  # it may grow
                result["nojump"] = f"from frame {frames[0]} on by {frames.step}"
            else:
                result["nojump"] = f"over {frames_text(frames)}"
        if "reference" in options:
            result["reference"] = content_digest(os.fspath(options["reference"]))
        return result

    def select(self, n_frames: int) -> Selected:
        """Return the selected numbers of `n_frames` frames, by the rules of slices; raises UsageError if none."""
        if self.frames is not None:
            from himach.selection import chosen

            return chosen(self.frames, n_frames)
        frames = range(*slice(self.start, self.stop, self.step).indices(n_frames))
        if not frames:
            requested = [f"{name} {getattr(self, name)}" for name in ("start", "stop", "step") if getattr(self, name)]
            raise UsageError(
                f"no frame is selected: the trajectory has {n_frames} frames (0 to {n_frames - 1})"
                + (f"; asked for {', '.join(requested)}" if requested else "")
            )
        return frames


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
        Whether the headers of CSV files name the units of columns: ``r (Å)``, where it is ``r`` without.
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
    def options(out: str | os.PathLike[str] | Output | None) -> dict[str, Any]:
        """Return what an `out` says, as fields of `RunOptions`."""
        if out is None:
            return {}
        out = out if isinstance(out, Output) else Output(out)
        chosen = {"table": out.tables, "figure": out.figures}
        return {"out": Path(out.directory), **chosen, "units": out.units, "features": out.features, "force": out.force}


@dataclass(frozen=True)
class RunOptions(FramesRequest):
    """Options of a run, without its analyses; sizes as text (``"2GB"``) become bytes, times become seconds."""

    memory: int | str | None = option(
        "What pairs may take on a node, for example 2GB; the rest goes to its disk.  [default: a quarter of it]",
        metavar="SIZE",
    )
    pairs: Path | None = option(
        "Keep here what map() gave; a run with the same DIR maps only frames that are not there.",
        type=Path, metavar="DIR", recorded="pairs_directory",
    )  # fmt: skip
    reuse: str = option(
        "Kept pairs of other code, parameters or data: map again and say why, use them, never use any.  "
        "[default: auto]",
        default="auto", choices=("auto", "always", "never"),
    )  # fmt: skip
    max_time: float | str | None = option(
        "End mapping in time (55m, 1h30m, HH:MM:SS), keep it, exit with 75; the same command goes on.",
        metavar="TIME", recorded="",
    )  # fmt: skip
    out: Path | None = option("Write tables, plot and record here.", type=Path, metavar="DIR", short="-o", recorded="")
    force: bool = option(
        "Replace what a run of other analyses left in --out.", default=False, is_flag=True, recorded=""
    )
    units: bool = option(
        "Name units in the headers of tables in --out: r (Å), where it is r without.",
        default=False, is_flag=True, recorded="units_in_headers",
    )  # fmt: skip
    table: str | Sequence[str] = option(
        "Formats of tables in --out, of parquet, nc and xvg, beside csv; several as parquet,nc.  [default: csv]",
        default="csv", metavar="LIST",
    )  # fmt: skip
    figure: str | Sequence[str] = option(
        "Formats of plots in --out, of svg, pdf and png; several as svg,pdf.  [default: png]",
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
        "Of each member of --ensemble write columns in time as --out/features/TABLE/MEMBER.npz, for Markov models.",
        default=False, is_flag=True,
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.features and self.ensemble is None:
            raise UsageError("features are of the members of an ensemble; of one trajectory, tables in out have them")
        level, start = self.confidence, self.equilibration
        refusal = f"confidence {level!r}: it is a level between 0 and 1, such as 0.95, or 'off'"
        self._set_fields(confidence=_number(level, "off", refusal, 0, 1))
        refusal = f"equilibration {start!r}: it is a time in ps, such as 500, or 'auto'"
        self._set_fields(equilibration=_number(start, "auto", refusal))
        self._set_fields(table=table_formats(self.table), figure=figure_formats(self.figure))
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

    def __bool__(self) -> bool:
        return any(getattr(self, item.name) is not None for item in fields(self))


@dataclass(frozen=True)
class Job(RunOptions):
    """One run, the same on all its ranks."""

    analyses: Sequence[Analysis] = ()  # share one pass over the frames
    several: bool = False  # whether the result is a dict of outcomes, even of a single one
    command: Sequence[str] = ()  # words of the user's command, for the record
    earlier: Mapping[str, Any] | None = None  # record of the run that this one repeats
    # Private directory that keeps pairs from one run of `himach.follow` to the next, or of an ensemble under `out`
    # until all its members are done.
    between: Path | None = None
    live: Mapping[str, Any] | None = None  # source and options of a run over arriving frames, for the record
    loaded: Mapping[str, str] = field(default_factory=dict)  # digests of files that modules opened when loaded, by path
    member: str | None = None  # name of the member of an ensemble
    drawer: Drawer | None = None  # process that draws figures

    @property
    def labels(self) -> list[str]:
        """Names of the analyses."""
        return [analysis.label() for analysis in self.analyses]

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


def this_command() -> tuple[str, ...]:
    """Return the command line of this process; empty in a notebook or at a prompt."""
    if hasattr(sys, "ps1") or "ipykernel" in sys.modules:
        return ()
    return tuple(sys.argv)


def parse_keywords(assignments: Sequence[str]) -> dict[str, Any]:
    """Parse ``NAME=VALUE`` words into keywords for MDAnalysis; evaluate Python literals; raises UsageError."""
    import ast

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
