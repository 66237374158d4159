"""Whether the results of a run can be trusted: `trust()`, of each mean and curve, with what the run warned of."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import NamedTuple

import numpy as np

from himach.analysis import TIME
from himach.errors import UsageError
from himach.output.table import Table
from himach.report.markup import Html, element, join
from himach.report.page.contents import scrolling
from himach.report.page.convergence import ENOUGH, Convergence, converge
from himach.report.page.curves import Curve, small_plot
from himach.report.page.pieces import Pieces
from himach.report.page.results import number, unit_of
from himach.report.record_shape import as_dict
from himach.report.run_folder import RunFolder
from himach.uncertainty.estimate import in_figures

__all__ = ["LEGEND", "trust"]

#: Most columns of a table that are judged, means of members on the page, and columns whose widths are on it.
MOST_COLUMNS, MOST_MEANS, MOST_WIDTHS = 12, 48, 6
#: Rank of a piece: behind tables, before figures.
DETAILS = 1
#: Columns of times and numbers of frames, which are no results.
NO_RESULTS = {TIME, "frame", "member", "group"}
LEVEL = 0.95
NONE = "\N{EN DASH}"
#: What the columns of means show.
LEGEND = (
    "Running mean: from the beginning (solid) and from the end (dashed), over the interval; both end at the mean. "
    "Second half less first: 0 should lie in its interval. Error by length of block: the standard error of the mean, "
    "which levels off where blocks are longer than values are correlated. Every second frame: its mean should lie in "
    "the interval. Sound is what nothing here speaks against: a simulation may still have missed what it never visited."
)
#: Independent simulations of a condition that Communications Biology 6, 268 asks for.
ENOUGH_MEMBERS = 3


class Verdict(Enum):
    """What comes of looking at a result: words with a sign, and their class in the style sheet."""

    GOOD = ("\N{CHECK MARK} sound", "good")
    DOUBTFUL = ("? doubtful", "doubt")
    BAD = ("\N{BALLOT X} without interval", "bad")

    def shown(self, reasons: Sequence[str] = ()) -> Html:
        """Return the cell that says so, and why."""
        why = element("ul", *(element("li", reason) for reason in reasons)) if reasons else ""
        return element("td", element("b", self.value[0], class_=self.value[1]), why)


class Row(NamedTuple):
    """A row of a table of verdicts."""

    verdict: Verdict
    cells: list[Html]


def trust(folder: RunFolder, pieces: Pieces) -> Html:
    """Return the panel of a run."""
    means = [
        row
        for analysis in folder.analyses
        for name in analysis.tables
        for row in _means_of(folder, name, bool(folder.members) or ":" in str(analysis.entry.get("source")))
    ]
    others = [row for name in folder.tables for row in (*_curve_of(folder, name), *_groups_of(folder, name))]
    words = _counts([*means, *others]) or "No result of this run has an interval, nor values in time order."
    parts = [element("p", words)]
    if folder.members:  # the worst first
        means.sort(key=lambda row: list(Verdict).index(row.verdict), reverse=True)
        means, hidden = means[:MOST_MEANS], means[MOST_MEANS:]
        if hidden:
            parts.append(element("p", f"{len(hidden)} more means of members are not shown: {_counts(hidden)}."))
    if means:
        titles = ["mean of", "verdict", "value [interval]", "N_eff", "equilibrated from", "running mean"]
        titles += ["second half less first", "error by length of block", "every second frame"]
        whole = _table("Means of what comes in time", titles, means, "means")
        parts.append(pieces.add(whole, element("p", f"The {len(means)} means do not fit into the page."), DETAILS))
    if others:
        titles = ["table", "verdict", "widest interval", "level", "blocks", "N_eff", "how intervals are made"]
        whole = _table("Curves, counts and groups", titles, others)
        parts.append(pieces.add(whole, element("p", f"The {len(others)} curves do not fit into the page."), DETAILS))
    return join([*parts, _frames(folder), _said(folder)])


def _counts(rows: Sequence[Row]) -> str:
    counts = Counter(row.verdict for row in rows)
    return ", ".join(f"{counts[verdict]} {verdict.value[0][2:]}" for verdict in Verdict if counts[verdict])


def _means_of(folder: RunFolder, name: str, of_user: bool) -> Iterator[Row]:
    """Give a row for each column in time of a table; of an ensemble, for each of its members."""
    try:
        table = folder.table(name)
    except UsageError:
        return
    told = folder.uncertainty(name)
    means = as_dict(told.get("means"))
    if not isinstance(table.get(TIME), np.ndarray) or not table.rows:
        return
    columns = [column for column in means if column in table] or (_numbers(table) if of_user else [])
    level = number(told.get("level"), LEVEL)
    for column in columns[:MOST_COLUMNS]:
        cut = as_dict(means.get(column))
        for member, values, times in _series(table, column):
            first = int(np.searchsorted(times, number(cut.get("start_ps"), -math.inf))) if cut.get("cut") else 0
            title = _named(f"{name}: {column}" if name.rpartition("/")[2] != column else name, member)
            try:
                yield _mean_row(title, converge(values, level, first), times, unit_of(column, table))
            except UsageError as error:
                yield _lone_row(title, str(error))
    if len(columns) > MOST_COLUMNS:
        yield _lone_row(name, f"{len(columns) - MOST_COLUMNS} more columns were not looked at")


def _lone_row(title: str, why: str) -> Row:
    return Row(Verdict.BAD, [element("th", title, scope="row"), Verdict.BAD.shown([why]), element("td", colspan=7)])


def _named(title: str, member: str) -> str:
    return f"{title}, {member}" if member else title


def _numbers(table: Table) -> list[str]:
    """Return the columns of numbers, of a table of which the record says nothing."""
    return [
        name
        for name, cells in table.items()
        if name not in NO_RESULTS and not name.endswith(("_low", "_high"))
        if isinstance(cells, np.ndarray) and cells.dtype.kind == "f" and len(cells)
    ]


def _series(table: Table, column: str) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Give the values of a column in time order with their times; of an ensemble, those of each member."""
    values, times = np.asarray(table[column]), np.asarray(table[TIME])
    members = table.get("member")
    if members is None:
        backwards = len(times) > 1 and times[0] > times[-1]
        yield "", (values[::-1] if backwards else values), (times[::-1] if backwards else times)
        return
    names = np.asarray([str(member) for member in members])
    for name in dict.fromkeys(names.tolist()):
        own = names == name
        yield name, values[own], times[own]


def _mean_row(title: str, found: Convergence, times: np.ndarray, unit: str) -> Row:
    """Return the cells of a mean: what it is, and what speaks for and against it."""
    mean = found.estimate
    value = in_figures(mean.value, mean.low, mean.high, mean.converged)
    doubts = found.doubts
    verdict = Verdict.BAD if not mean.converged else Verdict.DOUBTFUL if doubts else Verdict.GOOD
    since = f"{times[found.start]:.6g} ps" if found.start or mean.converged else NONE
    between = in_figures(found.halves.value, found.halves.low, found.halves.high, found.halves.converged)
    running = small_plot(
        f"Running mean of {title}: from the beginning {found.forward[0]:.3g} to {found.forward[-1]:.3g}, "
        f"from the end {found.backward[0]:.3g} to {found.backward[-1]:.3g}",
        [Curve(found.fractions, found.forward), Curve(found.fractions, found.backward, "second")],
        (mean.low, mean.high),
    )
    block = small_plot(
        f"Standard error of {title} by length of blocks: {found.errors.min():.2g} to {found.errors.max():.2g}"
        if len(found.errors)
        else f"Too few values of {title} for blocks",
        [Curve(np.log(found.lengths), found.errors)],
        zero=True,
    )
    cells = [
        element("th", title, scope="row"),
        verdict.shown(doubts),
        element("td", f"{value} {unit}".strip(), class_="number"),
        element("td", f"{mean.n_eff:.3g} of {found.values}", class_="number"),
        element("td", since, class_="number"),
        element("td", running),
        element("td", between, " ", _mark(found.halves_agree), class_="number"),
        element("td", block),
        element("td", f"{found.every_second:.4g} ", _mark(found.stride_agrees), class_="number"),
    ]
    return Row(verdict, cells)


def _mark(agrees: bool | None) -> Html:
    """Return whether two figures agree, as a sign with its word."""
    if agrees is None:
        return element("span", NONE, title="no interval")
    return element("span", "\N{CHECK MARK}", class_="good", title="agrees") if agrees else element(
        "span", "\N{BALLOT X}", class_="bad", title="differs"
    )  # fmt: skip


def _curve_of(folder: RunFolder, name: str) -> Iterator[Row]:
    """Give a row for a table with limits beside its values."""
    told = folder.uncertainty(name)
    widths, means = as_dict(told.get("half_widths")), as_dict(told.get("means"))
    columns = [column for column in widths if column not in means]
    if not columns:
        return
    n_eff, method = number(told.get("n_eff")), str(told.get("method", ""))
    reasons = []
    if method.startswith("none"):
        verdict, reasons = Verdict.BAD, [method.removeprefix("none: ")]
    elif told.get("blocks") and n_eff < ENOUGH:
        verdict, reasons = Verdict.DOUBTFUL, [f"few independent blocks of frames ({n_eff:.3g} of {ENOUGH})"]
    else:
        verdict = Verdict.GOOD
    known = {column: half for column in columns if not math.isnan(half := number(widths[column]))}
    shown = [f"{column} \N{PLUS-MINUS SIGN} {half:.3g}" for column, half in list(known.items())[:MOST_WIDTHS]]
    lacking = [column for column in columns if column not in known]
    if lacking:
        shown.append(
            f"without interval in places: {', '.join(lacking[:MOST_WIDTHS])}{', ...' * (len(lacking) > MOST_WIDTHS)}"
        )
    cells = [
        element("th", name, scope="row"),
        verdict.shown(reasons),
        element("td", ", ".join(shown)),
        element("td", f"{100 * number(told.get('level')):g} %", class_="number"),
        element("td", str(told.get("blocks") or NONE), class_="number"),
        element("td", f"{n_eff:.0f}" if n_eff >= 100 else f"{n_eff:.3g}", class_="number"),
        element("td", method.removeprefix("none: ")),
    ]
    yield Row(verdict, cells)


def _groups_of(folder: RunFolder, name: str) -> Iterator[Row]:
    """Give a row for the groups of an ensemble: of how many independent simulations their means are."""
    if not folder.members or not name.endswith("_groups"):
        return
    try:
        table = folder.table(name)
    except UsageError:
        return
    if not {"group", "low", "high", "n"} <= set(table) or not table.rows:
        return
    members = dict(zip(map(str, table["group"]), (int(number(n, 0)) for n in table["n"]), strict=True))
    few = [f"{group}: {n}" for group, n in members.items() if n < ENOUGH_MEMBERS]
    reasons = [f"fewer than {ENOUGH_MEMBERS} members in {', '.join(few)}"] if few else []
    verdict = Verdict.DOUBTFUL if few else Verdict.GOOD
    level = number(folder.record.get("confidence"), LEVEL)
    cells = [
        element("th", name, scope="row"),
        verdict.shown(reasons),
        element("td", ", ".join(f"{group}: {n} members" for group, n in members.items())),
        element("td", f"{100 * level:g} %", class_="number"),
        element("td", NONE, class_="number"),
        element("td", NONE, class_="number"),
        element("td", "Student's t over members" + "; differences by Welch's, corrected by Holm" * (len(members) > 1)),
    ]
    yield Row(verdict, cells)


def _table(name: str, titles: list[str], rows: list[Row], kind: str | None = None) -> Html:
    head = element("tr", *(element("th", title, scope="col") for title in titles))
    body = element("tbody", *(element("tr", *row.cells) for row in rows))
    caption = element("caption", element("b", name))
    return scrolling(element("table", caption, element("thead", head), body, class_=kind), name)


def _frames(folder: RunFolder) -> Html:
    """Say which frames the results are of, and which could not be read as they should."""
    record = folder.record
    dataset = as_dict(record.get("dataset"))
    faulty = record.get("faulty")
    lines = [f"{record.get('frames')} of the {dataset.get('frames')} frames that there are were analysed."]
    if isinstance(faulty, dict):
        missing, damaged = faulty.get("missing"), faulty.get("damaged")
        lines.append(
            f"Missing frames: {missing or 'none'}. Damaged copies in the cache: {damaged or 'none'}"
            + (", read from the trajectory instead." if damaged else ".")
        )
    else:
        lines.append("The record does not tell of missing or damaged frames.")
    if folder.missing:
        lines.append(f"Files that the record names and that are gone: {', '.join(folder.missing)}.")
    return element("p", " ".join(lines))


def _said(folder: RunFolder) -> Html:
    """Return what the run warned of, and its errors, verbatim."""
    parts = []
    for kind, title, state in (("errors", "Errors", "bad"), ("warnings", "Warnings", "doubt")):
        found = folder.record.get(kind)
        lines = [element("li", line) for line in found] if isinstance(found, list) else []
        heading = element("b", f"{title} of the run:", class_=state) if lines else f"{title} of the run: none."
        parts += [element("p", heading), element("ul", *lines, class_="said") if lines else ""]
    return join(parts) if any(parts[1::2]) else element("p", "The run had no errors and no warnings.")
