"""What `himach.run` returns: `Result`, and `print_outcome` that prints it for the command line."""

from __future__ import annotations

import base64
import html
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TextIO, cast

import numpy as np

from himach.analysis import Analysis
from himach.output.cells import count, printable
from himach.output.directory import prepare_out, write_run
from himach.output.names import unique_labels
from himach.output.parts import parts
from himach.output.record import Record, Uncertainty
from himach.output.show import parts_html, parts_text
from himach.output.table import Table
from himach.uncertainty.estimate import Estimate

if TYPE_CHECKING:
    import pandas

MOST_FILES = 8  # that a summary names
MOST_SHOWN = 4  # parts that stand on the one line that a result is shown by


class Result:
    """The outcome of a run and its record.

    ``result["rmsd"]`` is a table or an array of the outcome by its name, of one analysis as of several; ``in``, ``for``
    and ``keys()`` go over these names, which of several analyses are ``LABEL/NAME``. ``print(result)`` shows tables and
    sums up the run.

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
    members
        Of an ensemble, the outcomes of each member by its name, and what its record says.

    Attributes
    ----------
    outcome
        What finish() returned. Of a list of analyses: a dict of label -> outcome, in the order given; labels that come
        again get -2, -3. None on ranks other than 0.
    record
        The record, as in run.json.
    members
        Of an ensemble, the result of each member by its name: ``result.members["r1"]["rmsd"]`` is its table. A member
        that failed has none. Empty in other runs.
    """

    def __init__(
        self,
        analyses: Sequence[Analysis],
        outcomes: Sequence[Any] | None,
        record: Record,
        several: bool | None = None,
        labels: Sequence[str] | None = None,
        out: str | os.PathLike[str] | None = None,
        members: Mapping[str, tuple[Sequence[Any], Mapping[str, Any]]] = MappingProxyType({}),
    ) -> None:
        self.analyses = list(analyses)
        self.labels = unique_labels(labels or [analysis.label() for analysis in self.analyses])
        self.record = record
        self.out = out
        self.several = len(self.analyses) > 1 if several is None else several
        self._outcomes = None if outcomes is None else list(outcomes)
        self.members: dict[str, Result] = {
            name: Result([Analysis() for _ in given], given, cast(Record, {**record, **own}), self.several, self.labels)
            for name, (given, own) in members.items()
        }

    @property
    def outcome(self) -> Any:
        """What finish() returned; a dict of label -> outcome where several analyses were asked for."""
        if self._outcomes is None:
            return None
        return dict(zip(self.labels, self._outcomes, strict=True)) if self.several else self._outcomes[0]

    def keys(self) -> list[str]:
        """Return the names of the outcome's parts; of several analyses, ``LABEL/NAME``."""
        return [] if self._outcomes is None else list(self._every_part())

    def __getitem__(self, name: str) -> Any:
        """Return a table (`himach.Table`), an array or another part of the outcome.

        Of several analyses ``"LABEL/NAME"`` names it, or ``"NAME"`` where one of them alone has such a part.

        Raises
        ------
        KeyError
            If there is none of that name, or several analyses have one.
        UsageError
            On ranks other than 0.
        """
        every = self._every_part()
        found = self._named(name)
        if len(found) == 1:
            return every[found[0]]
        what = f"there are {', '.join(found)}" if found else f"there is {', '.join(every) or 'nothing'}"
        raise KeyError(f"there is no{' one' if found else ''} {name!r} in this result; {what}")

    def __contains__(self, name: object) -> bool:
        return len(self._named(name)) == 1

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def to_frame(self, name: str | None = None) -> pandas.DataFrame:
        """Return a table of the outcome as a pandas DataFrame, with units of columns as ``attrs["units"]``.

        Parameters
        ----------
        name
            Of the table, as in ``result[name]``. Not needed where there is but one table.

        Raises
        ------
        UsageError
            If there is no such table, or there are several and none is named; on ranks other than 0; without pandas
            (the extra ``himach[pandas]``).
        """
        from himach.errors import UsageError
        from himach.output.data_frames import to_frame

        tables = {key: part for key, part in self._every_part().items() if isinstance(part, Table)}
        found = list(tables) if name is None else self._named(name)
        if len(found) != 1 or found[0] not in tables:
            what = "the outcome has no one table" if name is None else f"there is no table {name!r} in the outcome"
            raise UsageError(f"to_frame: {what}; its tables are {', '.join(map(repr, tables)) or 'none'}")
        return to_frame(tables[found[0]])

    def save(self, path: str | os.PathLike[str]) -> list[Path]:
        """Write the outcome into one file: ``.npz``, ``.json``, or ``.csv`` where it is one table.

        What is written reads back the same: an ``.npz`` has the arrays ``ARRAY`` and ``TABLE/COLUMN``, by
        `numpy.load`; JSON has ``outcome`` and ``units``, by part. Of several analyses names begin with ``LABEL/``.
        Units are under ``units``; beside a .csv, in ``NAME.units.json``.

        Returns
        -------
        list of Path
            What was written.

        Raises
        ------
        UsageError
            If the format is another, or has no form for a part of the outcome; on ranks other than 0.
        HimachError
            If the file cannot be written.
        """
        from himach.output.outcome_file import save

        return save(self._every_part(), path)

    def plot(self, axes: Any = None) -> Any:
        """Draw the outcome with the analysis's plot(); where there is none, the first table's columns over its first.

        Parameters
        ----------
        axes
            Matplotlib axes to draw on, or a sequence of them, one for each analysis that can be drawn. By default they
            are made, below one another.

        Returns
        -------
        matplotlib.figure.Figure
            The figure, which a notebook shows.

        Raises
        ------
        UsageError
            If no analysis has a plot() or a table of numbers, on ranks other than 0, or if there are more or fewer axes
            than plots.
        """
        from himach.errors import UsageError
        from himach.output.plots import draw, drawable, figure

        triples = list(zip(self.labels, self.analyses, self._at_hand(), strict=True))
        plots = [triple for triple in triples if triple[1].defines("plot")]
        plots = plots or [triple for triple in triples if drawable(triple[2]) is not None]
        if not plots:
            raise UsageError(f"nothing to plot: {', '.join(self.labels)} has no plot(), and no table of numbers")
        if axes is None:
            return figure(plots)
        places = [axes] if hasattr(axes, "figure") else list(axes)
        if len(places) != len(plots):
            raise UsageError(f"plot: {len(plots)} plots need as many axes, there are {len(places)}")
        for place, (label, analysis, outcome) in zip(places, plots, strict=True):
            draw(analysis, outcome, place, label)
        return places[0].figure

    def write(self, out: str | os.PathLike[str], force: bool = False) -> list[str]:
        """Write outcome, plots and run.json into a directory that is empty, an earlier run's, or not there yet.

        What other analyses left there is replaced only with `force`.

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
        with prepare_out(out, self.labels, force) as claim:
            return write_run(claim, self.labels, self.analyses, self._outcomes, self.record)

    def __repr__(self) -> str:
        if self._outcomes is None:
            return f"Result({', '.join(self.labels)}: the outcome is on rank 0)"
        told = f"{', '.join(self.labels)}: " if self.several else ""
        shown = [f"{printable(name)} {_shape(part)}" for name, part in list(self._every_part().items())[:MOST_SHOWN]]
        more = len(self._every_part()) - len(shown)
        what = ", ".join([*shown, *([f"and {more} more"] if more else [])]) or "no outcome"
        return f"Result({told}{what}; {count(self.record['frames'], 'frame')})"

    def __str__(self) -> str:
        if self._outcomes is None:
            return repr(self)
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
        texts += [_means_text(name, self._every_part()[name], told) for name, told in self._uncertain()]
        return "\n\n".join(texts)

    def _uncertain(self) -> list[tuple[str, Uncertainty]]:
        """Return what the record tells of how sure tables are, of those that are there."""
        told, several = self.record.get("uncertainty", {}), len(self.labels) > 1
        prefix = f"{self.labels[0]}/" if self.several and not several else ""
        return [(f"{prefix}{name}", of_table) for name, of_table in told.items()]

    def _at_hand(self) -> list[Any]:
        """Return the outcomes; raises UsageError on ranks other than 0."""
        if self._outcomes is None:
            from himach.errors import UsageError

            raise UsageError(f"the outcome of {', '.join(self.labels)} is on rank 0, and this is another rank")
        return self._outcomes

    def _named(self, name: object) -> list[str]:
        """Return which of `keys()` a name means."""
        names = self.keys()
        if name in names or not self.several:
            return [each for each in names if each == name]
        return [each for label in self.labels for each in names if each == f"{label}/{name}"]

    def _every_part(self) -> dict[str, Any]:
        """Return the parts of all outcomes by name; of several analyses, by label and name."""
        outcomes = self._at_hand()
        if not self.several:
            return dict(parts(outcomes[0], self.labels[0]))
        return {
            f"{label}/{name}": part
            for label, outcome in zip(self.labels, outcomes, strict=True)
            for name, part in parts(outcome, label)
        }


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
    line = f"{count(frames, 'frame')} on {where} in {_duration(seconds['whole'])}"
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
    before = f"pairs in {where}" if where else "by updates" if "live" in record else "by a run that did not end"
    told = f"mapped before ({'; '.join(filter(None, [before, reason]))})"
    if reused == total:
        return [f"{every} {told}"]
    return [f"{reused:,} of {total:,} frames were {told}, {total - reused:,} now"]


def _written(out: str, files: Sequence[str]) -> str:
    """Say where a run left its files, and which; in a folder of many, how many."""
    return f"written to {out}: {', '.join(files) if len(files) <= MOST_FILES else count(len(files), 'file')}"


def _means_text(name: str, table: Table, told: Uncertainty) -> str:
    """Return a line for each mean of a table: its interval, what that is made of, and from when it is equilibrated."""
    lines = []
    for column, mean in told["means"].items():
        estimate = Estimate(
            value=mean["mean"],
            low=mean["low"],
            high=mean["high"],
            level=told["level"],
            error=math.nan,
            n_eff=mean["n_eff"],
            blocks=mean["blocks"],
            method=mean["method"],
            converged=mean["blocks"] > 0,
        )
        line = f"mean of {printable(table.label(column))}: {estimate}"
        if mean["start_ps"] is not None and mean["blocks"]:
            since = f"from {mean['start_ps']:g} ps"
            line += f", {since} on" if mean["cut"] else f", equilibrated {since}"
        lines.append(line)
    return "\n".join(lines)


def _image(label: str, analysis: Analysis, outcome: Any) -> str:
    from himach.output.plots import figure, png

    try:
        data = base64.b64encode(png(figure([(label, analysis, outcome)]))).decode()
    except Exception as error:  # the tables are worth showing although the user's plot() failed
        return f"<pre>plot() of {html.escape(label)} failed: {html.escape(f'{type(error).__name__}: {error}')}</pre>"
    return f'<div><img alt="{html.escape(label)}" style="max-width:640px" src="data:image/png;base64,{data}"></div>'


def _shape(part: Any) -> str:
    """Return what a part is, in some words: a table's rows and columns, an array's shape."""
    if isinstance(part, Table):
        columns = [*map(printable, list(part)[:MOST_SHOWN]), *["..."] * (len(part) > MOST_SHOWN)]
        return f"({count(part.rows, 'row')} of {', '.join(columns)})"
    if isinstance(part, np.ndarray) and part.ndim:
        return f"(array {part.shape})"
    return f"({type(part).__name__})"


def _rate(rate: float) -> str:
    return f"{rate:.0f}" if rate >= 100 else f"{rate:.3g}"


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"
