"""Area of lipids, thickness of their membrane, and lipids that change sides."""

from typing import ClassVar, Literal

import numpy as np

import himach
from himach.examples.common import check_not_negative, check_positive
from himach.examples.drawing import draw_legend, draw_mean, draw_series, panels, time_axis
from himach.examples.interactions.survival import find_runs
from himach.examples.membranes.flip_flops import build_states, find_flip_flops
from himach.examples.membranes.leaflets import BETWEEN, HEADGROUPS, LOWER, UPPER, Leaflets
from himach.examples.membranes.voronoi import voronoi_areas

#: Key of results of each frame; lipids and their leaflets have pairs of numbers.
FRAME = -1
NAMES = {LOWER: "lower", BETWEEN: "between", UPPER: "upper"}


class Membrane(himach.Analysis):
    """Area per lipid, thickness, and flip-flops of a membrane.

    Leaflets are found in each frame, wherever in the box the membrane is. The area of a lipid is that of the Voronoi
    cells of its headgroup's atoms among those of its leaflet, seen along the normal of the membrane.

    Parameters
    ----------
    headgroups
        Selection of an atom of each lipid's headgroup; of several atoms of a lipid the areas are added up, and their
        mean height counts.
    leaflets
        How leaflets are found: ``z``, by whether headgroups are above or below the midplane, the mean of lipids' atoms
        but hydrogens; ``graph``, by which headgroups are connected, for membranes that undulate strongly.
    bins
        The membrane is split into so many patches along each side of the box. Each has a midplane and a thickness of
        its own, for membranes that undulate; each must be wide enough to have lipids of both leaflets.
    midplane
        Lipids whose headgroup is no farther in Å from the midplane are in neither leaflet; 0: all are in one.
    cutoff
        With ``graph``, headgroups within so many Å of each other are connected.
    normal
        Axis of the box that is the normal of the membrane: ``x``, ``y`` or ``z``; x and y in rectangular boxes alone.
    stay
        Number of selected frames on end after which a lipid has left its leaflet, and has arrived in one.
    """

    name: ClassVar[str] = "membrane"
    references: ClassVar[tuple[str, ...]] = ("10.1021/ci400172g", "10.1021/acs.jctc.1c00447")
    caption: ClassVar[str] = "Area per lipid in each leaflet, and thickness of the membrane, against time."

    headgroups: str = HEADGROUPS
    leaflets: Literal["z", "graph"] = "z"
    bins: int = 1
    midplane: float = 0.0
    cutoff: float = 15.0
    normal: Literal["x", "y", "z"] = "z"
    stay: int = 1

    @property
    def methods(self):
        """What a paper says of it, as the parameters are."""
        criteria = {
            "z": "by whether headgroups are above or below the midplane",
            "graph": "by which headgroups are within {cutoff} Å of each other",
        }
        return (
            "Areas per lipid were computed from Voronoi tessellations of {headgroups} in each leaflet, projected on "
            f"the {'xyz'.replace(self.normal, '')} plane [10.1021/ci400172g]; the thickness is the distance along "
            "{normal} between the mean positions of these atoms in both leaflets [10.1021/acs.jctc.1c00447]. Leaflets "
            f"were found in each frame {criteria[self.leaflets]}."
        )

    def setup(self, universe):
        check_positive(self, "bins", "cutoff", "stay")
        check_not_negative(self, "midplane")
        self.membrane = Leaflets(universe, self)
        self.kinds = list(dict.fromkeys(self.membrane.kinds))
        taken = {"time_ps", "lower", "upper"} & set(self.kinds)
        if taken:
            raise himach.UsageError(f"{self.label()}: residues are called {taken.pop()!r}, as a column of the table is")
        self.kind = np.array([self.kinds.index(name) for name in self.membrane.kinds])

    def atoms(self, universe):
        return universe.atoms[self.membrane.indices]

    def map(self, frame):
        membrane = self.membrane
        placement = membrane.place(frame.positions[membrane.indices], frame.box)
        areas = np.full(len(membrane.kinds), np.nan)
        for side in (LOWER, UPPER):
            lipids = placement.leaflets == side
            if not lipids.any():
                raise himach.UsageError(
                    f"the {NAMES[side]} leaflet has no lipid; choose other headgroups, or a smaller midplane"
                )
            heads = lipids[membrane.numbers]
            cells = voronoi_areas(placement.positions[heads, :2], placement.vectors[:2, :2])
            areas[lipids] = np.bincount(membrane.numbers[heads], cells, len(areas))[lipids]
        sides = [areas[placement.leaflets == side].mean() for side in (LOWER, UPPER)]
        inside = placement.leaflets != BETWEEN
        counts = np.bincount(self.kind[inside], minlength=len(self.kinds))
        sums = np.bincount(self.kind[inside], areas[inside], len(self.kinds))
        kind_areas = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
        yield himach.Pairs([FRAME], [[membrane.thickness(placement), *sides, *kind_areas]])
        not_lower = np.flatnonzero(placement.leaflets != LOWER)
        yield himach.Pairs(np.column_stack([not_lower, placement.leaflets[not_lower]]))

    def reduce(self, key, series):
        if key == FRAME:
            return series.times, series.values
        backwards = self.frames[0] > self.frames[-1]  # times ascend in any order of frames
        return find_runs(len(self.frames) - 1 - series.steps if backwards else series.steps)

    def finish(self, results):
        times, values = results[FRAME]
        time, (thickness, lower, upper, *kind_areas) = himach.Column(times, "ps"), values.T
        areas = {"lower": lower, "upper": upper, **dict(zip(self.kinds, kind_areas, strict=True))}
        columns = {
            name: himach.Column(area, "Å²", estimate=bool(np.isfinite(area).all())) for name, area in areas.items()
        }
        return {
            "area": himach.Table({"time_ps": time, **columns}),
            "thickness": himach.Table({"time_ps": time, "thickness": himach.Column(thickness, "Å", estimate=True)}),
            "flip_flops": self.flip_flops(results, times),
        }

    def flip_flops(self, results, times):
        """Return the table of lipids that leave their leaflets."""
        runs = {}
        for key, state_runs in results.items():
            if key != FRAME:
                runs.setdefault(key[0], []).append((key[1], state_runs))
        rows = []
        always = np.array([0, len(times)]).tobytes()
        for lipid in sorted(lipid for lipid, lipid_runs in runs.items() if lipid_runs != [(UPPER, always)]):
            events = find_flip_flops(build_states(runs[lipid], len(times), LOWER), self.stay)
            rows += [(self.membrane.resindices[lipid], self.membrane.kinds[lipid], event) for event in events]
        events = [event for *_, event in rows]
        return himach.Table(
            {
                "lipid": himach.Column(np.array([index for index, *_ in rows], dtype=np.int64), role="label"),
                "kind": himach.Column([kind for _, kind, _ in rows], role="label"),
                "from": himach.Column([NAMES[event.origin] for event in events], role="label"),
                "to": himach.Column([NAMES[event.target] for event in events], role="label"),
                "left_ps": himach.Column(times[[event.left for event in events]], "ps", role="label"),
                "arrived_ps": himach.Column(times[[event.arrived for event in events]], "ps", role="label"),
                "outcome": himach.Column([event.outcome for event in events], role="label"),
            }
        )

    def plot(self, outcome, axes):
        area, thickness, events = outcome["area"], outcome["thickness"], outcome["flip_flops"]
        scale, label = time_axis(area["time_ps"], "time")
        arrived = sum(result == "success" for result in events["outcome"])
        axes.set_title(f"Membrane, {arrived} flip-flop{'' if arrived == 1 else 's'}")
        above, below = panels(axes, [1.2, 1])
        kinds = [
            name for name in area if name not in ("time_ps", "lower", "upper") and not name.endswith(("_low", "_high"))
        ]
        for name, style in [("lower", "-"), ("upper", ":"), *((kind, "--") for kind in kinds if len(kinds) > 1)]:
            draw_series(
                above, scale * area["time_ps"], area[name], label=name, ls=style, lw=1.6 if style == ":" else 0.8
            )
        above.set(xlabel=label, ylabel=area.label("lower", "area per lipid"))
        draw_legend(above, below=True, ncols=4)
        draw_series(below, scale * thickness["time_ps"], thickness["thickness"], lw=0.8)
        below.set(xlabel=label, ylabel=thickness.label("thickness"))
        draw_mean(below, thickness, "thickness")
        draw_legend(below)
        for panel in (above, below):
            panel.margins(x=0)
            panel.grid(alpha=0.3)
