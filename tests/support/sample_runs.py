"""Analyses and a record of a run that was never made, for tests of what a run shows and leaves behind."""

import himach
from himach.examples import BUILTINS
from himach.output.record import Record, analysis_record

#: Built-in analysis -> a sample that it can run over, and parameters.
BUILTIN_RUNS: dict[str, tuple[str, dict]] = {name: ("villin", {}) for name in BUILTINS} | {
    "water-residence": ("nanopore", {"solute": "name K"}),
    "ion-permeation": ("kcsa", {"top": "index 110 246 382 518", "bottom": "index 59 195 331 467", "radius": 2.5}),
    "rdf": ("nanopore", {"a": "name K"}),
    "msd": ("nanopore", {"selection": "name K", "viscosity": 0.31, "temperature": 300.0}),
    "clusters": ("villin", {"cutoff": 0.9}),
    "density": ("nanopore", {}),
    "dielectric": ("water", {"charges": ["name OW = -0.8476", "name HW1 HW2 = 0.4238"]}),
    "geometry": ("villin", {"distances": ["ends=resid 1; resid 35"], "dihedrals": ["phi:resid 1:2"]}),
    "lipid-order": ("membrane", {"leaflets": "z"}),
    "membrane": ("membrane", {}),
    "pca": ("villin", {"components": 3}),
    "sasa": ("villin", {"by": "residue", "points": 100}),
    "velocity-autocorrelation": ("argon", {"selection": "all", "tau_max": 60}),
}


class Plain(himach.Analysis):
    """Counts."""

    cutoff: float = 3.5


class Drawn(Plain):
    """Counts and draws."""

    def plot(self, outcome, axes):
        axes.plot(outcome["x"])
        axes.set(xlabel="time (ps)", ylabel="x")


class Failing(Plain):
    def plot(self, outcome, axes):
        raise KeyError("no such column")


def make_record(*analyses):
    return Record(
        himach="0.1.0",
        analyses=[analysis_record(analysis) for analysis in analyses],
        dataset={"path": "/sim1", "frames": 10, "atoms": 3, "fingerprint": "f"},
        trajectory=["/sim1"],
        topology=None,
        universe={},
        selected=None,
        topology_digest=None,
        command=None,
        directory="/home",
        code_folders=[],
        digests={},
        versions={"python": "3.13.1", "numpy": "2.3.0", "MDAnalysis": "2.9.0", "MPI": None},
        cache="auto",
        frames=10,
        faulty={"damaged": 0, "missing": 0},
        reused={"frames": 0, "reason": ""},
        pairs_directory=None,
        ranks=1,
        nodes=1,
        assignment={"native": 0, "alien": 0, "residue": 10},
        bytes={"cache": 0, "origin": 360, "shuffled": 0},
        seconds={
            **dict.fromkeys(("startup", "zazen", "map", "shuffle", "reduce", "finish", "total", "write", "draw"), 0),
            **{"map": 1, "total": 1.5, "whole": 1.5},
        },
        pairs=10,
        errors=[],
        warnings=[],
        date="2026-01-02",
        times={"start": "2026-01-02T03:04:05+00:00", "end": "2026-01-02T03:04:07+00:00"},
    )
