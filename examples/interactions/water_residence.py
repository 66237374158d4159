"""How long water stays near a solute."""

from textwrap import shorten
from typing import ClassVar, Literal

import numpy as np

import himach
from himach import kernels
from himach.examples.common import WATER, check_not_negative, check_positive, lag_times, select, warn_of_nm
from himach.examples.interactions.survival import (
    find_runs,
    find_runs_of_many,
    plot_stays,
    plot_survival,
    stay_tables,
    survival,
)


class WaterResidence(himach.Analysis):
    """Survival probability of water near a solute.

    Of the water molecules within `cutoff` of the solute at one frame, the fraction that is there at every frame until
    tau later, averaged over all frames that have any. Beside it, how long stays last that begin after the first frame,
    by Kaplan and Meier, so that those that outlast the trajectory count for what was seen of them; and their mean, if
    water leaves at the same rate however long it has stayed.

    Parameters
    ----------
    water
        Selection of the atoms that are followed, one per molecule as a rule: the water oxygens.
    solute
        Selection of the atoms that they are near to.
    cutoff
        Largest distance in Å between a water atom and any atom of the solute, by the minimum image.
    tau_max
        Longest lag, in selected frames.
    intermittency
        Absences of up to so many frames do not count as leaving.
    by
        What is followed: each `atom`, or each `residue`, which is there if any of its `water` atoms is.
    """

    name: ClassVar[str] = "water-residence"
    references: ClassVar[tuple[str, ...]] = ("10.1021/jp0375057", "10.1080/01621459.1958.10501452")
    caption: ClassVar[str] = (
        "Survival probability of {water} within {cutoff} Å of {solute} against the lag time, and that of stays that "
        "begin after the first frame, by the method of Kaplan and Meier."
    )

    water: str = WATER
    solute: str = "protein"
    cutoff: float = 3.5
    tau_max: int = 20
    intermittency: int = 0
    by: Literal["atom", "residue"] = "atom"

    @property
    def methods(self):
        """What a paper says of it, as the parameters are."""
        gaps = (
            " Absences of up to {intermittency} selected frames did not count as leaving." if self.intermittency else ""
        )
        return (
            "The survival probability of {water} (by {by}) within {cutoff} Å of {solute} was averaged over all time "
            "origins [10.1021/jp0375057]. How long stays last that begin after the first frame was estimated by the "
            f"method of Kaplan and Meier [10.1080/01621459.1958.10501452].{gaps}"
        )

    def setup(self, universe):
        check_positive(self, "cutoff")
        check_not_negative(self, "intermittency")
        solute, water = select(universe, self, "solute"), select(universe, self, "water")
        water = water - solute  # an atom is not near itself
        self.solute_atoms, self.water_atoms = solute.indices, water.indices
        self.keys = water.resindices if self.by == "residue" else water.indices
        self.tau_ps = lag_times(self, self.tau_max)

    def atoms(self, universe):
        return universe.atoms[self.solute_atoms], universe.atoms[self.water_atoms]

    def map(self, frame):
        near = kernels.within(
            frame.positions[self.water_atoms], frame.positions[self.solute_atoms], self.cutoff, frame.box
        )
        keys = self.keys[near]
        yield himach.Pairs(np.unique(keys) if self.by == "residue" else keys)

    def reduce(self, key, series):
        return find_runs(series.steps, self.intermittency)

    def reduce_many(self, keys, series):
        return find_runs_of_many(series.steps, series.offsets, self.intermittency)

    def finish(self, results):
        warn_of_nm(self, "cutoff", bool(results))
        runs, n_frames = [b"".join(results.values())], len(self.frames)
        probability = survival(runs, n_frames, len(self.tau_ps) - 1)
        stays, mean = stay_tables(runs, n_frames, abs(self.dt or 0), self.intermittency)
        taus = himach.Column(self.tau_ps, "ps", role="x")
        return {"survival": himach.Table({"tau_ps": taus, "survival": probability}), "stays": stays, "residence": mean}

    def plot(self, outcome, axes):
        title = shorten(f"Water within {self.cutoff:g} Å of {self.solute}", 60)
        scale = plot_survival(outcome["survival"], axes, title)
        plot_stays(outcome["stays"], outcome["residence"], axes, scale)
