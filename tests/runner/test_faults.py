"""Random faults of user code: whatever it raises, exits by or dies of, on one rank and anywhere, ends all ranks.

It ends them in time, with the right exit code, one message, and nothing left behind, also where another rank hangs.
"""

import os
import random
import signal
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest
from runner.trials import MarkedRun, launch
from support.commands import DATA
from support.slurm import cluster_up

LIMIT = 15.0  # seconds from the fault to the end of the run
RUNS = int(os.environ.get("HIMACH_TEST_EXAMPLES", "5"))  # by each launcher
HANG = 3.0  # seconds that a rank hangs beside the fault of another
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
    """A fault: what, where, on which rank of how many, by which launcher, beside a rank that hangs or not."""

    code: str
    place: str
    rank: int
    ranks: int
    launcher: str
    hangs: bool

    @classmethod
    def draw(cls, rng: random.Random, launcher: str) -> "Case":
        ranks = 1 if launcher == "alone" else rng.choice([2, 2, 3])
        place = rng.choice(PLACES)
        of_first = place in ("finish", "plot")
        code = rng.choice(rng.choices([EXCEPTIONS, EXITS, SIGNALS], [2, 1, 1])[0])
        hangs = ranks > 1 and not of_first and rng.random() < 0.2
        return cls(code, place, 0 if of_first else rng.randrange(ranks), ranks, launcher, hangs)

    @property
    def is_signal(self) -> bool:
        return self.code in SIGNALS or "ctypes" in self.code

    def check(self, status: int | None, stderr: str) -> None:
        ends = ("himach: error:", "himach: interrupted", "himach: term")
        messages = [line for line in stderr.splitlines() if line.startswith(ends)]
        assert "Traceback" not in stderr
        if self.place == "plot" and not self.is_signal:
            assert status == 0 and not messages and "himach: warning: there is no" in stderr
            return
        # The shell and mpiexec tell of those; SIGTERM to a process alone is heard.
        silent = self.is_signal and self.launcher in ("alone", "mpiexec") and self.codes() != {TERMINATED}
        assert status in self.codes() and len(messages) == (0 if silent else 1)

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


def check_end(case: Case, script: Path, notes: Path, slurm: dict[str, str]) -> None:
    """Run into the fault; `notes` is an empty folder."""
    environ = {"FAULT_PLACE": case.place, "FAULT": case.code, "FAULT_RANK": str(case.rank), "NOTES": str(notes)}
    environ["HIMACH_CACHE"] = str(Path(slurm.get("LAB", notes), "local", f"{notes.name}-{{node}}"))
    if case.hangs:
        environ |= {"HANG": f"time.sleep({HANG})", "HANG_RANK": str((case.rank + 1) % case.ranks)}
    words = ["run", script, *DATA, "--stop", "30", "--quiet", "--out", notes / "out"]
    run = MarkedRun(launch(case.launcher, case.ranks, *words), notes, **slurm, **environ)
    status = run.wait(90)
    ended = time.time()
    case.check(status, run.stderr())
    assert run.leftovers(10) == []
    assert ended - float((notes / "FAULT").read_text()) < LIMIT
    assert {path.name for path in notes.iterdir()} <= {"FAULT", "HANG", "stderr", "out", "local"}
    # What dies in plot() leaves no record; what raises there leaves one that tells of it.
    unsure = case.place == "plot" and case.is_signal
    assert unsure or (notes / "out" / "run.json").exists() == (case.place == "plot")


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.timeout(60 * RUNS)
@pytest.mark.parametrize("launcher", ["alone", "-n", "mpiexec", "srun"])
def test_random_faults(script, tmp_path, launcher):
    rng = random.Random(launcher + os.environ.get("HIMACH_TEST_SEED", ""))
    with cluster_up(3) if launcher == "srun" else nullcontext({}) as environ:
        slurm = {name: environ[name] for name in ("LAB", "SLURM_CONF", "PORT") if name in environ}
        for number in range(RUNS):
            case, notes = Case.draw(rng, launcher), tmp_path / str(number)
            notes.mkdir()
            print(case)
            check_end(case, script, notes, slurm)
