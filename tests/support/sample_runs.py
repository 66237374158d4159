"""Analyses and a record of a run that was never made, for tests of what a run shows and leaves behind."""

import re

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
    "dipole-orientation": ("water", {"charges": ["name OW = -0.8476", "name HW1 HW2 = 0.4238"], "bins": 10}),
    "geometry": ("villin", {"distances": ["ends=resid 1; resid 35"], "dihedrals": ["phi:resid 1:2"]}),
    "lipid-order": ("membrane", {"leaflets": "z"}),
    "membrane": ("membrane", {}),
    "pca": ("villin", {"components": 3}),
    "sasa": ("villin", {"by": "residue", "points": 100}),
    "velocity-autocorrelation": ("argon", {"selection": "all", "tau_max": 60}),
}

STAYS = "stays(=time_ps,+lasting) residence(stays,ended,+mean_ps)"
STATES = "+H,+B,+E,+G,+I,+T,+S,+P,+coil"
#: Built-in analysis -> tables and their columns: = marks keys, by which rows of members are compared, + their values.
#: Tables in square brackets are in order of time.
BUILTIN_TABLES = {
    "water-residence": f"survival(=tau_ps,+survival) {STAYS}",
    "ion-permeation": (
        "events(ion,direction,entered_ps,left_ps) counts(=direction,+events,+rate_per_ns) filter(+bottom,+top)"
    ),
    "rmsd": "rmsd[time_ps,+rmsd]",
    "rmsf": "rmsf(=atom,+rmsf,+bfactor,chain,resid,resname,name)",
    "radius-of-gyration": "rg[time_ps,+rg,+asphericity,+acylindricity,+anisotropy]",
    "geometry": "geometry[time_ps,+ends,phi SER2]",
    "sasa": "sasa[time_ps,+sasa] by(=residue,+sasa,chain,resid,resname) radii(kind,radius,atoms)",
    "rdf": "rdf(=r,+g) coordination(=r,+n)",
    "msd": "msd(=tau_ps,+msd) diffusion(=from_ps,=to_ps,+d_cm2_s,+yeh_hummer_cm2_s)",
    "contacts": "frequency(=a,=b,+frequency) counts[time_ps,+contacts] lifetimes(=a,=b,+stays,+mean_ps)",
    "native-contacts": "q[time_ps,+q]",
    "pairwise-rmsd": "pairwise[time_ps,+mean]",
    "clusters": "clusters(=cluster,+size,center_frame) membership[time_ps,cluster]",
    "pca": (
        "variance(=component,+variance,share,cosine) projections[time_ps,pc1,pc2,pc3] surface(pc1,pc2,free_energy)"
    ),
    "density": "profile(=position,+density)",
    "dielectric": "dielectric(+epsilon) running[time_ps,epsilon]",
    "dipole-orientation": "orientation(=position,+cosine,+order,molecules)",
    "persistence-length": "end_to_end[time_ps,+end_to_end] bonds(=distance,+cosine) persistence(+length,bond)",
    "velocity-autocorrelation": "vacf(=tau_ps,+c) spectrum(=wavenumber,+density) diffusion(=to_ps,+d_cm2_s)",
    "secondary-structure": f"content[time_ps,{STATES}] residues(=residue,{STATES},chain,resid,resname)",
    "hydrogen-bonds": (
        f"lifetime(=tau_ps,+survival) counts[time_ps,+bonds] occupancy(=donor,=acceptor,+occupancy) {STAYS}"
    ),
    "lipid-order": (
        "order(=lipid,=carbon,=hydrogen,+s_ch) by_leaflet(=lipid,=carbon,=hydrogen,=leaflet,+s_ch) "
        "carbons(=lipid,=chain,=number,=carbon,+s_ch)"
    ),
    "membrane": (
        "area[time_ps,+lower,+upper,+DLPE,+DLPC] thickness[time_ps,+thickness] "
        "flip_flops(lipid,kind,from,to,left_ps,arrived_ps,outcome)"
    ),
}


def builtin_tables(name: str) -> dict[str, tuple[list[str], tuple[bool, list[str], list[str]]]]:
    """Return of each table of a built-in: its columns, and whether it is in order of time, its keys and values."""
    tables = {}
    for table, bracket, text in re.findall(r"(\w+)([\[(])([^\])]*)", BUILTIN_TABLES[name]):
        columns = text.split(",")
        keys, values = ([column[1:] for column in columns if column[0] == mark] for mark in "=+")
        tables[table] = [column.lstrip("=+") for column in columns], (bracket == "[", keys, values)
    return tables


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
