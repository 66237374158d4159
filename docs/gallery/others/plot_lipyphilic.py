"""
lipyphilic: leaflets and areas of lipids
========================================

`lipyphilic <https://lipyphilic.readthedocs.io>`__ assigns lipids to leaflets frame by frame, and other analyses take
what it found, as the array that a run left. On the command line::

    himach run lipyphilic:AssignLeaflets -p lipid_sel="name P" -t md.xtc --topology md.gro -n 8 --out leaflets
    himach run lipyphilic.analysis.area_per_lipid:AreaPerLipid -p lipid_sel="name P" \\
      -p leaflets=leaflets/leaflets.npy -t md.xtc --topology md.gro -n 8 --out areas
"""

from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import MDAnalysis as mda
import numpy as np
from lipyphilic import AssignLeaflets
from lipyphilic.analysis.area_per_lipid import AreaPerLipid

import himach
import himach.mdanalysis
from himach.examples import sample

if __name__ == "__main__":
    files, lipids = sample("membrane"), "name P"
    assign = himach.mdanalysis.adapted(AssignLeaflets)(lipid_sel=lipids)
    with TemporaryDirectory() as folder:
        leaflets = himach.run(assign, *files, ranks=2, progress=False, out=f"{folder}/run")["leaflets"]
        area = himach.mdanalysis.adapted(AreaPerLipid)(lipid_sel=lipids, leaflets=f"{folder}/run/leaflets.npy")
        areas = himach.run(area, *files, ranks=2, progress=False)["areas"]

    universe = mda.Universe(*files[::-1])
    alone = AssignLeaflets(universe, lipid_sel=lipids).run().results.leaflets
    assert np.array_equal(leaflets, alone)
    assert np.array_equal(areas, AreaPerLipid(universe, lipid_sel=lipids, leaflets=alone).run().results.areas)

    # %%
    # The areas of lipids in both leaflets.

    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    for sign, name in ((1, "upper"), (-1, "lower")):
        axes.hist(areas[leaflets == sign], bins=40, histtype="step", label=f"{name} leaflet")
    axes.set(xlabel="area / Å²", ylabel="lipids and frames")
    axes.legend()
