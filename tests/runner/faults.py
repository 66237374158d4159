"""Random faults of user code: whatever it raises, exits by or dies of, on one rank and anywhere, ends all ranks.

``python tests/runner/faults.py [--runs 300] [--seed N] [--hang 20] [--launchers alone,-n,mpiexec,srun]``. Each run is
of one process, of ranks that ``-n`` starts, of mpiexec, or of srun in a SLURM of this machine's. It must end in time,
with the right exit code, one message, and nothing left behind. A rank that hangs and comes back is no fault; beside a
fault of another rank, that one ends the run.
"""

import argparse
import random
import signal
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from runner.trials import MarkedRun, launch, slurm_variables
from support.commands import DATA

LIMIT = 15.0  # seconds from the fault to the end of the run
TERMINATED = 143

SCRIPT = '''
import himach, os, sys, time
from himach.ranks.process_exit import promised_rank

def fault(place):
    """Do what the environment says at this place on that rank, once, or in each process that plots; note when."""
    if os.environ["FAULT_PLACE"] != place:
        return
    rank = promised_rank()
    for name in ("FAULT", "HANG"):
        code, note = os.environ.get(name), os.path.join(os.environ["NOTES"], name)
        due = place == "plot" or not os.path.exists(note)  # where a plot fails, the rank itself draws it again
        if code and rank == int(os.environ[name + "_RANK"]) and due:
            with open(note, "w") as file:
                file.write(str(time.time()))
            exec(compile(code, "fault", "exec"), {"os": os, "sys": sys, "time": time})

fault("import")

class Probe(himach.Analysis):
    def setup(self, universe):
        fault("setup")
    def map(self, frame):
        fault("map")
        for key in range(200):
            yield key, frame.number
        time.sleep(0.02)  # so that every rank gets a frame
    def combine(self, key, series):
        fault("combine")
        return sum(series.values)
    def reduce(self, key, series):
        fault("reduce")
        return sum(series.values)
    def finish(self, results):
        fault("finish")
        return {"sums": {"key": list(results), "sum": list(results.values())}}
    def plot(self, outcome, axes):
        fault("plot")
        axes.plot([1, 2])
'''

EXCEPTIONS = (
    "raise ValueError('words')",
    "raise Exception",
    "raise BaseException('words')",
    "raise KeyboardInterrupt",
    "raise GeneratorExit",
    "raise StopIteration(3)",
    "raise StopAsyncIteration",
    "raise MemoryError",
    "raise RecursionError('deep')",
    "raise BrokenPipeError",
    "import asyncio; raise asyncio.CancelledError",
    "raise BaseExceptionGroup('two', [KeyboardInterrupt(), ValueError()])",
    "raise type('Own', (BaseException,), {})('words')",
    "import click; raise click.exceptions.Exit(0)",
)
EXITS = (
    "sys.exit(0)",
    "sys.exit(3)",
    "sys.exit('words')",
    "exit(0)",
    "os._exit(0)",
    "os._exit(3)",
    "import ctypes; ctypes.CDLL(None)._exit(3)",
)
SIGNALS = tuple(
    f"os.kill(os.getpid(), {number:d}); time.sleep(9)"
    for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL, signal.SIGBUS, signal.SIGFPE, signal.SIGTERM)
)
PLACES = ("import", "setup", "map", "combine", "reduce", "finish", "plot")


@dataclass(frozen=True)
class Case:
    """A fault: what, where, on which rank of how many, by which launcher."""

    kind: str
    code: str
    place: str
    rank: int
    ranks: int
    launcher: str

    def __str__(self) -> str:
        return f"{self.kind} {self.code!r} in {self.place} on rank {self.rank} of {self.ranks}, {self.launcher}"

    @property
    def is_signal(self) -> bool:
        return self.code in SIGNALS or "ctypes" in self.code

    def wrong(self, status: int, stderr: str) -> list[str]:
        """Say what of the end was not right."""
        ends = ("himach: error:", "himach: interrupted", "himach: term")
        messages = [line for line in stderr.splitlines() if line.startswith(ends)]
        if not self.code:
            return [] if status == 0 and not messages else [f"exit code {status}, though it only hung"]
        if self.place == "plot" and not self.is_signal:
            warned = "himach: warning: there is no" in stderr and "Traceback" not in stderr
            return [] if status == 0 and not messages and warned else [f"exit code {status}, or no warning"]
        # The shell and mpiexec tell of those; SIGTERM to a process alone is heard.
        silent = self.is_signal and self.launcher in ("alone", "mpiexec") and self.codes() != {TERMINATED}
        wrong = [] if status in self.codes() else [f"exit code {status}"]
        if len(messages) != (0 if silent else 1):
            wrong.append(f"{len(messages)} messages")
        return [*wrong, *["a traceback"] * ("Traceback" in stderr)]

    def codes(self) -> set[int]:
        if self.launcher == "alone" and self.code == SIGNALS[-1]:
            return {TERMINATED}
        if self.launcher == "alone" and self.code in SIGNALS:
            return {-int(self.code.split()[1].rstrip(");"))}
        if self.launcher == "alone" and self.code == "raise KeyboardInterrupt":
            return {130}
        if self.launcher == "-n" or not self.is_signal:
            # srun tells the signal by which the ranks ended that a fault left waiting
            return {1, 137} if self.launcher == "srun" else {1}
        return {3} if self.launcher == "alone" else set(range(1, 256))


def draw(rng: random.Random, launcher: str) -> Case:
    ranks = 1 if launcher == "alone" else rng.choice([2, 2, 3])
    place = rng.choice(PLACES)
    rank = 0 if place in ("finish", "plot") else rng.randrange(ranks)
    kind = rng.choices(["exception", "exit", "signal", "hang", "hang beside"], [8, 5, 5, 1, 2])[0]
    if kind == "hang beside" and (ranks == 1 or place in ("finish", "plot")):
        kind = "exception"
    code = {"exit": EXITS, "signal": SIGNALS, "hang": ("",)}.get(kind, EXCEPTIONS)
    return Case(kind, rng.choice(code), place, rank, ranks, launcher)


@dataclass
class Outcome:
    """How a run ended: seconds from its fault, and what was wrong."""

    seconds: float
    wrong: list[str]


class Ground:
    """Where runs are made."""

    def __init__(self, directory: Path, slurm: dict[str, str], hang: float) -> None:
        self.directory, self.slurm, self.hang = directory, slurm, hang
        self.script = directory / "probe.py"
        self.script.write_text(SCRIPT)

    def run(self, case: Case) -> Outcome:
        notes = Path(tempfile.mkdtemp(dir=self.directory))
        environ = {"FAULT_PLACE": case.place, "FAULT": case.code, "FAULT_RANK": str(case.rank), "NOTES": str(notes)}
        environ["HIMACH_CACHE"] = str(Path(self.slurm.get("LAB", notes), "local", f"{notes.name}-{{node}}"))
        if case.kind.startswith("hang"):
            hanging = case.rank if case.kind == "hang" else (case.rank + 1) % case.ranks
            environ |= {"HANG": f"time.sleep({self.hang})", "HANG_RANK": str(hanging)}
        words = ["run", self.script, *DATA, "--stop", "30", "--quiet", "--out", notes / "out"]
        run = MarkedRun(launch(case.launcher, case.ranks, *words), notes, **self.slurm, **environ)
        status = run.wait(90 + self.hang)
        ended, text = time.time(), run.stderr()
        wrong = ["it did not end"] if status is None else case.wrong(status, text)
        wrong += [*run.leftovers(10), *self.left(case, notes)]
        if wrong:
            print(f"-- {case}: {', '.join(wrong)}\n{text}", flush=True)
        note = notes / "FAULT"
        seconds = ended - float(note.read_text()) if case.code and note.exists() else 0.0
        if seconds > LIMIT:
            wrong.append(f"it ended {seconds:.1f} s after the fault")
        if case.code and not note.exists():
            wrong.append("the fault did not come")
        return Outcome(seconds, wrong)

    def left(self, case: Case, notes: Path) -> list[str]:
        """Return sentences about files that a run left behind."""
        result = []
        rest = {path.name for path in notes.iterdir()} - {"FAULT", "HANG", "stderr", "out", "local"}
        if rest:
            result.append(f"files left: {sorted(rest)}")
        # What dies in plot() leaves no record; what raises there leaves one that tells of it.
        unsure = case.place == "plot" and case.is_signal
        if not unsure and (notes / "out" / "run.json").exists() != (not case.code or case.place == "plot"):
            result.append("the record is there, or is not")
        return result


def trials(runs: int, seed: int, launchers: list[str], hang: float) -> int:
    """Make the runs, print a table, and return how many were wrong."""
    rng = random.Random(seed)
    rows: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="himach-faults-") as name, slurm_variables(launchers) as slurm:
        ground = Ground(Path(name), slurm, hang)
        for i in range(runs):
            case = draw(rng, launchers[i % len(launchers)])
            rows[case.launcher, case.kind].append(ground.run(case))
    print("launcher   kind          runs  wrong  longest from fault to end")
    for (launcher, kind), ends in sorted(rows.items()):
        wrong, longest = sum(bool(end.wrong) for end in ends), max(end.seconds for end in ends)
        print(f"{launcher:10} {kind:12} {len(ends):5} {wrong:6} {longest:8.1f} s")
    return sum(bool(end.wrong) for ends in rows.values() for end in ends)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--hang", type=float, default=20.0, help="seconds that a rank hangs")
    parser.add_argument("--launchers", default="alone,-n,mpiexec,srun")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    wrong = trials(options.runs, options.seed, options.launchers.split(","), options.hang)
    sys.exit(f"{wrong} of {options.runs} runs ended wrongly" if wrong else 0)


if __name__ == "__main__":
    main()
