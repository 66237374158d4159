"""Requests for frames: `DatasetRequest` of any command, `FramesRequest` of runs and conversions, by number or by time.

Fields with a help text become options of the command line (`himach.cli.shared`). A run's record holds them.
"""

import operator
import os
import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from himach.errors import UsageError
from himach.files import content_digest
from himach.io.datasets.member import Member
from himach.io.push.address import is_engine

if TYPE_CHECKING:  # the process that starts ranks does without numpy
    import numpy as np
    import numpy.typing as npt

    from himach.io.datasets.universe_input import UniverseInput
    from himach.selection import Selected
    from himach.transformations import NoJump, Transformation

    TimesOf = Callable[[Any], npt.NDArray[np.float64]]

FLOAT32 = 2.4e-7  # largest relative difference of equal times after float32
MICRO = ("us", "\N{MICRO SIGN}s", "\N{GREEK SMALL LETTER MU}s")
#: Units of times of frames, in ps.
TIME_UNITS = {"fs": 1e-3, "ps": 1.0, "ns": 1e3, **dict.fromkeys(MICRO, 1e6), "ms": 1e9}
_TIME = re.compile(rf"(-?\d*\.?\d+(?:[eE][+-]?\d+)?) *({'|'.join(TIME_UNITS)})")


def option(text: str, **settings: Any) -> Any:
    """Return a dataclass field, None by default, that is also a command-line option with this help text."""
    return field(default=settings.pop("default", None), metadata={"help": text, **settings})


def check_choices(options: "DatasetRequest") -> None:
    """Raise UsageError if an option's value is not one of its choices."""
    for item in fields(options):
        value, choices = getattr(options, item.name), item.metadata.get("choices")
        if choices and value not in (*choices, item.default):
            raise UsageError(f"{item.name} {value!r}: there is {', '.join(map(repr, choices))}")


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
    ensemble: str | os.PathLike[str] | Sequence[Member] | None = None  # for `himach.io.datasets.member.read_members`

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
        from himach.io.datasets.member import read_members

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
    cluster: str | None = option("Move the molecules of these atoms to one another.", metavar="SELECTION")
    center: str | None = option("Move these atoms to the middle of the box.", metavar="SELECTION")
    wrap: Any = option("Move all into the box by whole periods.", choices=("atoms", "residues", "molecules"))
    fit: str | None = option("Superpose these atoms on the reference.", metavar="SELECTION")
    reference: Path | None = option("Structure file for --fit.  [default: the first frame]", type=Path, metavar="FILE")

    @classmethod
    def from_steps(cls, steps: "Sequence[Transformation | NoJump]") -> "TransformOptions":
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
    def from_record(cls, record: Mapping[str, Any]) -> "TransformOptions":
        """Return the options stored in a run's record."""
        values = {item.name: record.get(item.name, item.default) for item in fields(cls)}
        return cls(**{**values, "reference": None if values["reference"] is None else Path(values["reference"])})

    def steps(self) -> "tuple[Transformation | NoJump, ...]":
        """Return the selected steps in their order; raises UsageError."""
        if self.reference is not None and self.fit is None:
            raise UsageError("a reference is what atoms are superposed on; say which with --fit (fit=...)")
        if not any(vars(self).values()):
            return ()
        from himach.transformations import Center, Cluster, Fit, NoJump, Whole, Wrap

        steps = (
            self.whole and Whole(),
            self.nojump and NoJump(),
            self.cluster is not None and Cluster(self.cluster),
            self.center is not None and Center(self.center),
            self.wrap is not None and Wrap(by=self.wrap),
            self.fit is not None and Fit(self.fit, self.reference),
        )
        return tuple(step for step in steps if not isinstance(step, bool))


def check_transform(steps: Any) -> "tuple[Transformation | NoJump, ...]":
    """Return the steps of a transform; raises UsageError for other types, atoms of a Universe, or a wrong order."""
    from himach.transformations import Center, Cluster, Fit, NoJump, Whole, Wrap

    kinds = (Whole, NoJump, Cluster, Center, Wrap, Fit)
    selecting = (Cluster, Center, Fit)
    names = ", ".join(kind.__name__ for kind in kinds)
    several: tuple[Any, ...] = tuple(steps) if isinstance(steps, (list, tuple)) else (steps,)
    for step in several:
        if not isinstance(step, kinds):
            raise UsageError(f"transform: {step!r:.80} is none of himach.transformations: {names}")
        if not (isinstance(step.selection, str) if isinstance(step, selecting) else step.selection == "all"):
            takes = "a selection, not a group of atoms" if isinstance(step, selecting) else "all atoms"
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

    universe_input: "UniverseInput | None" = None  # the Universe that gave trajectories, topology and keywords
    start: Any = option(
        "First frame, or the time from which on, such as 10ns; a negative number counts from the end.",
        metavar="N|TIME", names=("--from",),
    )  # fmt: skip
    stop: Any = option("Frame or time before which to stop.", metavar="N|TIME", names=("--to",))
    step: Any = option(
        "Every Nth frame, or one every so often, such as 100ps.", metavar="N|TIME", names=("--every-time",)
    )
    frames: Any = option(
        "In place of these, frame numbers such as 0,5,10-20 or 0-1000:10.", metavar="LIST", recorded=""
    )
    transform: "Sequence[Transformation | NoJump]" = ()
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
            self._set_fields(**{name: parse_bound(getattr(self, name), name)})
        if self.step == 0:
            raise UsageError("step must not be 0")
        if self.frames is not None:
            others = [name for name in ("start", "stop", "step") if getattr(self, name) is not None]
            if others:
                raise UsageError(f"frames cannot be given with {', '.join(others)}; choose frames by one or the other")
            if isinstance(self.frames, str):
                from himach.selection import parse_frames

                self._set_fields(frames=parse_frames(self.frames))

    def steps(self, frames: "Selected") -> dict[str, Any]:
        """Return the transformations by option name; `nojump` names the selection, as it depends on earlier frames."""
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

    def select(self, n_frames: int, times: "TimesOf | None" = None) -> "Selected":
        """Return the selected numbers of `n_frames` frames, by the rules of slices; raises UsageError if none."""
        if self.frames is not None:
            from himach.selection import chosen

            return chosen(self.frames, n_frames)
        frames = range(*slice_of_times(self.start, self.stop, self.step, n_frames, times).indices(n_frames))
        if not frames:
            requested = [f"{name} {getattr(self, name)}" for name in ("start", "stop", "step") if getattr(self, name)]
            raise UsageError(
                f"no frame is selected: the trajectory has {n_frames} frames (0 to {n_frames - 1})"
                + (", {:g} to {:g} ps".format(*times([0, n_frames - 1])) if times is not None and n_frames else "")
                + (f"; asked for {', '.join(requested)}" if requested else "")
            )
        return frames


def parse_bound(value: Any, name: str) -> int | str | None:
    """Return a bound of a slice of frames: a whole number, the text of a time such as ``10ns``, or None."""
    if isinstance(value, str):
        text = value.strip()
        if _TIME.fullmatch(text):
            return text
        value = int(text) if re.fullmatch(r"[+-]?\d+", text) else value
    try:
        if not isinstance(value, bool):
            return None if value is None else operator.index(value)
    except TypeError:
        pass
    raise UsageError(f"{name} is {value!r}: it is a whole number of frames, or a time such as 10ns or 250ps")


def slice_of_times(start: Any, stop: Any, step: Any, n_frames: int, times: "TimesOf | None") -> Any:
    """Return the slice of frames by times, which `times` gives by numbers, float64 (n,), ps; None if unknown."""
    bounds = (start, stop, step)
    if not any(isinstance(bound, str) for bound in bounds):
        return slice(*bounds)
    if times is None or not n_frames:
        text = next(bound for bound in bounds if isinstance(bound, str))
        raise UsageError(f"the frame at {text} is not known, as the times of frames are not; give numbers of frames")
    first, end = (_first_from(bound, n_frames, times) if isinstance(bound, str) else bound for bound in (start, stop))
    return slice(first, end, _frames_between(step, n_frames, times) if isinstance(step, str) else step)


def _picoseconds(text: str) -> float:
    match = _TIME.fullmatch(text)
    assert match is not None
    return float(match[1]) * TIME_UNITS[match[2]]


def _first_from(text: str, n_frames: int, times: "TimesOf") -> int:
    """Return the first frame at a time or later; files store times as float32."""
    time = _picoseconds(text)
    return bisect_left(range(n_frames), time - FLOAT32 * abs(time), key=lambda number: times([number])[0])


def _frames_between(text: str, n_frames: int, times: "TimesOf") -> int:
    """Return how many frames are as far apart as a time; raise UsageError where it is no multiple of their distance."""
    time, last = _picoseconds(text), n_frames - 1
    if not last:
        return 1
    first_time, second_time, last_time = (float(number) for number in times([0, 1, last]))
    between = (last_time - first_time) / last
    slack = FLOAT32 * (abs(first_time) + abs(last_time))
    if between <= 0 or abs(second_time - first_time - between) > slack + 1e-3 * between:
        raise UsageError(f"step {text}: frames come at uneven times; give a number of frames")
    ratio = time / between
    if round(ratio) < 1 or abs(ratio - round(ratio)) > 1e-3 * max(1.0, ratio):
        raise UsageError(f"step {text}: frames are {between:.6g} ps apart; give a multiple of that")
    return round(ratio)
