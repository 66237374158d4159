"""How much of a molecule's surface the solvent can reach."""

from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np

import himach
from himach import kernels, uncertainty
from himach.examples.common import check_not_negative, check_positive, select
from himach.examples.drawing import draw_band, draw_legend, draw_mean, draw_series, time_axis
from himach.examples.groups import name_columns, residue_labels, residue_numbers
from himach.examples.molecules import warn_of_cut_molecules
from himach.examples.structure.radii import get_radii

#: Key of sums over frames by residue or atom.
SUMS = 1
#: Areas are summed as integers in this fraction of an Å², so that the order of frames has no effect.
FINE = 2**20
#: Residues or atoms named along an axis, at most.
MOST_LABELS = 8


class Sasa(himach.Analysis):
    """Solvent-accessible surface area by Shrake and Rupley: what of the atoms' spheres a probe can reach.

    The sphere of an atom has its van der Waals radius and that of the probe. Points on it that lie in no other sphere
    count, as those of ``mdtraj.shrake_rupley``.

    Parameters
    ----------
    selection
        Selection of the atoms that there are: they bury each other, all others are left out.
    part
        Selection of those among them whose area is told, such as one side of an interface; None: all.
    probe
        Radius of the probe in Å.
    points
        Number of points on each sphere.
    radii
        Van der Waals radii: ``bondi``, by element; ``protor``, of proteins' heavy atoms with their hydrogens; or a file
        with lines ``ELEMENT RADIUS`` or ``RESIDUE ATOM RADIUS`` in Å, where the last one that fits an atom counts.
    by
        Whether to tell the area of each ``residue`` or ``atom`` as well, as a mean over the frames.
    periodic
        Whether atoms also bury each other through the faces of the box, where frames have one.
    """

    name: ClassVar[str] = "sasa"
    references: ClassVar[tuple[str, ...]] = (
        "10.1016/0022-2836(73)90011-9",
        "10.1021/j100785a001",
        "10.1021/jp8111556",
        "10.1006/jmbi.1999.2829",
    )
    caption: ClassVar[str] = "Solvent-accessible surface area, {by}: against time, or the mean of each residue or atom."

    selection: str = "protein"
    part: str | None = None
    probe: float = 1.4
    points: int = 960
    radii: str = "bondi"
    by: Literal["total", "residue", "atom"] = "total"
    periodic: bool = True

    @property
    def methods(self):
        """What a paper says of it, as the parameters are."""
        radii = {
            "bondi": "of Bondi [10.1021/j100785a001] and, for elements that he does not have, of Mantina et al. "
            "[10.1021/jp8111556]",
            "protor": "of Tsai et al. [10.1006/jmbi.1999.2829]",
        }
        atoms = "{selection}" if self.part is None else "{part} within {selection}"
        return (
            f"The solvent-accessible surface area of {atoms} was computed by the method of Shrake and Rupley "
            "[10.1016/0022-2836(73)90011-9], with {points} points for each atom, a probe of {probe} Å and the radii "
            f"{radii.get(self.radii, 'of the file {radii}')}."
        )

    def setup(self, universe):
        check_not_negative(self, "probe")
        check_positive(self, "points")
        atoms = select(universe, self, "selection")
        if not self.periodic:
            warn_of_cut_molecules(self, atoms)
        part = atoms if self.part is None else select(universe, self, "part")
        if len(part - atoms):
            raise himach.UsageError(
                f"{self.label()}: part {self.part!r} has {len(part - atoms)} atoms that are not in selection "
                f"{self.selection!r}; select them there, too"
            )
        radii, kinds = get_radii(atoms, self)
        spheres = radii > 0
        self.indices, self.sphere_radii = atoms.indices[spheres], radii[spheres]
        self.kinds = np.array(kinds)[spheres].tolist()
        measured = part.intersection(atoms[spheres])
        if not measured:
            raise himach.UsageError(f"{self.label()}: no atom of part has a radius in {self.radii!r}")
        self.measured = None if self.part is None else np.flatnonzero(np.isin(self.indices, measured.indices))
        numbers, residues = residue_numbers(measured)
        self.labels, self.names = residue_labels(residues), name_columns(residues)
        if self.by == "atom":
            self.labels = [f"{self.labels[i]}:{name}" for i, name in zip(numbers, measured.names, strict=True)]
            numbers, self.names = np.arange(len(measured)), name_columns(measured)
        self.numbers = numbers

    def atoms(self, universe):
        return universe.atoms[self.indices]

    def map(self, frame):
        positions, box = frame.positions[self.indices], frame.box if self.periodic else None
        areas = kernels.sasa(positions, self.sphere_radii, self.probe, self.points, box, self.measured)
        fine = np.rint(FINE * areas)
        yield himach.Row(sasa=fine.sum() / FINE)
        if self.by != "total":
            sums = np.bincount(self.numbers, fine, len(self.labels)).astype(np.int64)
            yield himach.Pairs([SUMS], uncertainty.block_row(frame.number, sums)[np.newaxis])

    def reduce(self, key, series):
        return uncertainty.add_blocks(series.values)

    def finish(self, results):
        total = himach.Column(results.rows["sasa"], "Å²", estimate=True)
        tables = {"sasa": himach.Table({"time_ps": himach.Column(results.rows["time_ps"], "ps"), "sasa": total})}
        if self.by != "total":
            in_block, sums = uncertainty.split_blocks(results[SUMS])
            sums = sums / FINE

            def limits(level):
                band = uncertainty.of_blocks(sums, in_block, level)
                return replace(band, low=np.maximum(band.low, 0))  # no area is negative

            mean = himach.Column(sums.sum(axis=0) / in_block.sum(), "Å²", estimate=limits)
            tables["by"] = himach.Table({self.by: himach.Column(self.labels, role="label"), "sasa": mean, **self.names})
        kinds = dict(sorted(zip(self.kinds, self.sphere_radii.tolist(), strict=True)))
        tables["radii"] = himach.Table(
            {
                "kind": list(kinds),
                "radius": himach.Column(list(kinds.values()), "Å", role="label"),
                "atoms": himach.Column(list(map(self.kinds.count, kinds)), role="label"),
            }
        )
        return tables

    def plot(self, outcome, axes):
        if self.by == "total":
            table = outcome["sasa"]
            scale, label = time_axis(table["time_ps"], "time")
            draw_series(axes, scale * table["time_ps"], table["sasa"])
            axes.set(xlabel=label, ylabel=table.label("sasa", "area"))
            axes.margins(x=0)
            draw_mean(axes, table, "sasa")
        else:
            table = outcome["by"]
            places = np.arange(len(table["sasa"]))
            (line,) = axes.plot(places, table["sasa"], marker=".", linewidth=0.8)
            draw_band(axes, places, table, "sasa", line.get_color())
            axes.set(xlabel=self.by, ylabel=table.label("sasa", "mean area"))
            ticks = places[:: len(places) // MOST_LABELS + 1]
            axes.set_xticks(ticks, [table[self.by][i] for i in ticks])
            axes.set_ylim(bottom=0)
        draw_legend(axes)
        axes.set_title("Solvent-accessible surface area")
        axes.grid(alpha=0.3)
