"""What a benchmark found: figures, the bars they are held to, the answers that were compared; tables of them."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from .answers import Agreement
from .interleave import Times

__all__ = ["Figure", "Row", "markdown_table", "report"]


@dataclass(frozen=True)
class Figure:
    """One comparison: what was timed of himach, its seconds, one a turn, and what a peer took in the same turns."""

    what: str
    ours: Sequence[float]
    peer: str
    theirs: Sequence[float]
    #: ``faster``: the peer's time over himach's, which should be large. ``share``: the same, of a limit that cannot be
    #: passed. ``times``: himach's time over the peer's, which should be small.
    kind: Literal["faster", "share", "times"] = "faster"
    #: What the ratio is held to, if it is.
    bar: float | None = None

    @property
    def ratios(self) -> list[float]:
        """The ratio of each turn."""
        pairs = zip(self.ours, self.theirs, strict=True)
        return [ours / theirs if self.kind == "times" else theirs / ours for ours, theirs in pairs]

    @property
    def ratio(self) -> float:
        """The median of the ratios."""
        return statistics.median(self.ratios)

    @property
    def met(self) -> bool | None:
        """Whether the bar is met; None without one."""
        if self.bar is None:
            return None
        return self.ratio <= self.bar if self.kind == "times" else self.ratio >= self.bar

    def as_dict(self) -> dict[str, Any]:
        """Return all that is known, for JSON."""
        return {**asdict(self), "ratios": self.ratios, "ratio": self.ratio, "met": self.met}

    def cells(self) -> list[str]:
        """Return the cells of this figure's line in a table."""
        sign = "≤" if self.kind == "times" else "≥"
        bar = "" if self.bar is None else f"{sign} {self._show(self.bar)}{'' if self.met else ' **missed**'}"
        spread = f"{self._show(min(self.ratios))} to {self._show(max(self.ratios))}"
        ours, theirs = (f"{_seconds(statistics.median(values))}" for values in (self.ours, self.theirs))
        return [self.what, ours, self.peer, theirs, f"**{self._show(self.ratio)}**", spread, bar]

    def _show(self, ratio: float) -> str:
        if self.kind == "share":
            return f"{ratio:.0%}"
        return f"{ratio:.0f}" if ratio >= 100 else f"{ratio:.3g}"


@dataclass(frozen=True)
class Row:
    """What one benchmark found: comparisons, answers found equal, seconds in their turns, what a reader must know."""

    title: str
    figures: Sequence[Figure]
    answers: Sequence[Agreement] = ()
    times: Times = field(default_factory=dict)
    notes: Sequence[str] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return all that is known, for JSON."""
        return {**asdict(self), "figures": [figure.as_dict() for figure in self.figures]}

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> "Row":
        """Return what `as_dict` was made of."""
        known = ("what", "ours", "peer", "theirs", "kind", "bar")
        figures = [Figure(**{name: each[name] for name in known}) for each in saved["figures"]]
        answers = [Agreement(**each) for each in saved["answers"]]
        return cls(saved["title"], figures, answers, saved["times"], saved["notes"])

    def markdown(self) -> str:
        """Return a table of the figures, with the answers and notes below."""
        head = ["himach", "s", "beside", "s", "ratio", "spread", "bar"]
        same = [
            f"{each.peer} by {each.difference:.1e}{each.unit and ' '}{each.unit} "
            f"({each.tolerance:g} allowed: {each.reason})"
            for each in self.answers
        ]
        lines = [f"Answers differ at most from {'; '.join(same)}."] if same else []
        notes = "\n".join(f"- {line}" for line in [*lines, *self.notes])
        table = markdown_table(head, [figure.cells() for figure in self.figures])
        return "\n\n".join([f"### {self.title}", table, *([notes] if notes else [])])


def markdown_table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    rule = ["---"] * len(head)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *lines))


def report(what: str, value: str, bar: str = "none") -> None:
    """Print one figure and the bar it is held to."""
    print(f"{what:<62} {value:>22}   (bar: {bar})", flush=True)


def _seconds(value: float) -> str:
    return f"{value:.3f}" if value < 1 else f"{value:.3g}"
