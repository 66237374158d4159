"""Runs of himach by any launcher, with a mark on all their processes, and how they end; a script that fails at will."""

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from support.commands import processes_with, wait_until
from support.ranks import clean_environment

SCRIPT = '''
import ctypes, os, pathlib, sys, time, himach
from himach.engine.shuffle import exchange
from himach.ranks.process_exit import promised_rank

class Probe(himach.Analysis):
    """Runs code in a method, at frame 40 in map() or a transformation, or on rank 1 in a method of the exchange."""
    what: str = "pass"
    at: str = "map"

    def run(self, place):
        if self.at == place:
            exec(compile(self.what, "<string>", "exec"))  # of a text, exec() notes a KeyboardInterrupt as unhandled

    def setup(self, universe):
        self.run("setup")
        if self.at == "transformation":
            universe.trajectory.add_transformations(self.transform)
        if self.at.startswith("_") and promised_rank() == 1:
            setattr(exchange.Exchange, self.at, lambda *arguments: exec(self.what))

    def transform(self, timestep):
        if timestep.frame == 40:
            self.run("transformation")
        return timestep

    def map(self, frame):
        if frame.number == 40:
            self.run("map")
        yield "n", frame.number
        yield frame.number, 1.0

    def reduce(self, key, series):
        self.run("reduce")
        return len(series)

    def finish(self, results):
        self.run("finish")
        return {"counts": {"n": [results["n"]]}}
'''

MPIEXEC = [str(Path(sys.executable).with_name("mpiexec")), "-launcher", "fork"]


def launch(launcher: str, ranks: int, *words: object, srun: Sequence[str] = ()) -> list[str]:
    """Return the words that start ``himach WORDS`` on so many ranks: "alone", by "-n", "mpiexec" or "srun"."""
    command = [sys.executable, "-P", "-m", "himach", *map(str, words)]
    if launcher == "-n":
        return [*command, "-n", str(ranks)]
    starters = {"alone": [], "mpiexec": [*MPIEXEC, "-n", str(ranks)]}
    return [*starters.get(launcher, ["srun", f"-N{ranks}", f"-n{ranks}", *srun]), *command]


class MarkedRun:
    """A program in a session of its own, whose standard error is a file in `folder`, as its temporary files are."""

    def __init__(self, command: Sequence[str], folder: Path, **environ: str) -> None:
        self.mark = uuid.uuid4().hex
        self._stderr = folder / "stderr"
        with self._stderr.open("wb") as stderr:
            self.process = subprocess.Popen(
                command,
                env=clean_environment(**{"TMPDIR": str(folder), "HIMACH_TEST_MARK": self.mark, **environ}),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
            )

    def wait(self, seconds: float) -> int | None:
        """Return the exit code; None if it had to be killed after so many seconds."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return None

    def stderr(self) -> str:
        return self._stderr.read_text(errors="replace")

    def leftovers(self, seconds: float = 30) -> list[str]:
        """Wait until all its processes have ended; kill those that have not, and return a sentence about them."""
        if wait_until(lambda: not processes_with(self.mark), seconds):
            return []
        left = processes_with(self.mark)
        for process in left:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        return [f"processes left: {left}"]


def fails(done, *words: str, code: int = 1) -> None:
    """The command ended with `code` and one message that holds `words`, and no traceback of himach's."""
    assert done.returncode == code, done.stderr
    assert done.stderr.count("himach: error:") == 1, done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr, done.stderr
