"""Runs that keep their pairs, killed at random moments and begun again: the outcome is that of a run in one go.

``python tests/checkpoint/kills.py [--runs 300] [--seed N] [--launchers alone,-n,mpiexec,srun]``. Each case is an
analysis (the six built-ins, chains with combine(), several in one pass) that is killed by SIGKILL once or twice, on
one rank, on all, or by its launcher, its parent or its SLURM node, at any time or while it commits, takes over, or
cleans up, and then run to its end on any number of ranks. No frame is mapped again that was kept, none is lost that
was mapped long before the kill, and nothing is left but what is kept.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from checkpoint.sample import SCRIPT as ANALYSES
from runner.trials import MarkedRun, launch, print_table, slurm_variables
from support.commands import processes_with, same_files, wait_until
from support.ranks import clean_environment
from support.slurm import CLUSTER

from himach.checkpoint.directory import FingerprintVersion, PairsDirectory
from himach.checkpoint.part import BadPartError, open_part
from himach.examples import sample

#: Seconds between two commits, and that a frame may have been mapped before a kill and not be kept: the commit under
#: way is lost, too, and the machine may be busy.
EVERY, LOST = 0.1, 2.0
#: Seconds of mapping in a run of one process.
MAPPING = 1.5

#: Analyses that note each frame in a file of KILLS_LOG, and take KILLS_SLEEP seconds for it.
SCRIPT = (
    ANALYSES
    + '''
import os, time
from himach import examples

def note(analysis, frame):
    """Note that a frame was mapped, and take some time for it."""
    with open(os.path.join(os.environ["KILLS_LOG"], f"{type(analysis).__name__}-{os.getpid()}"), "a") as log:
        log.write(f"{frame.number} {time.time()}\\n")
    time.sleep(float(os.environ["KILLS_SLEEP"]))

class Slow:
    def map(self, frame):
        yield from super().map(frame)
        note(self, frame)

class Rmsd(Slow, examples.load("rmsd")):
    selection: str = "name CA"

class Msd(Slow, examples.load("msd")):
    selection: str = "name K CL"
    tau_max: int = 20

class Rdf(Slow, examples.load("rdf")):
    a: str = "name K"

class WaterResidence(Slow, examples.load("water-residence")):
    solute: str = "name K"
    tau_max: int = 10

class HydrogenBonds(Slow, examples.load("hydrogen-bonds")):
    pass

class IonPermeation(Slow, examples.load("ion-permeation")):
    top: str = "index 110 246 382 518"
    bottom: str = "index 59 195 331 467"
    radius: float | None = 2.5

class Objects(himach.Analysis):
    def map(self, frame):
        yield frame.number % 3, {"time": frame.time}
        yield ("text", frame.number % 2), [frame.number, None]
        note(self, frame)
    def reduce(self, key, series):
        return repr(series.values)

class Chain(Slow, Chain):
    pass
'''
)

#: Analyses, the trajectory, its frames, and words that choose some of them.
WORKLOADS: dict[str, tuple[tuple[str, ...], str, range, tuple[str, ...]]] = {
    "rmsd": (("Rmsd",), "villin", range(0, 250, 2), ("--step", "2")),
    "msd": (("Msd",), "nanopore", range(60), ("--stop", "60")),
    "rdf": (("Rdf",), "nanopore", range(40), ("--stop", "40")),
    "water-residence": (("WaterResidence",), "nanopore", range(60), ("--stop", "60")),
    "hydrogen-bonds": (("HydrogenBonds",), "villin", range(250), ()),
    "ion-permeation": (("IonPermeation",), "kcsa", range(101), ()),
    "chain": (("Chain",), "villin", range(240, 10, -3), ("--start", "240", "--stop", "10", "--step", "-3")),
    "several": (("Chain", "Objects", "Rmsd"), "villin", range(100), ("--stop", "100")),
}

#: What forked ranks and the process that forks them are called by.
FORKED = b"himach.ranks.launch.rank_main"
MOMENTS = ("any", "any", "commit", "begin", "end")
VICTIMS = {
    "alone": ("all",),
    "-n": ("one", "all", "parent", "launcher"),
    "mpiexec": ("one", "all", "launcher"),
    "srun": ("one", "all", "node", "srun"),
}


def read_proc(process: int, file: str) -> bytes:
    return Path(f"/proc/{process}/{file}").read_bytes()


def is_forked(process: int) -> bool:
    return FORKED in read_proc(process, "cmdline")


def parent_of(process: int) -> int:
    """Return the process that started another."""
    return int(read_proc(process, "stat").rsplit(b")", 1)[1].split()[1])


@dataclass(frozen=True)
class Kill:
    """A run that is killed: by which launcher it runs, on how many ranks, and what is killed when."""

    launcher: str
    ranks: int
    victim: str
    moment: str

    def __str__(self) -> str:
        return f"{self.victim} of {self.ranks} ({self.launcher}) at {self.moment}"


@dataclass(frozen=True)
class Case:
    """What is run, what is killed, and how the last run is made."""

    workload: str
    kills: tuple[Kill, ...]
    last: tuple[str, int]
    asked: bool
    at_once: bool

    def __str__(self) -> str:
        where = "--pairs" if self.asked else "--out"
        kills = ", then ".join(map(str, self.kills))
        return f"{self.workload}, {where}: {kills}; then {self.last[0]} {self.last[1]}{', at once' * self.at_once}"


def draw(rng: random.Random, launcher: str) -> Case:
    kills = []
    for _ in range(rng.choice([1, 1, 2])):
        kills.append(Kill(launcher, _ranks(rng, launcher), rng.choice(VICTIMS[launcher]), rng.choice(MOMENTS)))
        launcher = rng.choice(["alone", "-n", "-n", "mpiexec"])
    workload = rng.choice(list(WORKLOADS))
    return Case(workload, tuple(kills), (launcher, _ranks(rng, launcher)), rng.random() < 0.7, rng.random() < 0.5)


def _ranks(rng: random.Random, launcher: str) -> int:
    return 1 if launcher == "alone" else rng.choice([2, 2, 3])


@dataclass
class Outcome:
    """What came of a case: what was wrong, and figures."""

    wrong: list[str] = field(default_factory=list)
    killed: int = 0  # runs that had not ended before
    reused: int = 0
    lost: float = 0.0  # longest time before a kill that a frame was mapped and is not kept
    refused: int = 0


class Ground:
    """Where cases are run."""

    def __init__(self, directory: Path, slurm: dict[str, str], rng: random.Random) -> None:
        self.directory, self.slurm, self.rng = directory, slurm, rng
        self.script = directory / "slow.py"
        self.script.write_text(SCRIPT)

    def reference(self, workload: str) -> Path:
        out = self.directory / f"reference-{workload}"
        if not out.exists():
            run = Run(self, workload, "alone", 1, out, None)
            if run.wait(120) != 0:
                raise AssertionError(run.stderr())
        return out

    def trial(self, case: Case) -> Outcome:
        outcome = Outcome()
        place = self.directory / uuid.uuid4().hex
        place.mkdir()
        out, pairs = place / "out", place / "pairs" if case.asked else None
        kept: dict[str, set[int]] = defaultdict(set)
        for kill in case.kills:
            run = self.started(outcome, case, kill.launcher, kill.ranks, out, pairs)
            outcome.killed += self.kill(run, kill)
            mapped = run.mapped()
            outcome.wrong += _again(mapped, kept, f"the run of {kill}")
            if not case.at_once:
                outcome.wrong += run.leftovers()
                kept = covered(run.where)
                outcome.lost = max([outcome.lost, *_lost(mapped, kept)])
            run.clean()
        run = self.started(outcome, case, *case.last, out, pairs)
        status = run.wait(120)
        text = run.stderr()
        if status != 0:
            outcome.wrong.append(f"the last run ended with {status}: {text}")
        else:
            outcome.wrong += _again(run.mapped(), kept, "the last run")
            outcome.wrong += self.check(case, run, outcome)
        outcome.wrong += run.leftovers()
        outcome.wrong += left(run, case)
        if outcome.lost > EVERY + LOST:
            outcome.wrong.append(f"frames are lost that were mapped {outcome.lost:.1f} s before")
        if outcome.wrong:
            print(f"-- {case}: {'; '.join(outcome.wrong)}\n{text}", flush=True)
        return outcome

    def started(self, outcome: Outcome, case: Case, launcher: str, ranks: int, out: Path, pairs: Path | None) -> Run:
        """Start a run, again and again while what is left of the one before refuses it."""
        while True:
            run = Run(self, case.workload, launcher, ranks, out, pairs)
            if not case.at_once or not wait_until(lambda run=run: run.refused() or run.began(), 60) or run.began():
                return run
            outcome.refused += 1
            run.wait(120)
            if outcome.refused > 100:
                outcome.wrong.append(f"runs are refused for ever: {run.stderr()}")
                return run

    def kill(self, run: Run, kill: Kill) -> bool:
        rng = self.rng
        times = rng.randrange(1, 8)
        observed: set[str] = set()

        def committing() -> bool:
            with contextlib.suppress(OSError):
                observed.update(path.name for path in run.where.glob("*/*/.*.tmp"))
            return len(observed) >= times

        moments: dict[str, tuple[Callable[[], bool], float]] = {
            "any": (run.began, MAPPING),
            "commit": (committing, 0.001),
            "begin": (run.claimed, 0.4),
            "end": (run.all_mapped, 0.6),
        }
        until, after = moments[kill.moment]
        run.wait_until(until)
        time.sleep(rng.random() * after)
        alive = run.process.poll() is None
        run.kill(kill.victim, rng)
        return alive

    def check(self, case: Case, run: Run, outcome: Outcome) -> list[str]:
        try:
            same_files(self.reference(case.workload), run.out)
        except AssertionError as error:
            return [f"another outcome: {error}"]
        record = json.loads((run.out / "run.json").read_text())
        frames = set(WORKLOADS[case.workload][2])
        outcome.reused = record["reused"]["frames"]
        fresh = set().union(*map(set, run.mapped().values()), set())
        if record["frames"] != len(frames) or outcome.reused + len(fresh) != len(frames):
            return [f"{outcome.reused} frames reused and {len(fresh)} mapped, of {len(frames)}"]
        return []


class Run(MarkedRun):
    """A run, which writes what it maps to files of its own."""

    def __init__(self, ground: Ground, workload: str, launcher: str, ranks: int, out: Path, pairs: Path | None) -> None:
        names, data, self.frames, selection = WORKLOADS[workload]
        self.out = out
        self.where = out / ".himach" / "pairs" if pairs is None else pairs
        self.notes = ground.directory / uuid.uuid4().hex
        (self.notes / "log").mkdir(parents=True)
        (self.notes / "tmp").mkdir()
        self.ground, self.ranks, self.names = ground, ranks, names
        trajectory, topology = sample(data)
        words = ["run", *(f"{ground.script}:{name}" for name in names), *selection, "--cache", "off", "--quiet"]
        words += ["-t", trajectory, "-s", topology, "--out", out, *([] if pairs is None else ["--pairs", pairs])]
        command = launch(launcher, ranks, *words, srun=["--kill-on-bad-exit=1"])
        sleep = str(MAPPING / len(self.frames) / len(names))
        variables = {"KILLS_LOG": str(self.notes / "log"), "KILLS_SLEEP": sleep, "HIMACH_KEEP_EVERY": str(EVERY)}
        super().__init__(command, self.notes, **ground.slurm, **variables, TMPDIR=str(self.notes / "tmp"))

    def wait_until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + 60
        while self.process.poll() is None and not condition() and time.monotonic() < end:
            time.sleep(0.002)

    def mapped(self) -> dict[str, dict[int, float]]:
        """Return for each analysis the frames that were mapped, and when."""
        result: dict[str, dict[int, float]] = {name: {} for name in self.names}
        for path in (self.notes / "log").iterdir():
            for line in path.read_text().splitlines():
                with contextlib.suppress(ValueError):  # half a line, of one that was killed
                    number, when = line.split()
                    result[path.name.partition("-")[0]][int(number)] = float(when)
        return result

    def began(self) -> bool:
        """Tell whether it maps, or maps nothing any more."""
        return any((self.notes / "log").iterdir()) or (self.process.poll() is not None and not self.refused())

    def claimed(self) -> bool:
        """Tell whether it has its directory."""
        return (self.where / ".lock").exists() or (self.out / ".himach" / "lock").exists()

    def all_mapped(self) -> bool:
        """Tell whether half of its frames are mapped by it, or the last part of them."""
        count = sum(path.read_text().count("\n") for path in (self.notes / "log").iterdir())
        last = any(str(self.frames[-1]) in path.read_text() for path in (self.notes / "log").iterdir())
        return last or count >= len(self.frames) * len(self.names)

    def refused(self) -> bool:
        return self.process.poll() is not None and "another run" in self.stderr()

    def kill(self, victim: str, rng: random.Random) -> None:
        ranks = self.rank_processes()
        if victim == "node":
            node = f"node{rng.randrange(self.ranks) + 1}"
            environ = clean_environment(**self.ground.slurm)  # daemons are to be none of the run's
            subprocess.run([CLUSTER, "kill", node], env=environ, check=False, timeout=30, capture_output=True)
            self.leftovers()  # SLURM notices after a while
            subprocess.run([CLUSTER, "revive", node], env=environ, check=False, timeout=30, capture_output=True)
            return
        named = {"launcher": self.launchers(), "one": [rng.choice(ranks)] if ranks else [], "all": ranks}
        for process in named.get(victim, []) or [self.process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def processes(self, matches: Callable[[int], bool]) -> list[int]:
        """Return its living processes for which `matches` holds."""
        result = []
        for process in processes_with(self.mark):
            with contextlib.suppress(OSError):
                if matches(process):
                    result.append(process)
        return result

    def rank_processes(self) -> list[int]:
        """Return the processes that are ranks; the only one of a run of one process is itself."""
        return self.processes(
            lambda process: (
                (is_forked(process) and is_forked(parent_of(process)))
                or (b"\0PMI_RANK=" in read_proc(process, "environ") and b"python" in read_proc(process, "comm"))
            )
        )

    def launchers(self) -> list[int]:
        """Return mpiexec's process, or the one that forked the ranks."""
        return self.processes(
            lambda process: (
                b"mpiexec" in read_proc(process, "comm") or (is_forked(process) and not is_forked(parent_of(process)))
            )
        )

    def clean(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=30)


def covered(where: Path) -> dict[str, set[int]]:
    """Return for each analysis the frames that are kept."""
    result: dict[str, set[int]] = defaultdict(set)
    directory = PairsDirectory(where)
    for label in directory.labels() if where.is_dir() else []:
        for generation in directory.generations(label):
            for part in _parts(generation):
                result[label].update(part)
    return result


def _parts(generation: FingerprintVersion) -> Iterator[set[int]]:
    for path in generation.parts():
        with contextlib.suppress(BadPartError):
            yield set(open_part(path, trusted=True, identity=generation.key).covered)


def _again(mapped: dict[str, dict[int, float]], kept: dict[str, set[int]], who: str) -> list[str]:
    """Say which frames were mapped though they were kept."""
    labels = {label.replace("-", "").lower(): frames for label, frames in kept.items()}
    twice = {name: len(labels.get(name.lower(), set()) & set(result)) for name, result in mapped.items()}
    return [f"{who} mapped {count} frames of {name} again" for name, count in twice.items() if count]


def _lost(mapped: dict[str, dict[int, float]], kept: dict[str, set[int]]) -> list[float]:
    """Return how long before the last frame those were mapped that are not kept."""
    labels = {label.replace("-", "").lower(): frames for label, frames in kept.items()}
    times = [when for result in mapped.values() for when in result.values()]
    return [
        max(times) - when
        for name, result in mapped.items()
        for number, when in result.items()
        if number not in labels.get(name.lower(), set())
    ]


def left(run: Run, case: Case) -> list[str]:
    """Say what the last run left that it should not."""
    names = [path.relative_to(run.out.parent) for path in run.out.parent.rglob("*")]
    strange = [str(name) for name in names if name.name.endswith(".tmp") or name.name in (".lock", ".himach")]
    result = [f"files left: {strange}"] if strange else []
    if case.asked and not any(name.suffix == ".pairs" for name in names):
        result.append("nothing is kept")
    if any((run.notes / "tmp").iterdir()):
        result.append(f"temporary files left: {[path.name for path in (run.notes / 'tmp').iterdir()]}")
    return result


def trials(runs: int, seed: int, launchers: list[str]) -> int:
    """Run so many cases, print a table, and return how many were wrong."""
    rng = random.Random(seed)
    rows: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="himach-kills-") as name, slurm_variables(launchers) as slurm:
        ground = Ground(Path(name), slurm, rng)
        for i in range(runs):
            case = draw(rng, launchers[i % len(launchers)])
            outcome = ground.trial(case)
            rows[case.kills[0].launcher, case.kills[0].victim].append(outcome)
            print(f"{i + 1:4} {'WRONG' if outcome.wrong else 'right'} reused {outcome.reused:3} {case}", flush=True)

    def figures(outcomes: list[Outcome]) -> str:
        killed, refused = (sum(getattr(outcome, field) for outcome in outcomes) for field in ("killed", "refused"))
        return f"{killed:6} {refused:8} {max(outcome.lost for outcome in outcomes):11.2f} s"

    return print_table(f"{'kills':>6} {'refused':>8} {'lost at most':>13}", rows, figures)


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what has been started is ended
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--launchers", default="alone,-n,-n,mpiexec,srun")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    wrong = trials(options.runs, options.seed, options.launchers.split(","))
    sys.exit(f"{wrong} of {options.runs} cases were wrong" if wrong else 0)


if __name__ == "__main__":
    main()
