"""The simulated system, for the record of a run: `system_record()`."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from himach.io.datasets.opening import OpenFrames
from himach.output.record import Record

if TYPE_CHECKING:
    from MDAnalysis.core.topology import Topology

#: Kinds of residues that a record names; others are counted together.
MOST_KINDS = 40


def system_record(opened: OpenFrames) -> Record:
    """Return the record's fields about the simulated system. On the first rank."""
    frames, first = opened.frames, opened.first
    last = first.time if len(frames) < 2 else float(opened.origin.times([frames[-1]])[0])
    return Record(
        atoms=opened.origin.n_atoms,
        residues=residue_kinds(opened.topology),
        box=None if first.box is None else np.asarray(first.box).tolist(),
        time_ps=[float(first.time), last],
        dt_ps=opened.dt,
    )


def residue_kinds(topology: Topology) -> dict[str, int]:
    """Return the number of residues of each kind, as MDAnalysis's selections define it, the most frequent first."""
    from MDAnalysis.core.selection import NucleicSelection, ProteinSelection, WaterSelection

    names = getattr(topology, "resnames", None)
    if names is None:
        return {}
    kinds = {
        **dict.fromkeys(NucleicSelection.nucl_res, "nucleic acid"),
        **dict.fromkeys(WaterSelection.water_res, "water"),
        **dict.fromkeys(ProteinSelection.prot_res, "protein"),
    }
    counts: Counter[str] = Counter()
    for name, count in Counter(names.values.tolist()).items():
        counts[kinds.get(name, str(name))] += count
    ordered = dict(sorted(counts.items(), key=lambda kind: (-kind[1], kind[0])))
    if len(ordered) > MOST_KINDS:
        frequent = dict(list(ordered.items())[: MOST_KINDS - 1])
        ordered = {**frequent, "other": sum(ordered.values()) - sum(frequent.values()) + frequent.pop("other", 0)}
    return ordered
