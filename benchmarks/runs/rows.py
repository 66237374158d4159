"""The benchmarks of ``himach bench peers``: the same question to himach and its peers, about the same frames.

Each function takes a `Contest`, times all sides in turn, compares the answers, and returns a `Row`. `ROWS` names them.
Whole processes come first. Beside what himach takes from map to finish (map, shuffle, reduce and finish) stands what
the peers take for their own computing, all of it, without imports and reading the topology.
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from himach.errors import HimachError

from .. import FOLDER
from ..harness.answers import Agreement, compare, read_column
from ..harness.contest import COMPUTING, Contest, Data, Question, inside
from ..harness.data import FRAME_BYTES
from ..harness.figures import Figure, Row
from ..harness.interleave import Contender, Times
from ..store.repeated import again, ten_analyses, ten_runs

__all__ = ["ROWS"]

CACHED = "himach, cached"
WALL = "himach, whole process"
FIRST = "himach, first run"
FIRST_RUN = "whole first run, from XTC"
SECOND_RUN = "whole second run, cached"
TAU_MAX = 20
#: Where two correct programs differ at all: rounding of float32 positions and boxes, and atoms just at the cutoff.
ROUNDING = "float32 rounding"
CANCELLED = "it subtracts sums of squares in float32, so that small RMSDs have three digits"
SAME = "the same to the last bit"
TIES = "atoms just at the cutoff, in nm there and in Å here"


class Peer(NamedTuple):
    """A peer's script and its arguments, its answer's tolerance and why; bars of its computing and of its process."""

    tool: str
    script: str
    words: Sequence[object]
    tolerance: float
    reason: str = ROUNDING
    computing_bar: float | None = None
    wall_bar: float | None = None


def residence(contest: Contest) -> Row:
    """Water residence at the protein: cached, and the first run from XTC."""
    data = contest.data(1000)
    tau = min(TAU_MAX, data.frames - 1)
    question = Question("water-residence", {"water": "name OW", "solute": "protein", "cutoff": 3.5, "tau_max": tau})
    answer, selected, survived = (contest.place / name for name in ("waterdynamics.txt", "selected.dat", "gmx.txt"))
    sides = [
        contest.himach(FIRST, question, data, "empty"),
        contest.himach(CACHED, question, data, out="residence"),
        contest.himach(WALL, question, data),
        *contest.peer("waterdynamics", "residence.py", *data[:2], tau, answer, warm=False),
        *_gmx_select(contest, data, selected),
    ]
    times = contest.run(sides)
    ours = read_column(contest.place / "residence" / "survival.csv", "survival")
    contest.once(contest.himach(FIRST, question, data, "empty", out="first"))
    first = read_column(contest.place / "first" / "survival.csv", "survival")
    answers = [compare("survival", ours, FIRST, first, 0, SAME)]
    if "waterdynamics" in times:
        answers.append(compare("survival", ours, "waterdynamics", np.loadtxt(answer), 1e-6, ROUNDING))
    if "gmx" in times:
        pairs = zip(times["gmx"]["wall"], times["gmx, one frame"]["wall"], strict=True)
        times["gmx"]["inside"] = [whole - one for whole, one in pairs]
        script = FOLDER / "peers" / "survival.py"
        contest.once(Contender("", [sys.executable, "-P", str(script), str(selected), str(tau), str(survived)]))
        answers.append(compare("survival", ours, "gmx select", np.loadtxt(survived), 1e-4, TIES))
    figures = [
        *_faster(FIRST_RUN, times, FIRST, "wall", "waterdynamics", "wall", 35),
        *_faster(SECOND_RUN, times, WALL, "wall", "waterdynamics", "wall", 50),
        *_faster(f"{SECOND_RUN}, --out with a plot", times, CACHED, "wall", "waterdynamics", "wall", 55),
        *_faster(COMPUTING, times, CACHED, COMPUTING, "waterdynamics", "inside", 220),
        *_faster(FIRST_RUN, times, FIRST, "wall", "gmx", "wall", None),
        *_faster(SECOND_RUN, times, WALL, "wall", "gmx", "wall", None),
        *_faster(COMPUTING, times, CACHED, COMPUTING, "gmx", "inside", None),
    ]
    notes = [
        f"`name OW` within 3.5 Å of the protein, tau to {tau} frames. waterdynamics and gmx select use one core.",
        "gmx select writes the selected atoms of every frame, and nothing more; its own computing is its whole process "
        "less that of one frame.",
        *contest.missing("waterdynamics", "gmx"),
    ]
    return Row(f"Water residence, {data.frames:,} frames", figures, answers, times, notes)


def rmsd(contest: Contest) -> Row:
    """C-alpha RMSD, cached."""
    data = contest.data(10_000)
    words = (*data[:2], contest.ranks)
    peers = [
        Peer("MDAnalysis", "rmsd.py", words, 1e-6, ROUNDING, 15, 8),
        Peer("MDTraj", "rmsd.py", words, 5e-3, CANCELLED, 15, 4),
        Peer("PMDA", "rmsd.py", words, 1e-6),
    ]
    note = f"MDAnalysis and PMDA have {contest.ranks} worker processes; MDTraj decodes on one core, superposes on all."
    question = Question("rmsd", {"selection": "name CA"})
    return _cached(contest, "C-alpha RMSD", data, question, "RMSD", "rmsd.csv", "rmsd", peers, note, unit="Å")


def rmsd_xtc(contest: Contest) -> Row:
    """C-alpha RMSD from XTC, without a cache."""
    data = contest.data(1000)
    question = Question("rmsd", {"selection": "name CA"})
    peers = [Peer("MDAnalysis", "rmsd.py", (*data[:2], contest.ranks), 1e-6)]
    times = contest.run([contest.himach(WALL, question, data, "off"), *_scripts(contest, peers)])
    # Once more for the answers, off the clock: --out also draws a plot, which the peer does not.
    contest.once(contest.himach(WALL, question, data, "off", out="rmsd-xtc"))
    answers = _agree(contest, "RMSD", read_column(contest.place / "rmsd-xtc" / "rmsd.csv", "rmsd"), peers, times, "Å")
    figures = _faster("whole process", times, WALL, "wall", "MDAnalysis", "wall", None)
    notes = [f"MDAnalysis with {contest.ranks} worker processes.", *contest.missing("MDAnalysis")]
    return Row(f"C-alpha RMSD from XTC, no cache, {data.frames:,} frames", figures, answers, times, notes)


def rdf(contest: Contest, title: str, a: str, frames: int, pmda: bool) -> Row:
    """RDF of water oxygens around `a`, to 8 Å."""
    data = contest.data(frames)
    words = (*data[:2], a, "name OW", 8, 80, contest.ranks)
    peers = [Peer("MDAnalysis", "rdf.py", words, 1e-4, computing_bar=15)]
    peers += [Peer("PMDA", "rdf.py", words, 1e-4)] if pmda else []
    note = f"To 8 Å in 80 bins. The peers have {contest.ranks} worker processes."
    question = Question("rdf", {"a": a, "b": "name OW", "r_max": 8, "bins": 80})
    return _cached(contest, title, data, question, "g(r)", "rdf.csv", "g", peers, note, warm=pmda)


def bonds(contest: Contest) -> Row:
    """Lifetimes of the hydrogen bonds that water donates to the protein."""
    data = contest.data(1000)
    tau = min(TAU_MAX, data.frames - 1)
    atoms = {"donors": "name OW", "hydrogens": "name HW1 HW2", "acceptors": "protein and name N* O*"}
    words = (*data[:2], *atoms.values(), tau, contest.ranks)
    peers = [Peer("MDAnalysis", "bonds.py", words, 1e-6, computing_bar=10)]
    note = (
        f"Donor to acceptor 3 Å, angle 150 degrees, tau to {tau} frames. MDAnalysis finds bonds with {contest.ranks} "
        "worker processes, and lifetimes in one."
    )
    title = "Hydrogen bonds from water to the protein"
    question = Question("hydrogen-bonds", {**atoms, "distance": 3.0, "angle": 150, "tau_max": tau})
    return _cached(contest, title, data, question, "survival", "lifetime.csv", "survival", peers, note, warm=False)


def nothing(contest: Contest) -> Row:
    """Read raw frames for a map() that does nothing, beside a bare loop over the same bytes."""
    data = contest.data(4000, ".trr")
    segments = sorted(contest.store(data).rglob("*.seg"))
    nbytes = sum(path.stat().st_size for path in segments)
    raw = data.frames * FRAME_BYTES
    if not raw <= nbytes <= 1.02 * raw:
        raise HimachError(f"{nbytes:,} bytes of segments are not those of {data.frames} raw frames, {raw:,} bytes")
    bare = [sys.executable, "-P", "-m", "himach.benchmarks.harness.disk", str(FRAME_BYTES), str(contest.ranks)]
    files = [str(path) for path in segments]
    plain, with_checksums = "preadv loop", "preadv loop with checksums"
    sides = [
        contest.himach(CACHED, Question(str(FOLDER / "analyses" / "nothing.py"), {}), data, out="nothing"),
        Contender(plain, [*bare, "0", *files], phases=inside),
        Contender(with_checksums, [*bare, "1", *files], phases=inside),
    ]
    times = contest.run(sides)
    figures = [
        Figure("map phase", times[CACHED]["map"], name, times[name]["inside"], "share", bar)
        for name, bar in ((with_checksums, 0.8), (plain, None))
    ]
    notes = [
        f"{nbytes / 1e9:.2f} GB in the page cache, frames off any grid, which are kept raw; as many processes as "
        f"ranks ({contest.ranks}), a call a frame into one buffer. himach checks every block's checksum."
    ]
    return Row(f"A map() that does nothing, raw cached frames, {data.frames:,} frames", figures, (), times, notes)


def start(contest: Contest) -> Row:
    """Ten cached frames as a whole process, and the command's help, beside the imports that such programs have."""
    data = contest.data(10)
    run = contest.himach(WALL, Question("rmsd", {"selection": "name CA"}), data, ranks=1)
    usage = contest.command("--help")
    beside = ["import MDAnalysis, mpi4py.MPI", "import click", "pass"]
    times = contest.run([run, usage, *(Contender(code, [sys.executable, "-P", "-c", code]) for code in beside)])
    figures = [
        Figure(what, times[side]["wall"], f"`{code}`", times[code]["wall"], "times", bar)
        for what, side, code, bar in (
            ("whole process, 1 rank", WALL, beside[0], 1.3),
            (f"`{usage.name}`", usage.name, beside[1], None),
            (f"`{usage.name}`", usage.name, beside[2], None),
        )
    ]
    return Row(f"C-alpha RMSD of {data.frames} cached frames, and the command's help", figures, (), times)


#: The benchmarks by name, in the order of the table.
ROWS: dict[str, Callable[[Contest], Row]] = {
    "residence": residence,
    "rmsd": rmsd,
    "rmsd-again": again,
    "ten-runs": ten_runs,
    "ten-analyses": ten_analyses,
    "rmsd-xtc": rmsd_xtc,
    "rdf-ions": partial(rdf, title="RDF of water oxygens around ions", a="name NA", frames=1000, pmda=True),
    "rdf-water": partial(rdf, title="RDF of all water oxygens", a="name OW", frames=60, pmda=False),
    "bonds": bonds,
    "nothing": nothing,
    "start": start,
}


def _cached(
    contest: Contest,
    title: str,
    data: Data,
    question: Question,
    what: str,
    table: str,
    column: str,
    peers: Sequence[Peer],
    note: str,
    *,
    unit: str = "",
    warm: bool = True,
) -> Row:
    """Ask a question about cached frames, by whole process and by computing; compare a column of its table."""
    sides = [contest.himach(CACHED, question, data, out=question.analysis), contest.himach(WALL, question, data)]
    times = contest.run([*sides, *_scripts(contest, peers, warm)])
    ours = read_column(contest.place / question.analysis / table, column)
    figures = [
        *(each for p in peers for each in _faster(SECOND_RUN, times, WALL, "wall", p.tool, "wall", p.wall_bar)),
        *(
            each
            for p in peers
            for each in _faster(COMPUTING, times, CACHED, COMPUTING, p.tool, "inside", p.computing_bar)
        ),
    ]
    answers = _agree(contest, what, ours, peers, times, unit)
    notes = [note, *contest.missing(*(peer.tool for peer in peers))]
    return Row(f"{title}, cached, {data.frames:,} frames", figures, answers, times, notes)


def _scripts(contest: Contest, peers: Sequence[Peer], warm: bool = True) -> list[Contender]:
    """Return the peers that are here; each leaves its answer in a file of its name."""
    return [
        side
        for peer in peers
        for side in contest.peer(peer.tool, peer.script, *peer.words, contest.place / peer.tool, warm=warm)
    ]


def _agree(
    contest: Contest, what: str, ours: np.ndarray, peers: Sequence[Peer], times: Times, unit: str
) -> list[Agreement]:
    """Compare himach's answer with those that the peers have left."""
    return [
        compare(what, ours, peer.tool, np.loadtxt(contest.place / peer.tool), peer.tolerance, peer.reason, unit)
        for peer in peers
        if peer.tool in times
    ]


def _faster(what: str, times: Times, side: str, phase: str, peer: str, by: str, bar: float | None) -> list[Figure]:
    """Return the figure of a phase of himach beside a phase of a peer, if it was run."""
    if peer not in times:
        return []
    named = {"inside": "its own computing", "wall": "whole process"}[by]
    return [Figure(what, times[side][phase], f"{peer}, {named}", times[peer][by], "faster", bar)]


def _gmx_select(contest: Contest, data: Data, selected: Path) -> list[Contender]:
    """Return gmx select of the same atoms, over all frames and over one."""
    gmx = contest.tools["gmx"].command
    if gmx is None:
        return []
    command = [gmx, "-quiet", "-nobackup", "select", "-s", str(data.topology), "-f", str(data.trajectory)]
    command += ["-select", 'name OW and within 0.35 of group "Protein"', "-oi"]
    one = contest.place / "one.dat"
    return [Contender("gmx", [*command, str(selected)]), Contender("gmx, one frame", [*command, str(one), "-e", "0"])]
