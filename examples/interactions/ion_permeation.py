"""Which ions pass through a pore, when, and which way."""

from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal

import numpy as np

import himach
from himach import kernels, uncertainty
from himach.examples.common import box_vectors, check_positive, select
from himach.examples.drawing import draw_legend, time_axis

#: Regions of ions; opposite bulks have opposite signs.
BELOW, FILTER, ABOVE, ELSEWHERE = -1, 0, 1, 2
#: Key of half the length of the filter; keys of ions are indices, which are never negative.
HALF_LENGTH = -1
#: Points of an ion's path in the outcome, at most.
POINTS = 2000
#: Blocks of time in which events are counted, to detect bursts.
BLOCKS = 10
#: Passing ions with a colour of their own in the plot, at most.
MOST_NAMED = 7
#: Extent of the bulks in the plot, in lengths of the filter.
AROUND = 1.3


class IonPermeation(himach.Analysis):
    """Passages of ions through a pore along z.

    In each frame an ion is `above` if its z exceeds that of the centre of mass of `top`, `below` if it is less than
    that of `bottom`, otherwise in the `filter` if it is within `radius` of the axis, the line along z through the
    centre of mass of both selections, or `elsewhere`. A passage is a stay in the filter that begins in one bulk and
    ends in the other.

    The pore must not be broken by the periodic boundary. Tables: `events`, with the time of the first frame in the
    filter and that of the first frame behind it; `counts`, and rates; `filter`, its mean bounds; `z`, the paths of the
    ions in Å from the middle of the filter, thinned out to 2,000 points. Ions go by their zero-based atom index.

    Parameters
    ----------
    ions
        Selection of the ions.
    top
        Selection of the atoms at the upper end of the filter.
    bottom
        Selection of the atoms at the lower end of the filter.
    radius
        Radius of the filter in Å; None: all between top and bottom is in the filter.
    rule
        `pattern`: the ion is below, in the filter, above (or the reverse) in succession. `bulk-to-bulk`: and it did not
        jump by more than half the box between two frames from the last in one bulk to the first in the other, because
        then it may have gone the other way, through the periodic boundary.
    """

    name: ClassVar[str] = "ion-permeation"
    caption: ClassVar[str] = (
        "Heights of {ions} along the pore against time, from the middle of the filter, which is shaded. Passages are "
        "thick: triangles that point up are those towards {top}, others those towards {bottom}."
    )

    ions: str = "name K K+ POT"
    top: str
    bottom: str
    radius: float | None = None
    rule: Literal["pattern", "bulk-to-bulk"] = "pattern"

    @property
    def methods(self):
        """What a paper says of it, as the parameters are."""
        radius = "" if self.radius is None else ", within {radius} Å of the axis through both"
        jumps = (
            ""
            if self.rule == "pattern"
            else (" Passages with a jump of more than half the box between the two bulks were left out.")
        )
        return (
            "Passages of {ions} along z are stays in the filter that begin in one bulk and end in the other. The "
            f"filter lies between the centres of mass of {{bottom}} and {{top}}{radius}.{jumps}"
        )

    def setup(self, universe):
        if self.radius is not None:
            check_positive(self, "radius")
        self.ion_atoms = select(universe, self, "ions").indices
        top, bottom = select(universe, self, "top"), select(universe, self, "bottom")
        for atoms, parameter in [(top, "top"), (bottom, "bottom")]:
            if not atoms.total_mass() > 0:
                raise himach.UsageError(
                    f"{self.label()}: the atoms of {parameter} have no masses, so no centre of mass"
                )
        self.check_order(*(atoms.center_of_mass()[2] for atoms in (top, bottom)))
        pore = top + bottom
        self.pore_atoms, self.masses = pore.indices, pore.masses
        self.end_numbers = np.repeat([0, 1], [len(top), len(bottom)])

    def check_order(self, top, bottom):
        """Raise UsageError unless the upper end of the filter is above the lower one."""
        if not top > bottom:
            raise himach.UsageError(
                f"{self.label()}: top is not above bottom, their centres of mass are at z = {top:.2f} and {bottom:.2f} "
                "Å; swap the two selections (parameters top and bottom), or make the pore whole"
            )

    def atoms(self, universe):
        return universe.atoms[self.ion_atoms], universe.atoms[self.pore_atoms]

    def map(self, frame):
        ions = frame.positions[self.ion_atoms].astype(np.float64)
        pore = frame.positions[self.pore_atoms]
        top, bottom = kernels.centers(pore, self.end_numbers, self.masses)[:, 2]
        self.check_order(top, bottom)
        if self.radius is None:
            region = np.full(len(ions), FILTER)
        else:
            x, y = (ions - kernels.centers(pore, None, self.masses))[:, :2].T
            region = np.where(np.hypot(x, y) <= self.radius, FILTER, ELSEWHERE)
        region[ions[:, 2] < bottom] = BELOW
        region[ions[:, 2] > top] = ABOVE
        z = ions[:, 2] - (top + bottom) / 2
        yield himach.Pairs(self.ion_atoms, np.column_stack([z, region]))
        yield himach.Pairs([HALF_LENGTH], [(top - bottom) / 2])

    def reduce(self, key, series):
        if key == HALF_LENGTH:
            return np.mean(series.values)
        z, region = series.values.T
        entered, left = find_passages(region)
        if self.rule == "bulk-to-bulk" and series.boxes is not None:
            jumped = np.abs(np.diff(z)) > box_vectors(series.boxes)[1:, 2, 2] / 2
            jumps = np.append(0, np.cumsum(jumped))
            direct = jumps[entered - 1] == jumps[left]
            entered, left = entered[direct], left[direct]
        thin = slice(None, None, -(-len(z) // POINTS))
        return {
            "entered_ps": series.times[entered],
            "left_ps": series.times[left],
            "up": region[left] == ABOVE,
            "watched_ps": series.times[[0, -1]],
            "time_ps": series.times[thin],
            "z": z[thin].astype(np.float32),  # as positions are
        }

    def finish(self, results):
        paths = {ion: results[ion] for ion in self.ion_atoms.tolist()}
        up = np.concatenate([path["up"] for path in paths.values()])
        half = results[HALF_LENGTH]
        direction = np.where(up, "up", "down")
        events = {
            "ion": himach.Column(np.repeat(self.ion_atoms, [len(path["up"]) for path in paths.values()]), role="label"),
            "direction": direction,
            "entered_ps": himach.Column(
                np.concatenate([path["entered_ps"] for path in paths.values()]), "ps", role="label"
            ),
            "left_ps": himach.Column(np.concatenate([path["left_ps"] for path in paths.values()]), "ps", role="label"),
        }
        z = {
            "time_ps": himach.Column(next(iter(paths.values()))["time_ps"], "ps"),
            **{f"ion {ion}": himach.Column(path["z"], "Å", role="label") for ion, path in paths.items()},
        }
        left = events["left_ps"]
        watched = next(iter(paths.values()))["watched_ps"]
        outcome = {
            "events": himach.Table(events),
            "counts": himach.Table({"direction": np.array(["up", "down"]), **tabulate([left[up], left[~up]], watched)}),
            "filter": himach.Table({"bottom": himach.Column([-half], "Å"), "top": himach.Column([half], "Å")}),
            "z": himach.Table(z),
        }
        outcome["events"]["direction"] = direction  # an array, as the other columns
        return outcome

    def plot(self, outcome, axes):
        events, z, counts = outcome["events"], outcome["z"], outcome["counts"]
        bottom, top = outcome["filter"]["bottom"][0], outcome["filter"]["top"][0]
        scale, label = time_axis(z["time_ps"], "time")
        passing = [f"ion {ion}" for ion in np.unique(events["ion"])]
        colours = {ion: f"C{number}" for number, ion in enumerate(passing)}
        axes.axhspan(bottom, top, color="0.92", linewidth=0)
        for end, side, name in (bottom, "top", "bottom"), (top, "bottom", "top"):
            axes.axhline(end, color="black", linewidth=0.8, zorder=1.5)
            offset = {"xytext": (3, -2 if side == "top" else 2), "textcoords": "offset points", "fontsize": "small"}
            axes.annotate(name, (1, end), xycoords=("axes fraction", "data"), va=side, annotation_clip=False, **offset)
        others = [path for path in z if path not in colours and path != "time_ps"]
        for path in [*others, *passing]:  # passing ones on top
            draw_path(axes, scale * z["time_ps"], z[path], color=colours.get(path, "0.8"), alpha=0.6, lw=0.5)
        named = passing if len(passing) <= MOST_NAMED else []  # more have no colour of their own
        for ion in [*named, *(["other ions"] if others else [])]:
            axes.plot([], [], color=colours.get(ion, "0.8"), label=ion)
        for row, (direction, n) in enumerate(zip(counts["direction"], counts["events"], strict=True)):
            end, marker = (top, "^") if direction == "up" else (bottom, "v")
            matching = np.asarray(events["direction"]) == direction
            for ion, *times in zip(*(events[name][matching] for name in ("ion", "entered_ps", "left_ps")), strict=True):
                first, last = np.searchsorted(z["time_ps"], times)
                path, color = slice(max(first - 1, 0), last + 1), colours[f"ion {ion}"]
                time, height = scale * z["time_ps"][path], z[f"ion {ion}"][path]
                axes.plot(time, height, color=color, lw=1.8, zorder=3)
                crossing = np.interp(end, *zip(*sorted(zip(height[-2:], time[-2:], strict=True)), strict=True))
                axes.plot(crossing, end, marker, color=color, mec="black", markersize=5, zorder=4)
            text = f"{n} passage{'' if n == 1 else 's'} {direction}"
            if "events_low" in counts:
                limits = f"[{counts['events_low'][row]:.3g}, {counts['events_high'][row]:.3g}]"
                text += f" {limits} ({100 * counts.level:g} %)"
            axes.plot([], [], marker, color="0.6", mec="black", markersize=5, label=text)
        axes.set(xlabel=label, ylabel="z from the filter's middle / Å", title="Ions through the filter")
        axes.set_ylim(bottom - AROUND * (top - bottom), top + AROUND * (top - bottom))
        axes.margins(x=0.01)
        draw_legend(axes, below=True, ncols=1 if len(named) < 3 else 2)


def tabulate(times, watched):
    """Return columns of the numbers of events and of their rates per ns, each with limits.

    Parameters
    ----------
    times
        Times of the events of each row, ps.
    watched
        Times in ps between which events were observed.
    """
    time = abs(watched[1] - watched[0])
    k = np.array([len(row) for row in times])

    def limits(level, time=None):
        blocks = [np.histogram(row, BLOCKS, np.sort(watched))[0] for row in times]
        bands = [uncertainty.count(n, level, time=time, blocks=counts) for n, counts in zip(k, blocks, strict=True)]
        least = bands[np.argmin(k)]
        return replace(least, low=np.array([band.low for band in bands]), high=np.array([band.high for band in bands]))

    columns = {"events": himach.Column(k, estimate=limits)}
    if time > 0:
        rate = himach.Column(1000 * k / time, "1/ns", estimate=partial(limits, time=time / 1000))
        columns["rate_per_ns"] = rate
    return columns


def draw_path(axes, time, z, **style):
    """Draw the path of one ion, interrupted where it goes through the periodic boundary."""
    jumps = np.flatnonzero(np.abs(np.diff(z)) > np.ptp(z) / 2) + 1
    axes.plot(np.insert(time, jumps, np.nan), np.insert(z, jumps, np.nan), **style)


def find_passages(region):
    """Return when an ion enters and leaves the filter in each passage.

    Parameters
    ----------
    region
        (m,): where the ion is in each frame.

    Returns
    -------
    entered, left
        int64 (n,): the first frame in the filter, and the first in the other bulk, of each passage.
    """
    starts = np.flatnonzero(np.diff(region, prepend=np.nan) != 0)  # of each stay in one region
    stays = region[starts]
    opposite = stays[:-2] * stays[2:] == BELOW * ABOVE
    through = np.flatnonzero(opposite & (stays[1:-1] == FILTER)) + 1
    return starts[through], starts[through + 1]
