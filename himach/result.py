"""What `himach.run` returns: `Result`, and `print_outcome` that prints it for the command line."""

from __future__ import annotations

import base64
import html
import os
from collections.abc import Sequence
from typing import Any, TextIO

from himach.analysis import Analysis
from himach.output.cells import count
from himach.output.directory import prepare_out, write_run
from himach.output.names import unique_labels
from himach.output.parts import parts
from himach.output.record import Record
from himach.output.show import parts_html, parts_text

MOST_FILES = 8  # that a summary names


class Result:
    """The outcome of a run and its record.

    Parameters
    ----------
    analyses
        The analyses that drew up the outcomes: of a chain, its last.
    outcomes
        Their outcomes, in the same order; None on ranks other than 0.
    record
        What the run was and did.
    several
        Whether the caller asked for a list of analyses; by default, whether there is more than one.
    labels
        Names of the outcomes, if not the labels of `analyses`: of a chain, its first's.
    out
        Where the run left files, if it did.

    Attributes
    ----------
    outcome
        What finish() returned. Of a list of analyses: a dict of label -> outcome, in the order given; labels that come
        again get -2, -3. None on ranks other than 0.
    record
        The record, as in run.json.
    """

    def __init__(
        self,
        analyses: Sequence[Analysis],
        outcomes: Sequence[Any] | None,
        record: Record,
        several: bool | None = None,
        labels: Sequence[str] | None = None,
        out: str | os.PathLike[str] | None = None,
    ) -> None:
        self.analyses = list(analyses)
        self.labels = unique_labels(labels or [analysis.label() for analysis in self.analyses])
        self.record = record
        self.out = out
        self.several = len(self.analyses) > 1 if several is None else several
        self._outcomes = None if outcomes is None else list(outcomes)

    @property
    def outcome(self) -> Any:
        """What finish() returned; a dict of label -> outcome where several analyses were asked for."""
        if self._outcomes is None:
            return None
        return dict(zip(self.labels, self._outcomes, strict=True)) if self.several else self._outcomes[0]

    def plot(self, axes: Any = None) -> Any:
        """Draw the outcome with the analysis's plot().

        Parameters
        ----------
        axes
            Matplotlib axes to draw on, or a sequence of them, one for each analysis that has a plot(). By default they
            are made, below one another.

        Returns
        -------
        matplotlib.figure.Figure
            The figure, which a notebook shows.

        Raises
        ------
        UsageError
            If no analysis has a plot(), on ranks other than 0, or if there are more or fewer axes than plots.
        """
        from himach.errors import UsageError
        from himach.output.plots import draw, figure

        plots = self._plots()
        if not plots:
            what = "outcomes are on rank 0" if self._outcomes is None else f"{', '.join(self.labels)} has no plot()"
            raise UsageError(f"nothing to plot: {what}")
        if axes is None:
            return figure(plots)
        places = [axes] if hasattr(axes, "figure") else list(axes)
        if len(places) != len(plots):
            raise UsageError(f"plot: {len(plots)} plots need as many axes, there are {len(places)}")
        for place, (label, analysis, outcome) in zip(places, plots, strict=True):
            draw(analysis, outcome, place, label)
        return places[0].figure

    def write(self, out: str | os.PathLike[str]) -> list[str]:
        """Write outcome, plots and run.json into a directory that is empty, an earlier run's, or not there yet.

        Returns
        -------
        list of str
            The files, relative to `out`, without run.json. On ranks other than 0 nothing is written.

        Raises
        ------
        UsageError
            If `out` is another directory or cannot be written.
        """
        if self._outcomes is None:
            return []
        with prepare_out(out, self.labels) as claim:
            return write_run(claim, self.labels, self.analyses, self._outcomes, self.record)

    def __repr__(self) -> str:
        if self._outcomes is None:
            return f"Result({', '.join(self.labels)}): the outcome is on rank 0"
        return f"{self.text()}\n\n{summary(self.record, self.out)}"

    def _repr_html_(self) -> str:
        if self._outcomes is None:
            return html.escape(repr(self))
        pieces = []
        for label, outcome, analysis in zip(self.labels, self._outcomes, self.analyses, strict=True):
            pieces.append(f"<h4>{html.escape(label)}</h4>" if self.several else "")
            pieces.append(parts_html(parts(outcome, label)))
            if analysis.defines("plot"):
                pieces.append(_image(label, analysis, outcome))
        told = html.escape(summary(self.record, self.out)).replace("\n", "<br>")
        return f'{"".join(pieces)}<div style="opacity:0.7">{told}</div>'

    def text(self) -> str:
        """Return the outcomes as text for a terminal."""
        assert self._outcomes is not None
        texts = []
        for label, outcome in zip(self.labels, self._outcomes, strict=True):
            named = parts(outcome, label)
            if self.several and [name for name, _ in named] != [label]:
                texts.append(f"{label}\n{'=' * len(label)}")
            texts.append(parts_text(named) if named else f"{label}: no outcome")
        return "\n\n".join(texts)

    def _plots(self) -> list[tuple[str, Analysis, Any]]:
        triples = zip(self.labels, self.analyses, self._outcomes or (), strict=False)
        return [triple for triple in triples if triple[1].defines("plot")]


def print_outcome(result: Result, stream: TextIO) -> None:
    """Print the outcome for the command line, on rank 0; what the stream's encoding lacks is spelled out."""
    if result.outcome is None:
        return
    encoding = getattr(stream, "encoding", None) or "utf-8"
    text = result.text().encode(encoding, "backslashreplace").decode(encoding)
    stream.write(text + "\n")
    stream.flush()


def summary(record: Record, out: str | os.PathLike[str] | None = None) -> str:
    """Return what sums up a run: frames, ranks, seconds, frames a second, where frames came from and files went."""
    frames, ranks, nodes, seconds = record["frames"], record["ranks"], record["nodes"], record["seconds"]
    where = count(ranks, "rank") + (f" of {nodes} nodes" if nodes > 1 else "")
    line = f"{count(frames, 'frame')} on {where} in {_duration(seconds['total'])}"
    mapped = frames - record["reused"]["frames"]
    if mapped and seconds["map"] > 0:
        line += f" (map: {_duration(seconds['map'])}, {_rate(mapped / seconds['map'])} frames/s)"
    cached = record["assignment"]["native"] + record["assignment"]["alien"]
    if cached:
        line += f", {cached} of them cached"
    written = [] if out is None else [_written(os.fspath(out), [*record.get("files", []), "run.json"])]
    return "\n".join([line, *_reused(record), *(f"error: {error}" for error in record["errors"]), *written])


def _reused(record: Record) -> list[str]:
    """Say how many frames earlier runs had mapped, or why all were mapped again; nothing if there were none."""
    total, reused, reason = record["frames"], record["reused"]["frames"], record["reused"]["reason"]
    every = f"all {total:,} frames were" if total > 1 else "the frame was"
    if not reused:
        return [f"{every} mapped again: {reason}"] if reason else []
    where = record["pairs_directory"]
    before = f"pairs in {where}" if where else "by a run that did not end"
    told = f"mapped before ({'; '.join(filter(None, [before, reason]))})"
    if reused == total:
        return [f"{every} {told}"]
    return [f"{reused:,} of {total:,} frames were {told}, {total - reused:,} now"]


def _written(out: str, files: Sequence[str]) -> str:
    """Say where a run left its files, and which; in a folder of many, how many."""
    return f"written to {out}: {', '.join(files) if len(files) <= MOST_FILES else count(len(files), 'file')}"


def _image(label: str, analysis: Analysis, outcome: Any) -> str:
    from himach.output.plots import figure, png

    try:
        data = base64.b64encode(png(figure([(label, analysis, outcome)]))).decode()
    except Exception as error:  # the tables are worth showing although the user's plot() failed
        return f"<pre>plot() of {html.escape(label)} failed: {html.escape(f'{type(error).__name__}: {error}')}</pre>"
    return f'<div><img alt="{html.escape(label)}" style="max-width:640px" src="data:image/png;base64,{data}"></div>'


def _rate(rate: float) -> str:
    return f"{rate:.0f}" if rate >= 100 else f"{rate:.3g}"


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"
