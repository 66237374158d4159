"""The benchmarks of ``himach bench peers``: the same question to himach and its peers, about the same frames.

Each function takes a `Contest`, times all sides in turn, compares the answers, and returns a `Row`. `ROWS` names them.
The peers' side is the time that they take inside, without imports and reading the topology, where himach's map phase is
meant, and the whole process where himach's whole process is meant.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

import himach.benchmarks
from himach.bench.answers import agree, read_column
from himach.bench.contest import Contest, Data, Question
from himach.bench.figures import Figure, Row
from himach.bench.whole import Contender, Times
from himach.errors import HimachError

__all__ = ["ROWS"]

MAP = "himach, cached"
WALL = "himach, whole process"
FIRST = "himach, first run"
TAU_MAX = 20
#: Where two correct programs differ at all: rounding of float32 positions and boxes, and atoms just at the cutoff.
ROUNDING = "float32 rounding"
CANCELLED = "it subtracts sums of squares in float32, so that small RMSDs have three digits"
SAME = "the same to the last bit"
TIES = "atoms just at the cutoff, in nm there and in Å here"


def residence(contest: Contest) -> Row:
    """Water residence at the protein: cached, and the first run from XTC."""
    data = contest.data(1000)
    tau = min(TAU_MAX, data.frames - 1)
    question = Question("water-residence", {"water": "name OW", "solute": "protein", "cutoff": 3.5, "tau_max": tau})
    fresh, answer, selected = (contest.place / name for name in ("fresh", "waterdynamics.txt", "selected.dat"))
    empty = partial(shutil.rmtree, fresh, ignore_errors=True)
    sides = [
        contest.himach(FIRST, question, data, fresh, before=empty),
        contest.himach(MAP, question, data, contest.store(data), out="residence"),
        *contest.peer("waterdynamics", "residence_waterdynamics.py", *data[:2], tau, answer, warm=False),
        *_gmx_select(contest, data, selected),
    ]
    times = contest.run(sides)
    _less_start(times, "gmx", "gmx, one frame")
    ours = read_column(contest.place / "residence" / "survival.csv", "survival")
    contest.once(contest.himach(FIRST, question, data, fresh, out="first", before=empty))
    answers = [
        agree("survival", ours, FIRST, read_column(contest.place / "first" / "survival.csv", "survival"), 0, SAME)
    ]
    if "waterdynamics" in times:
        answers.append(agree("survival", ours, "waterdynamics", np.loadtxt(answer), 1e-6, ROUNDING))
    if "gmx" in times:
        contest.once(_gmx_survival(selected, tau, contest.place / "gmx.txt"))
        answers.append(agree("survival", ours, "gmx select", np.loadtxt(contest.place / "gmx.txt"), 1e-4, TIES))
    figures = [
        *_faster("map phase", times, MAP, "map", {"waterdynamics": "inside"}, 150),
        *_faster("map phase", times, MAP, "map", {"gmx": "inside"}, 15),
        *_faster("whole first run from XTC", times, FIRST, "wall", {"waterdynamics": "wall"}, 30),
        *_faster("whole first run from XTC", times, FIRST, "wall", {"gmx": "wall"}, None),
    ]
    notes = [
        f"`name OW` within 3.5 Å of the protein, tau to {tau} frames. waterdynamics and gmx select use one core.",
        "gmx select writes the selected atoms of every frame, and nothing more; its own computing is its whole process "
        "less that of one frame.",
        *contest.missing("waterdynamics", "gmx"),
    ]
    return Row(f"Water residence, {data.frames:,} frames", figures, answers, times, notes)


def rmsd(contest: Contest) -> Row:
    """C-alpha RMSD from the cache."""
    data = contest.data(10_000)
    question = Question("rmsd", {"selection": "name CA"})
    store = contest.store(data)
    scripts = {
        "MDAnalysis": ("rmsd_mdanalysis.py", *data[:2], contest.ranks),
        "MDTraj": ("rmsd_mdtraj.py", *data[:2]),
        "PMDA": ("rmsd_pmda.py", *data[:2], contest.ranks),
    }
    sides = [
        contest.himach(MAP, question, data, store, out="rmsd"),
        contest.himach(WALL, question, data, store),
        *_peers(contest, scripts),
    ]
    times = contest.run(sides)
    ours = read_column(contest.place / "rmsd" / "rmsd.csv", "rmsd")
    peers = [tool for tool in scripts if tool in times]
    allowed = {"MDAnalysis": (1e-6, ROUNDING), "MDTraj": (5e-3, CANCELLED), "PMDA": (1e-6, ROUNDING)}
    answers = [agree("RMSD", ours, peer, np.loadtxt(contest.place / peer), *allowed[peer], "Å") for peer in peers]
    bars = {"MDAnalysis": (15, 4), "MDTraj": (15, 4), "PMDA": (None, None)}
    figures = [
        *(each for peer in peers for each in _faster("map phase", times, MAP, "map", {peer: "inside"}, bars[peer][0])),
        *(
            each
            for peer in peers
            for each in _faster("whole process", times, WALL, "wall", {peer: "wall"}, bars[peer][1])
        ),
    ]
    notes = [
        f"MDAnalysis and PMDA with {contest.ranks} worker processes; MDTraj decodes on one core and superposes on all.",
        *contest.missing(*scripts),
    ]
    return Row(f"C-alpha RMSD, cached, {data.frames:,} frames", figures, answers, times, notes)


def rdf_ions(contest: Contest) -> Row:
    """RDF of water oxygens around ions."""
    return _rdf(contest, "RDF of water oxygens around ions", "name NA", 1000, pmda=True)


def rdf_water(contest: Contest) -> Row:
    """RDF of water oxygens around water oxygens."""
    return _rdf(contest, "RDF of all water oxygens", "name OW", 60, pmda=False)


def _rdf(contest: Contest, title: str, a: str, frames: int, pmda: bool) -> Row:
    """RDF of water oxygens around `a`, to 8 Å."""
    data = contest.data(frames)
    question = Question("rdf", {"a": a, "b": "name OW", "r_max": 8, "bins": 80})
    words = (*data[:2], a, "name OW", 8, 80, contest.ranks)
    scripts = {"MDAnalysis": ("rdf_mdanalysis.py", *words)} | ({"PMDA": ("rdf_pmda.py", *words)} if pmda else {})
    store = contest.store(data)
    sides = [
        contest.himach(MAP, question, data, store, out="rdf"),
        contest.himach(WALL, question, data, store),
        *_peers(contest, scripts, warm=pmda),
    ]
    times = contest.run(sides)
    ours = read_column(contest.place / "rdf" / "rdf.csv", "g")
    peers = [tool for tool in scripts if tool in times]
    answers = [agree("g(r)", ours, peer, np.loadtxt(contest.place / peer), 1e-4, ROUNDING) for peer in peers]
    bars = {"MDAnalysis": 15, "PMDA": None}
    figures = [
        *(each for peer in peers for each in _faster("map phase", times, MAP, "map", {peer: "inside"}, bars[peer])),
        *(each for peer in peers for each in _faster("whole process", times, WALL, "wall", {peer: "wall"}, None)),
    ]
    notes = [f"To 8 Å in 80 bins. The peers have {contest.ranks} worker processes.", *contest.missing(*scripts)]
    return Row(f"{title}, cached, {data.frames:,} frames", figures, answers, times, notes)


def bonds(contest: Contest) -> Row:
    """Lifetimes of the hydrogen bonds that water donates to the protein."""
    data = contest.data(1000)
    tau = min(TAU_MAX, data.frames - 1)
    atoms = {"donors": "name OW", "hydrogens": "name HW1 HW2", "acceptors": "protein and name N* O*"}
    question = Question("hydrogen-bonds", {**atoms, "distance": 3.0, "angle": 150, "tau_max": tau})
    store = contest.store(data)
    words = ("bonds_mdanalysis.py", *data[:2], *atoms.values(), tau, contest.ranks)
    sides = [
        contest.himach(MAP, question, data, store, out="bonds"),
        contest.himach(WALL, question, data, store),
        *_peers(contest, {"MDAnalysis": words}, warm=False),
    ]
    times = contest.run(sides)
    answers, figures = [], []
    if "MDAnalysis" in times:
        ours = read_column(contest.place / "bonds" / "lifetime.csv", "survival")
        answers = [agree("survival", ours, "MDAnalysis", np.loadtxt(contest.place / "MDAnalysis"), 1e-6, ROUNDING)]
        figures += _faster("map phase", times, MAP, "map", {"MDAnalysis": "inside"}, 10)
        figures += _faster("whole process", times, WALL, "wall", {"MDAnalysis": "wall"}, None)
    notes = [
        f"Donor to acceptor 3 Å, angle 150 degrees, tau to {tau} frames. MDAnalysis finds bonds with {contest.ranks} "
        "worker processes, and lifetimes in one.",
        *contest.missing("MDAnalysis"),
    ]
    return Row(
        f"Hydrogen bonds from water to the protein, cached, {data.frames:,} frames", figures, answers, times, notes
    )


def nothing(contest: Contest) -> Row:
    """Read raw frames for a map() that does nothing, beside a bare loop over the same bytes."""
    data = contest.data(4000, ".trr")
    store = contest.store(data)
    segments = sorted(store.rglob("*.seg"))
    request = 12 * 47_681
    nbytes = sum(path.stat().st_size for path in segments)
    if not data.frames * request <= nbytes <= 1.02 * data.frames * request:
        raise HimachError(
            f"{nbytes:,} bytes of segments are not those of {data.frames} raw frames of {request:,} bytes"
        )
    bare = [sys.executable, "-P", "-m", "himach.bench.bare", "--request", str(request)]
    bare += ["--processes", str(contest.ranks)]
    files = [str(path) for path in segments]
    script = himach.benchmarks.FOLDER / "analyses" / "nothing.py"
    plain, checked = "preadv loop", "preadv loop with checksums"
    sides = [
        contest.himach(MAP, Question(str(script), {}), data, store, out="nothing"),
        Contender(plain, [*bare, *files], phases=_seconds),
        Contender(checked, [*bare, "--checksums", *files], phases=_seconds),
    ]
    times = contest.run(sides)
    figures = [
        Figure("map phase", times[MAP]["map"], name, times[name]["inside"], "share", bar)
        for name, bar in ((checked, 0.8), (plain, None))
    ]
    notes = [
        f"{nbytes / 1e9:.2f} GB in the page cache, frames off any grid, which are kept raw; as many processes as "
        f"ranks ({contest.ranks}), a call a frame into one buffer. himach checks every block's checksum."
    ]
    return Row(f"A map() that does nothing, raw cached frames, {data.frames:,} frames", figures, (), times, notes)


def start(contest: Contest) -> Row:
    """Ten cached frames as a whole process, beside the imports that any such program has."""
    data = contest.data(10)
    store = contest.store(data)
    imports = "import MDAnalysis, mpi4py.MPI"
    sides = [
        contest.himach(WALL, Question("rmsd", {"selection": "name CA"}), data, store, ranks=1),
        Contender(imports, [sys.executable, "-P", "-c", imports]),
    ]
    times = contest.run(sides)
    figures = [
        Figure("whole process, 1 rank", times[WALL]["wall"], f"`{imports}`", times[imports]["wall"], "times", 1.3)
    ]
    return Row(f"C-alpha RMSD of {data.frames} cached frames", figures, (), times)


#: The benchmarks by name, in the order of the table.
ROWS: dict[str, Callable[[Contest], Row]] = {
    "residence": residence,
    "rmsd": rmsd,
    "rdf-ions": rdf_ions,
    "rdf-water": rdf_water,
    "bonds": bonds,
    "nothing": nothing,
    "start": start,
}


def _peers(contest: Contest, scripts: Mapping[str, Sequence[object]], warm: bool = True) -> list[Contender]:
    """Return the peers that are here; each leaves its answer in a file of its name."""
    return [
        side
        for tool, (script, *words) in scripts.items()
        for side in contest.peer(tool, str(script), *words, contest.place / tool, warm=warm)
    ]


def _faster(what: str, times: Times, side: str, phase: str, peers: dict[str, str], bar: float | None) -> list[Figure]:
    """Return the figure of a phase of himach beside a phase of each peer that was run."""
    named = {"inside": "its own computing", "wall": "whole process"}
    return [
        Figure(what, times[side][phase], f"{peer}, {named[inside]}", times[peer][inside], "faster", bar)
        for peer, inside in peers.items()
        if peer in times
    ]


def _gmx_select(contest: Contest, data: Data, selected: Path) -> list[Contender]:
    """Return gmx select of the same atoms, over all frames and over one."""
    gmx = contest.tools["gmx"].command
    if gmx is None:
        return []
    command = [gmx, "-quiet", "-nobackup", "select", "-s", str(data.topology), "-f", str(data.trajectory)]
    command += ["-select", 'name OW and within 0.35 of group "Protein"', "-oi"]
    one = contest.place / "one.dat"
    return [Contender("gmx", [*command, str(selected)]), Contender("gmx, one frame", [*command, str(one), "-e", "0"])]


def _gmx_survival(selected: Path, tau: int, answer: Path) -> Contender:
    """Return the script that makes a survival probability of what gmx select wrote."""
    script = himach.benchmarks.FOLDER / "peers" / "residence_gmx.py"
    return Contender("gmx's answer", [sys.executable, "-P", str(script), str(selected), str(tau), str(answer)])


def _less_start(times: Times, whole: str, one: str) -> None:
    """Add to a contender the phase ``inside``: its wall time less that of another in the same turn."""
    if whole in times:
        pairs = zip(times[whole]["wall"], times[one]["wall"], strict=True)
        times[whole]["inside"] = [all_frames - first for all_frames, first in pairs]


def _seconds(output: str) -> dict[str, float]:
    """Return what the bare loop prints."""
    return {"inside": float(output)}
