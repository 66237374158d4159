"""What `himach.run` returns: `Result`, and `print_outcome` that prints it for the command line."""

import base64
import html
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TextIO, cast

import numpy as np

from himach.analysis import Analysis
from himach.errors import UsageError, nearest, printable
from himach.output.claim import prepare_out
from himach.output.directory import write_run
from himach.output.figures.picture import png, width_on_screen
from himach.output.figures.plots import draw, drawable, figure
from himach.output.file_names import figure_formats, table_formats, unique_names
from himach.output.outcome_files import save
from himach.output.parts import parts, parts_html, parts_text
from himach.output.record import Record
from himach.output.summary import certainty, mean_lines, summary
from himach.output.table import Table
from himach.output.text import count

if TYPE_CHECKING:
    import pandas
    import xarray

#: For each member of an ensemble, by name, its outcomes and its record, which may be unpacked when they are taken.
MemberOutcomes = Mapping[str, Iterable[Any]]
OF_ENSEMBLE = ("planning",)  # fields of a record that do not apply to members
MOST_SHOWN = 4  # most parts in the one-line representation of a result


class Members(Mapping[str, "Result"]):
    """Results of members of an ensemble by name; for a missing one, raises a KeyError that says why there is none.

    Each is made on access: very many results would take more memory than their outcomes.
    """

    def __init__(self, outcomes: MemberOutcomes, record: Record, several: bool, labels: Sequence[str]) -> None:
        self._outcomes, self._record, self._several, self._labels = dict(outcomes), record, several, labels
        self._results: dict[str, Result] = {}

    def __getitem__(self, name: str) -> "Result":
        if name not in self._outcomes:
            error = next((entry["error"] for entry in self._record.get("ensemble", ()) if entry["name"] == name), None)
            raise KeyError(error or f"no member is called {name!r}{nearest(str(name), self)}")
        if name not in self._results:
            outcomes, own = self._outcomes[name]
            shared = {key: value for key, value in self._record.items() if key not in OF_ENSEMBLE}
            analyses, record = [Analysis() for _ in outcomes], cast(Record, {**shared, **own})
            self._results[name] = Result(analyses, outcomes, record, self._several, self._labels)
        return self._results[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._outcomes)

    def __len__(self) -> int:
        return len(self._outcomes)


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
        The record, as in run.json. Of an ensemble, ranks other than 0 lack what it says of members and their data.
    members
        Of an ensemble, the result of each member by its name: ``result.members["r1"]["rmsd"]`` is its table. A member
        that failed has none: asking for it says why. Empty in other runs.

    Examples
    --------
    >>> result = himach.run("rmsd", u, selection="name CA", stop=3)
    >>> result["rmsd"]["rmsd"].round(2)
    array([0.  , 0.39, 0.39])
    """

    def __init__(
        self,
        analyses: Sequence[Analysis],
        outcomes: Sequence[Any] | None,
        record: Record,
        several: bool | None = None,
        labels: Sequence[str] | None = None,
        out: str | os.PathLike[str] | None = None,
        members: MemberOutcomes = MappingProxyType({}),
    ) -> None:
        self.analyses = list(analyses)
        self.labels = unique_names(labels or [analysis.label() for analysis in self.analyses])
        self.record = record
        self.out = out
        self.several = len(self.analyses) > 1 if several is None else several
        self._outcomes = None if outcomes is None else list(outcomes)
        self.members = Members(members, record, self.several, self.labels)

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
        parts_by_name = self._every_part()
        matches = self._match_names(name)
        if len(matches) == 1:
            return parts_by_name[matches[0]]
        what = f"there are {', '.join(matches)}" if matches else f"there is {', '.join(parts_by_name) or 'nothing'}"
        raise KeyError(f"there is no{' one' if matches else ''} {name!r} in this result; {what}")

    def __contains__(self, name: object) -> bool:
        return len(self._match_names(name)) == 1

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def to_frame(self, name: str | None = None) -> "pandas.DataFrame":
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
        return self._table(name, "to_frame").to_frame()

    def to_xarray(self, name: str | None = None) -> "xarray.Dataset":
        """Return a table of the outcome as an xarray Dataset: a variable for each column, with its unit as ``units``.

        Where the first column is of floats that ascend, such as ``time_ps`` or ``r``, it is the dimension; else there
        is one of rows, ``row``. Limits are variables of their own, ``<column>_low`` and ``<column>_high``, and their
        level of confidence is the attribute ``level``. ``time_ps`` and ``frame`` are coordinates wherever they stand.
        Of an ensemble ``member`` and its group are coordinates of rows, too;
        ``dataset.set_index(row=["member", "time_ps"]).unstack("row")`` makes members a dimension.

        Parameters
        ----------
        name
            Of the table, as in ``result[name]``. Not needed where there is but one table.

        Raises
        ------
        UsageError
            If there is no such table, or there are several and none is named; on ranks other than 0; without xarray
            (the extra ``himach[xarray]``).
        """
        return self._table(name, "to_xarray").to_xarray()

    def save(self, path: str | os.PathLike[str]) -> list[Path]:
        """Write the outcome into one file: ``.npz``, ``.json``; a table: ``.csv``, ``.parquet``, ``.nc``, ``.xvg``.

        What is written reads back the same: an ``.npz`` has the arrays ``ARRAY`` and ``TABLE/COLUMN``, by
        `numpy.load`; JSON has ``outcome`` and ``units``, by part. Of several analyses names begin with ``LABEL/``.
        Units are under ``units``; beside a .csv, in ``NAME.units.json``. Files of one table are as `himach.run` leaves
        them in ``out``.

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
        triples = list(zip(self.labels, self.analyses, self._local_outcomes(), strict=True))
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

    def write(
        self,
        out: str | os.PathLike[str],
        force: bool = False,
        table: str | Sequence[str] = "csv",
        figure: str | Sequence[str] = "png",
    ) -> list[str]:
        """Write outcome, plots and run.json into a directory that is empty, an earlier run's, or not there yet.

        What other analyses left there is replaced only with `force`. Tables are CSV, and beside that what `table` says,
        plots are of the formats that `figure` says, as of `himach.run`.

        Returns
        -------
        list of str
            The files, relative to `out`, without run.json. On ranks other than 0 nothing is written.

        Raises
        ------
        UsageError
            If `out` is another directory or cannot be written, or a format is none, or lacks what it needs.
        """
        if self._outcomes is None:
            return []
        formats, figures = table_formats(table), figure_formats(figure)
        with prepare_out(out, self.labels, force) as claim:
            results = [*zip(self.labels, self.analyses, self._outcomes, strict=True)]
            return write_run(claim, results, self.record, tables=formats, figures=figures)

    def report(self, path: str | os.PathLike[str]) -> list[Path]:
        """Write a report of the run, as ``himach report`` does of its folder: one page of HTML that needs no network.

        Beside it lie the files of ``himach cite``, as of `himach.write_report`. It is made of the outcome as it is
        here, whether the run left files (``out``) or not, and is called by the name of these files' folder, or of the
        page.

        Parameters
        ----------
        path
            File of the page, such as ``"report.html"``.

        Returns
        -------
        list of Path
            What was written, the page first. On ranks other than 0 nothing is.

        Raises
        ------
        HimachError
            If a file cannot be written.
        """
        if self._outcomes is None:
            return []
        from himach import write_report  # by its public name: it is a layer above this file, and reads folders only

        name = (Path(path).stem if self.out is None else Path(self.out).resolve().name) or "run"
        with TemporaryDirectory() as directory:
            folder = Path(directory) / name
            record = cast(Record, {**self.record, "seconds": {**self.record["seconds"]}})
            with prepare_out(folder, self.labels) as claim:
                write_run(claim, [*zip(self.labels, self.analyses, self._outcomes, strict=True)], record)
            return write_report([folder], path)

    def __repr__(self) -> str:
        if self._outcomes is None:
            return f"Result({', '.join(self.labels)}: the outcome is on rank 0)"
        prefix = f"{', '.join(self.labels)}: " if self.several else ""
        texts = [f"{printable(name)} {_shape(part)}" for name, part in list(self._every_part().items())[:MOST_SHOWN]]
        more = len(self._every_part()) - len(texts)
        what = ", ".join([*texts, *([f"and {more} more"] if more else [])]) or "no outcome"
        return f"Result({prefix}{what}; {count(self.record['frames'], 'frame')})"

    def __str__(self) -> str:
        if self._outcomes is None:
            return repr(self)
        return f"{self.text()}\n\n{summary(self.record, self.out)}"

    def _repr_html_(self) -> str:
        if self._outcomes is None:
            return html.escape(repr(self))
        pieces = []
        entries = self._uncertain()
        captions = [entry.get("caption", "") for entry in self.record["analyses"]]
        for label, outcome, analysis, caption in zip_longest(self.labels, self._outcomes, self.analyses, captions):
            named, prefix = parts(outcome, label), f"{label}/" if self.several else ""
            pieces.append(f"<h4>{html.escape(label)}</h4>" if self.several else "")
            pieces.append(parts_html(named))
            if analysis.defines("plot"):
                pieces.append(_figure_html(label, caption or "", analysis, outcome))
            tables = [(name, table) for name, table in named if f"{prefix}{name}" in entries]
            lines = [line for name, table in tables for line in certainty(name, table, entries[f"{prefix}{name}"])]
            pieces += [f"<p>{html.escape(line)}</p>" for line in lines]
        summary_html = html.escape(summary(self.record, self.out)).replace("\n", "<br>")
        return f"{''.join(pieces)}<div>{summary_html}</div>"

    def text(self) -> str:
        """Return the outcomes as text for a terminal."""
        assert self._outcomes is not None
        texts = []
        for label, outcome in zip(self.labels, self._outcomes, strict=True):
            named = parts(outcome, label)
            if self.several and [name for name, _ in named] != [label]:
                texts.append(f"{label}\n{'=' * len(label)}")
            texts.append(parts_text(named) if named else f"{label}: no outcome")
        for name, certainties in self._uncertain().items():
            texts.append("\n".join(mean_lines(self._every_part()[name], certainties)))
        return "\n\n".join(filter(None, texts))  # some tables have no mean

    def _uncertain(self) -> dict[str, Record]:
        """Return the uncertainties of tables in the record, by their names in `keys()`."""
        uncertainty, several = self.record.get("uncertainty", {}), len(self.labels) > 1
        prefix = f"{self.labels[0]}/" if self.several and not several else ""
        return {f"{prefix}{name}": certainty for name, certainty in uncertainty.items()}

    def _local_outcomes(self) -> list[Any]:
        """Return the outcomes; raises UsageError on ranks other than 0."""
        if self._outcomes is None:
            raise UsageError(f"the outcome of {', '.join(self.labels)} is on rank 0, and this is another rank")
        return self._outcomes

    def _table(self, name: str | None, what: str) -> Table:
        """Return the table of that name, or the only one."""
        tables = {key: part for key, part in self._every_part().items() if isinstance(part, Table)}
        matches = list(tables) if name is None else self._match_names(name)
        if len(matches) != 1 or matches[0] not in tables:
            why = "the outcome has no one table" if name is None else f"there is no table {name!r} in the outcome"
            raise UsageError(f"{what}: {why}; its tables are {', '.join(map(repr, tables)) or 'none'}")
        return tables[matches[0]]

    def _match_names(self, name: object) -> list[str]:
        """Return the matches of a name in `keys()`."""
        names = self.keys()
        if name in names or not self.several:
            return [key for key in names if key == name]
        return [key for label in self.labels for key in names if key == f"{label}/{name}"]

    def _every_part(self) -> dict[str, Any]:
        """Return the parts of all outcomes by name; of several analyses, by label and name."""
        outcomes = self._local_outcomes()
        if not self.several:
            return dict(parts(outcomes[0], self.labels[0]))
        return {
            f"{label}/{name}": part
            for label, outcome in zip(self.labels, outcomes, strict=True)
            for name, part in parts(outcome, label)
        }


def print_outcome(result: Result, stream: TextIO) -> None:
    """Print the outcome for the command line, on rank 0; escape characters that the stream cannot encode."""
    if result.outcome is None:
        return
    encoding = getattr(stream, "encoding", None) or "utf-8"
    text = result.text().encode(encoding, "backslashreplace").decode(encoding)
    stream.write(text + "\n")
    stream.flush()


def _figure_html(label: str, caption: str, analysis: Analysis, outcome: Any) -> str:
    """Return the plot with its caption, which also serves readers who cannot see it."""
    try:
        picture = figure([(label, analysis, outcome)])
        data, width = base64.b64encode(png(picture)).decode(), width_on_screen(picture)
    except Exception as error:  # still show the tables if the user's plot() fails
        return f"<pre>plot() of {html.escape(label)} failed: {html.escape(f'{type(error).__name__}: {error}')}</pre>"
    figcaption = f"<figcaption>{html.escape(caption)}</figcaption>" if caption else ""
    attributes = f'alt="Plot of {html.escape(label)}" style="width:{width}px;max-width:100%"'
    image = f'<img {attributes} src="data:image/png;base64,{data}">'
    return f'<figure style="margin:0.5em 0">{image}{figcaption}</figure>'


def _shape(part: Any) -> str:
    """Return a short description of a part: a table's rows and columns, an array's shape, or its type."""
    if isinstance(part, Table):
        columns = [*map(printable, list(part)[:MOST_SHOWN]), *["..."] * (len(part) > MOST_SHOWN)]
        return f"({count(part.rows, 'row')} of {', '.join(columns)})"
    if isinstance(part, np.ndarray) and part.ndim:
        return f"(array {part.shape})"
    return f"({type(part).__name__})"
