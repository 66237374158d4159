"""Runs test files under mpiexec: the same tests on 1, 2, 3 and 4 ranks.

A file ``ranks_*.py`` holds tests for any number of ranks (pytest does not collect it by itself: all ranks run it
together); a test file calls `run_under_mpiexec` on it. Every rank is a pytest of its own, with a time-out that prints
the stacks of that rank, so that a hang shows where each one waits.
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

# Variables by which an enclosing launcher would be mistaken for ours.
FOREIGN = ("PMI_", "PMIX_", "OMPI_", "SLURM_", "SLURMD_", "HYDI_", "HYDRA_", "MPI_LOCAL")


def clean_environment(**extra: str) -> dict[str, str]:
    """Return this process's environment without what an enclosing launcher left."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    environ.update({"OMP_NUM_THREADS": "1"}, **extra)
    return environ


def mpiexec(
    n: int | Sequence[str],
    command: Sequence[str],
    timeout: float = 240,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    disks: Path | None = None,
    forked: bool = False,
    code: int | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run ``command`` on `n` ranks with the mpiexec beside this Python; fail unless it ends with `code`, if given.

    For names of nodes in place of `n`, a rank a name runs there, with the store of that name in `disks`.
    Ranks that end well may be `forked` (`support.attach`); others would be killed before all have an exit code.
    """
    from support.commands import Preloaded

    launcher = Path(sys.executable).with_name("mpiexec")
    environ = clean_environment(**(environ or {}))
    if not isinstance(n, int):
        assert disks is not None
        command = [str(Path(__file__).with_name("on_host")), str(disks), ",".join(n), *command]
        n = len(n)
    elif forked and Preloaded.can_fork(environ):
        start = [sys.executable, "-I", "-S", str(Path(__file__).with_name("attach.py")), Preloaded.path]
        command = [word for each in command for word in (start if each == sys.executable else [each])]
    done = subprocess.run(
        [str(launcher), "-launcher", "fork", "-n", str(n), *command], env=environ, cwd=cwd, timeout=timeout,
        capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    assert code is None or done.returncode == code, f"exit code {done.returncode}\n{done.stderr}"
    return done


def run_under_mpiexec(path: str | Path, n: int, timeout: float = 200, select: str = "") -> None:
    """Run the tests in `path` on `n` ranks at once; fail with the output of all ranks if one of them failed."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"--timeout={timeout}"]
    command += ["--import-mode=importlib", "-o", "python_files=ranks_*.py", str(path)]
    if select:
        command += ["-k", select]
    done = mpiexec(n, command, timeout=timeout + 30, forked=True)
    if done.returncode:
        raise AssertionError(f"{path} on {n} ranks ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
