"""Runs of himach by any launcher, with a mark on all their processes: for `faults.py` and `tests/checkpoint`."""

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from support.commands import processes_with, wait_until
from support.ranks import clean_environment
from support.slurm import cluster_up

MPIEXEC = [str(Path(sys.executable).with_name("mpiexec")), "-launcher", "fork"]
NODES = 3


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


@contextmanager
def slurm_variables(launchers: Sequence[str]) -> Iterator[dict[str, str]]:
    """Give the variables for srun in a SLURM of this machine's if "srun" is among the launchers; else none."""
    if "srun" not in launchers:
        yield {}
        return
    with cluster_up(NODES) as environ:
        yield {name: environ[name] for name in ("LAB", "SLURM_CONF", "PORT")}
