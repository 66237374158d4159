"""Analyses that do in a rank what a test says, and tell what they found there."""

import os
import time
from pathlib import Path

from MDAnalysisTests.datafiles import DCD, PSF
from support.commands import wait_until

import himach


class Probe(himach.Analysis):
    """Runs code in setup(), on every rank; finish() returns what it called `found` on rank 0."""

    code: str = "found = None"

    def setup(self, universe):
        scope = {"universe": universe}
        exec(self.code, scope)
        self.found = scope.get("found")

    def map(self, frame):
        yield "n", 1

    def reduce(self, key, series):
        return len(series)

    def finish(self, results):
        return self.found


class AtFrame(himach.Analysis):
    """Runs code in map() at a frame, on whatever rank has it."""

    code: str = "pass"
    at: int = 40

    def map(self, frame):
        if frame.number == self.at:
            exec(self.code, {})
        yield "n", 1

    def reduce(self, key, series):
        return len(series)


def found(ranks, code: str):
    """Return what code finds on rank 0 in a run over two frames."""
    return himach.run(Probe(code=code), DCD, PSF, stop=2, cache="off", progress=False, ranks=ranks).outcome


def pid(ranks) -> int:
    """Return the process of rank 0."""
    return found(ranks, "import os\nfound = os.getpid()")


def forker(ranks) -> int:
    """Return the process that forks ranks."""
    return found(ranks, "import os\nfound = os.getppid()")


def is_called_by_a_pipe(process: int | str) -> bool:
    """Tell whether a process sleeps in a read of a pipe or a socket, as ranks do that wait for work."""
    try:
        words = Path(f"/proc/{process}/syscall").read_text().split()
        return len(words) > 1 and os.readlink(f"/proc/{process}/fd/{int(words[1], 16)}").startswith(
            ("pipe:", "socket:")
        )
    except (OSError, ValueError):
        return False


def waiting(ranks) -> list[int]:
    """Return the processes of ranks that wait for the next run."""
    process, processes = forker(ranks), []

    def are_there() -> bool:
        processes[:] = children(process)
        return len(processes) == ranks.size and all(map(is_called_by_a_pipe, processes))

    assert wait_until(are_there, 10)
    return processes


def children(process: int) -> list[int]:
    """Return the processes that another started; none if that has ended."""
    try:
        return list(map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split()))
    except OSError:
        return []


def at_frame(ranks, code: str):
    """Do something in map()."""
    return himach.run(AtFrame(code=code), DCD, PSF, cache="off", progress=False, ranks=ranks).outcome


def parent_of(process: int) -> int:
    """Return the process that started another."""
    return int(Path("/proc", str(process), "stat").read_text().rsplit(")", 1)[1].split()[1])


def launcher_of(rank: int) -> int:
    """Return the process that this one started and that launches a rank."""
    process = rank
    while parent_of(process) != os.getpid():
        process = parent_of(process)
    return process


def kill_soon(path: Path) -> str:
    """Return code that writes its process's number to a file and sleeps, to be killed meanwhile."""
    return f"import os, time, pathlib\npathlib.Path({str(path)!r}).write_text(str(os.getpid()))\ntime.sleep(60)"


def number_in(path: Path, seconds: float = 30) -> int:
    """Wait for a process's number."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if path.exists() and (text := path.read_text()):
            return int(text)
        time.sleep(0.02)
    raise AssertionError(f"nobody wrote {path}")
