"""Distances, angles and dihedrals in time."""

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt
from MDAnalysis.lib.distances import calc_angles, calc_bonds

import himach
from himach import kernels
from himach.atoms import Atoms
from himach.examples.drawing import draw_legend, draw_series, panels, time_axis
from himach.examples.groups import residue_labels, split_name

if TYPE_CHECKING:
    from MDAnalysis.core.groups import Residue, ResidueGroup

#: Number of points of a column, and its unit, by parameter.
POINTS = {"distances": (2, "Å"), "angles": (3, "°"), "dihedrals": (4, "°"), "minimum": (2, "Å")}
#: Four atoms of each torsion: their residue (0: itself, 1: the next), and their possible names there.
TORSIONS: dict[str, tuple[tuple[int, str], ...]] = {
    "phi": ((-1, "C"), (0, "N"), (0, "CA"), (0, "C")),
    "psi": ((0, "N"), (0, "CA"), (0, "C"), (1, "N")),
    "omega": ((0, "CA"), (0, "C"), (1, "N"), (1, "CA")),
    "chi1": ((0, "N"), (0, "CA"), (0, "CB"), (0, "CG CG1 OG OG1 SG")),
    "chi2": ((0, "CA"), (0, "CB"), (0, "CG CG1"), (0, "CD CD1 OD1 ND1 SD")),
    "chi3": ((0, "CB"), (0, "CG"), (0, "CD SD"), (0, "NE OE1 CE")),
    "chi4": ((0, "CG"), (0, "CD"), (0, "NE CE"), (0, "CZ NZ")),
    "chi5": ((0, "CD"), (0, "NE"), (0, "CZ"), (0, "NH1")),
}
#: First cutoff in the search for the least distance of two groups, Å.
NEAR = 4.0
#: Columns drawn as lines, at most; more are a picture.
MOST_LINES = 6
#: Times in a picture, at most.
MOST_TIMES = 1000


class Geometry(himach.Analysis):
    """Distances, angles, dihedrals and least distances of atoms or groups of them, a column each.

    An entry is a selection of exactly as many atoms as it takes (two for a distance, three for an angle, four for a
    dihedral), in the order of the topology; or as many selections with ``;`` between, in the order wanted, whose
    centres are taken: means of the positions as they are, so that groups must be whole. Before it may stand a name for
    the column, as in ``gate=index 5; index 99``. Distances and angles are by the minimum image.

    Parameters
    ----------
    distances
        Pairs of atoms or groups.
    angles
        Triples of atoms or groups; the angle is that at the second.
    dihedrals
        Quadruples of atoms or groups; or ``phi:``, ``psi:``, ``omega:``, ``chi1:`` to ``chi5:`` before a selection:
        that torsion of each of its residues that has one.
    minimum
        Two selections each, with ``;`` between: the least distance of any atom of one to any of the other.
    """

    name: ClassVar[str] = "geometry"
    references: ClassVar[tuple[str, ...]] = ("10.1021/bi00820a001",)
    caption: ClassVar[str] = "Distances and angles against time."

    distances: list[str] = []  # noqa: RUF012 - a parameter's default
    angles: list[str] = []  # noqa: RUF012
    dihedrals: list[str] = []  # noqa: RUF012
    minimum: list[str] = []  # noqa: RUF012

    @property
    def methods(self):
        """What a paper says of it, as the parameters are."""
        kinds = {
            "distances": "distances",
            "angles": "angles",
            "dihedrals": "dihedral angles",
            "minimum": "least distances",
        }
        text = ", ".join(f"{quantity} ({{{name}}})" for name, quantity in kinds.items() if getattr(self, name))
        sign = "; dihedral angles have the sign of the IUPAC convention [10.1021/bi00820a001]" if self.dihedrals else ""
        return f"{text[:1].upper()}{text[1:]} were computed by the minimum image{sign}."

    def setup(self, universe):
        self.columns = {}  # name: parameter
        points, self.pairs = {}, []  # atoms of a point: its number; the two groups of each least distance
        places = {"distances": [], "angles": [], "dihedrals": []}
        for parameter in POINTS:
            for entry in getattr(self, parameter):
                for name, groups in self.read(universe, parameter, entry):
                    if name in self.columns or name == "time_ps":
                        raise self.error(parameter, entry, f"another column is called {name!r}; name it, as in a=...")
                    self.columns[name] = parameter
                    if parameter == "minimum":
                        self.pairs.append(groups)
                    else:
                        places[parameter].append([points.setdefault(tuple(values), len(points)) for values in groups])
        if not self.columns:
            raise himach.UsageError(f"{self.label()}: give at least one of {', '.join(POINTS)}")
        # Places of the points of each column, a row each.
        self.places = {name: np.array(values).reshape(-1, POINTS[name][0]) for name, values in places.items()}
        self.members = np.array([index for atoms in points for index in atoms], dtype=np.int64)
        self.point_numbers = None  # atoms are points, or each is of one
        if len(self.members) > len(points):
            self.point_numbers = np.repeat(np.arange(len(points)), [len(atoms) for atoms in points])

    def read(self, universe, parameter, entry):
        """Yield the name of each column of an entry, and the indices of its groups of atoms."""
        n, name, text = POINTS[parameter][0], *split_name(entry)
        torsion, colon, selection = text.partition(":")
        if parameter == "dihedrals" and colon and torsion.strip() in TORSIONS:
            name, torsion = torsion.strip() if name == text else name, torsion.strip()
            residues = self.select(universe, parameter, selection).residues
            atoms, having = torsion_atoms(residues, torsion)
            if not len(atoms):
                raise self.error(parameter, entry, f"none of {len(residues)} residues has {torsion}")
            for label, quadruple in zip(residue_labels(having), atoms, strict=True):
                yield f"{name} {label}", quadruple[:, np.newaxis]
            return
        groups = [self.select(universe, parameter, part).indices for part in text.split(";")]
        if len(groups) == 1 and parameter != "minimum":
            groups = groups[0][:, np.newaxis]
            if len(groups) != n:
                raise self.error(
                    parameter, entry, f"{len(groups)} atoms; select {n}, or give {n} selections with ; between"
                )
        elif len(groups) != n:
            raise self.error(parameter, entry, f"{len(groups)} selections; give {n} with ; between")
        if parameter == "minimum" and len(np.intersect1d(*groups)):
            raise self.error(parameter, entry, "an atom is in both selections, and its distance from itself is 0")
        yield name, groups

    def select(self, universe, parameter, selection):
        try:
            return Atoms.from_value(selection).select_fixed(universe, parameter)
        except himach.UsageError as error:
            raise himach.UsageError(f"{self.label()}: {error}") from error

    def error(self, parameter, entry, reason):
        return himach.UsageError(f"{self.label()}: parameter {parameter}: {entry!r}: {reason}")

    def atoms(self, universe):
        return [universe.atoms[indices] for indices in (self.members, *(each for pair in self.pairs for each in pair))]

    def map(self, frame):
        box, points = frame.box, frame.positions[self.members]
        if self.point_numbers is not None:
            points = kernels.centers(points, self.point_numbers).astype(np.float32)
        pairs, triples, quadruples = self.places.values()
        if len(quadruples) == len(self.columns):  # nothing else, which is faster
            yield himach.Pairs([0], kernels.dihedrals(points, quadruples, box)[np.newaxis])
            return
        cells = []
        if len(pairs):
            cells.append(calc_bonds(*(points[place] for place in pairs.T), box=box))
        if len(triples):
            cells.append(np.degrees(calc_angles(*(points[place] for place in triples.T), box=box)))
        if len(quadruples):
            cells.append(kernels.dihedrals(points, quadruples, box))
        if self.pairs:
            cells.append([least_distance(frame.positions[a], frame.positions[b], box) for a, b in self.pairs])
        yield himach.Pairs([0], np.concatenate(cells)[np.newaxis])

    def reduce(self, key, series):
        return series.times, series.values

    def finish(self, results):
        times, cells = results[0]
        # No mean of dihedrals: that of 179 and -179 degrees is not 0.
        columns = {
            name: himach.Column(cells[:, i], POINTS[parameter][1], estimate=parameter != "dihedrals")
            for i, (name, parameter) in enumerate(self.columns.items())
        }
        return {"geometry": himach.Table({"time_ps": himach.Column(times, "ps"), **columns})}

    def plot(self, outcome, axes):
        table = outcome["geometry"]
        _, *names = table
        kinds = {"distance": [], "angle": []}
        for name in names:
            kinds["distance" if table.units[name] == "Å" else "angle"].append(name)
        kinds = {quantity: columns for quantity, columns in kinds.items() if columns}
        axes.set_title("Geometry")
        draws = [draw_lines if len(columns) <= MOST_LINES else draw_picture for columns in kinds.values()]
        heights = [1.3 if draw is draw_lines else 1.7 for draw in draws]
        for panel, draw, (quantity, columns) in zip(panels(axes, heights), draws, kinds.items(), strict=True):
            draw(panel, table, columns, quantity)


def draw_lines(axes, table, names, quantity):
    """Draw columns against time, with means if the run computed some; lines are interrupted between 180 and -180°."""
    scale, label = time_axis(table["time_ps"], "time")
    for name in names:
        times, cells = scale * table["time_ps"], np.array(table[name], dtype=np.float64)
        if table.units[name] == "°" and np.abs(np.diff(cells)).max(initial=0) > 180:
            draw_turns(axes, times, cells, shorten(name, 20))
        else:
            draw_series(axes, times, cells, label=shorten(name, 20), linewidth=0.8)
    axes.set(xlabel=label, ylabel=table.label(names[0], quantity))
    axes.margins(x=0)
    draw_legend(axes, below=True, ncols=3)
    axes.grid(alpha=0.3)


def draw_turns(axes, times, angles, label):
    """Draw angles that cross 180° as an interrupted line or, if there are very many, some of them as points."""
    if len(angles) <= MOST_TIMES:
        angles[1:][np.abs(np.diff(angles)) > 180] = np.nan
        axes.plot(times, angles, linewidth=0.8, label=label)
    else:
        step = -(-len(angles) // MOST_TIMES)
        axes.plot(times[::step], angles[::step], ".", markersize=1.5, label=f"{label}, 1 frame of {step}")


def draw_picture(axes, table, names, quantity):
    """Draw many columns as rows of colours against time; colours of 180 and -180° are the same."""
    scale, label = time_axis(table["time_ps"], "time")
    step = -(-len(table["time_ps"]) // MOST_TIMES)
    cells, angles = np.array([table[name][::step] for name in names]), table.units[names[0]] == "°"
    limits = {"vmin": -180, "vmax": 180, "cmap": "twilight"} if angles else {"cmap": "viridis"}
    places = scale * table["time_ps"][::step], np.arange(len(names))
    image = axes.pcolormesh(*places, cells, shading="nearest", rasterized=True, **limits)
    axes.figure.colorbar(image, ax=axes, label=table.label(names[0], quantity))
    ticks = range(0, len(names), -(-len(names) // 12))
    axes.set_yticks(ticks, [shorten(names[i], 20) for i in ticks])
    axes.set(xlabel=label, ylabel="")
    axes.invert_yaxis()


def shorten(name, most):
    """Return a name, cut if it is longer than `most`."""
    return name if len(name) <= most else f"{name[: most - 1]}…"


def least_distance(a, b, box):
    """Return the least distance of two groups of atoms, float32 (n, 3) and (m, 3), in Å, by the minimum image."""
    cutoff, groups_a, groups_b = NEAR, np.zeros(len(a), np.int64), np.zeros(len(b), np.int64)
    while True:
        _, least = kernels.contacts(a, groups_a, b, groups_b, cutoff, box)
        if len(least):
            return least[0]
        cutoff *= 2


def torsion_atoms(residues: "ResidueGroup", torsion: str) -> "tuple[npt.NDArray[np.int64], ResidueGroup]":
    """Return the atoms of a torsion, int64 (n, 4), and the residues that have it.

    Successive residues are neighbours in the topology, of one segment, with successive numbers.

    Parameters
    ----------
    residues
        Any; those that lack an atom, or have two of a name, are left out.
    torsion
        One of `TORSIONS`.
    """
    rows, indices = [], []
    for i, residue in enumerate(residues):
        atoms = [_atom(_neighbour(residue, shift), names.split()) for shift, names in TORSIONS[torsion]]
        if None not in atoms:
            rows.append(atoms)
            indices.append(i)
    return np.array(rows, dtype=np.int64).reshape(-1, 4), residues[indices]


def _neighbour(residue: "Residue", shift: int) -> "Residue | None":
    residues = residue.universe.residues
    if not 0 <= residue.ix + shift < len(residues):
        return None
    neighbour = residues[residue.ix + shift]
    is_next = neighbour.segment.ix == residue.segment.ix and neighbour.resid == residue.resid + shift
    return neighbour if is_next else None


def _atom(residue: "Residue | None", names: list[str]) -> int | None:
    """Return the index of the only atom of a residue with one of these names; None if there is not exactly one."""
    indices = () if residue is None else residue.atoms.indices[np.isin(residue.atoms.names.astype(str), names)]
    return int(indices[0]) if len(indices) == 1 else None
