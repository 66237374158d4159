"""What a run is asked to do: the `Job`, and the choice of frames."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from himach.errors import UsageError
from himach.io.store.sizes import parse_size
from himach.parallel.duration import seconds_of
from himach.runner.memory import LEAST

if TYPE_CHECKING:
    from himach.analysis import Analysis
    from himach.runner.given.universe import Given
    from himach.selection import Selected

REUSE = ("auto", "always", "never")


def wherever(cache: str) -> str:
    """Return the choice of a cache as it is to be understood in any working directory: a server's stays as it is."""
    return (
        cache if cache in ("auto", "off") or cache.startswith("tcp://") else os.path.abspath(os.path.expanduser(cache))
    )


@dataclass
class Job:
    """One run, as its ranks all know it.

    Attributes
    ----------
    analyses
        Instances of one or more analyses; they share one pass over the frames.
    trajectories
        Files that follow one another, or one frame directory.
    topology
        Topology file, None if the trajectory carries it.
    keywords
        Keywords for MDAnalysis (dt, atom_style, ...).
    start, stop, step
        Choice of frames as in ``trajectory[start:stop:step]``.
    frames
        Another choice: ascending frame numbers, or a boolean for every frame (see `himach.selection.chosen`).
    given
        The Universe that `trajectories`, `topology` and `keywords` are of, if a run was given one.
    cache
        ``"auto"``: frames are kept in the node's store at its default place; ``"off"``: there is no cache; or the
        directory of a store, in which ``{node}`` stands for the node's name (made absolute).
    memory
        Bytes that the pairs of a node's ranks may take together before they go to its disk, or a size such as
        ``"2GB"``; None for a quarter of what the node, or its control group, has.
    out
        Directory for the outcome and the record, or None.
    pairs
        Directory, seen by all ranks, in which what map() gave is kept from run to run (made absolute), or None.
    reuse
        What to do where kept pairs are of another map: ``"auto"``: map again, and say why; ``"always"``: use them;
        ``"never"``: map again in any case.
    max_time
        Seconds from the start of the run after which no more frames are mapped, or text (see
        `himach.parallel.duration.parse_duration`); None for no limit.
    quiet
        Whether to show no progress.
    several
        Whether the result is a dict of outcomes, even if it is one.
    command
        The words by which the user asked for it, for the record.
    earlier
        The record of the run that this one repeats, to tell what is different.
    between
        Directory in which pairs are kept from one run to the next of a live run, which nobody else knows.
    live
        For the record of a live run's runs: where frames come from, and what came of that so far.
    """

    analyses: Sequence[Analysis]
    trajectories: Sequence[Path]
    topology: Path | None = None
    keywords: Mapping[str, Any] = field(default_factory=dict)
    start: int | None = None
    stop: int | None = None
    step: int | None = None
    frames: Any = None
    given: Given | None = None
    cache: str = "auto"
    memory: int | str | None = None
    out: Path | None = None
    pairs: Path | None = None
    reuse: str = "auto"
    max_time: float | str | None = None
    quiet: bool = False
    several: bool = False
    command: Sequence[str] = ()
    earlier: Mapping[str, Any] | None = None
    between: Path | None = None
    live: Mapping[str, Any] | None = None
    loaded: Mapping[str, str] = field(default_factory=dict)

    @property
    def labels(self) -> list[str]:
        """Names of the analyses."""
        return [analysis.label() for analysis in self.analyses]

    @property
    def keeps(self) -> bool:
        """Whether there is a place in which pairs may be kept."""
        return self.pairs is not None or (self.out is not None and not self.unkept)

    @property
    def unkept(self) -> str:
        """Why no pairs of this run are kept; "" if they are."""
        return "" if self.given is None else self.given.unkept

    def __post_init__(self) -> None:
        if not self.analyses:
            raise UsageError("no analysis to run")
        if not self.trajectories:
            raise UsageError("no trajectory to analyse")
        if not self.cache or "\0" in self.cache:
            raise UsageError(f"cache {self.cache!r}: there is 'auto', 'off' or the directory of a frame store")
        self.cache = wherever(self.cache)
        if isinstance(self.memory, str):
            try:
                self.memory = parse_size(self.memory)
            except UsageError as error:
                raise UsageError(f"memory: {error}") from None
        if self.memory is not None and self.memory < LEAST:
            raise UsageError(f"memory must be at least {LEAST} bytes (1MiB), not {self.memory}")
        self._check_keeping()
        if self.step == 0:
            raise UsageError("step must not be 0")
        if self.frames is not None:
            others = [name for name in ("start", "stop", "step") if getattr(self, name) is not None]
            if others:
                raise UsageError(f"frames cannot be given with {', '.join(others)}; choose frames by one or the other")
            if isinstance(self.frames, str):
                from himach.selection import parse_frames

                self.frames = parse_frames(self.frames)

    def _check_keeping(self) -> None:
        if self.pairs is not None:
            if not str(self.pairs) or "\0" in str(self.pairs):
                raise UsageError(f"pairs {str(self.pairs)!r}: it is a directory, in which pairs are kept")
            self.pairs = Path(os.path.abspath(os.path.expanduser(self.pairs)))
        if self.reuse not in REUSE:
            raise UsageError(f"reuse {self.reuse!r}: there is {', '.join(map(repr, REUSE))}")
        for name in ("pairs", "max_time") if self.unkept else ():
            if getattr(self, name) is not None:
                raise UsageError(f"{name} cannot be had for this Universe: {self.unkept}")
        if self.max_time is not None:
            self.max_time = seconds_of(self.max_time, "max_time")

    def check_place(self) -> None:
        """Refuse a limit of time where there is no place for what is mapped by then; on the first rank.

        Others may not know `out`.
        """
        if self.max_time is not None and not self.keeps:
            raise UsageError("max_time needs a place for what is mapped by then: a directory for pairs, or for out")


def this_command() -> tuple[str, ...]:
    """Return the words by which this process was started; none in a notebook or at a prompt."""
    if hasattr(sys, "ps1") or "ipykernel" in sys.modules:
        return ()
    return tuple(sys.argv)


def select(n_frames: int, start: int | None, stop: int | None, step: int | None, numbers: Any = None) -> Selected:
    """Return the chosen frame numbers of a dataset with `n_frames`, by MDAnalysis's (and Python's) rules of slices.

    Parameters
    ----------
    n_frames
        Frames in the dataset.
    start, stop, step
        Of a slice.
    numbers
        The frame numbers, or a boolean for every frame, in place of a slice.

    Raises
    ------
    UsageError
        If that chooses no frame, or the numbers are none that can be chosen.
    """
    if numbers is not None:
        from himach.selection import chosen

        return chosen(numbers, n_frames)
    frames = range(*slice(start, stop, step).indices(n_frames))
    if not frames:
        asked = [f"{name} {value}" for name, value in (("start", start), ("stop", stop), ("step", step)) if value]
        raise UsageError(
            f"no frame is selected: the trajectory has {n_frames} frames (0 to {n_frames - 1})"
            + (f"; asked for {', '.join(asked)}" if asked else "")
        )
    return frames


def parse_keywords(assignments: Sequence[str]) -> dict[str, Any]:
    """Turn ``NAME=VALUE`` words into keywords for MDAnalysis; numbers and Python literals become values, the rest text.

    Raises
    ------
    UsageError
        If one is not of that form.
    """
    import ast

    keywords: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"--universe {assignment}: a keyword is set as NAME=VALUE")
        try:
            keywords[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            keywords[name] = text  # atom_style="id type x y z" is no literal
    return keywords
