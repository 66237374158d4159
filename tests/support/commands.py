"""Runs himach's command line for the tests, as a user would: its exit code, what it prints, the files it leaves.

Commands are forked from a process that has imported himach and MDAnalysis (`support.preload`), one a test process.
Tests marked ``fresh`` start an interpreter for each command instead.
"""

import functools
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from MDAnalysisTests.datafiles import DCD, PSF
from support import preload
from support.ranks import clean_environment

# AdK alone: 3,341 atoms, 98 frames.
DATA = ["--trajectory", str(DCD), "--topology", str(PSF)]


class Preloaded(preload.ForkedProcess):
    """A process that the one of this test session forks, which the first of them starts."""

    fresh = False  # whether the test at hand wants new interpreters

    @classmethod
    def forks(cls) -> bool:
        """Whether there is a process that forks."""
        return not cls.fresh and bool(start_forking())


@functools.cache
def start_forking() -> tuple[tempfile.TemporaryDirectory[str], subprocess.Popen[bytes]]:
    """Start the process that forks for this one; it ends when its standard input does."""
    folder = tempfile.TemporaryDirectory(prefix="preloaded-")
    environ = clean_environment()
    for name in ("PYTHONPATH", "HIMACH_TEST_MARK"):
        environ.pop(name, None)
    Preloaded.path, Preloaded.environment, Preloaded.limits = f"{folder.name}/socket", environ, preload.limits()
    words = [sys.executable, "-P", preload.__file__, Preloaded.path]
    starter = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ, cwd="/")
    assert starter.stdout is not None and starter.stdout.readline() == b"ready\n"
    starter.wait()  # the process that forks is its child
    return folder, starter


def run_python(
    *words: object,
    timeout: float = 200,
    cwd: Path | None = None,
    check: bool = False,
    environ: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run ``python WORDS`` without input, and return its exit code and output."""
    return subprocess.run(
        preload.Forked([sys.executable, *map(str, words)]), capture_output=True, text=True, timeout=timeout, cwd=cwd,
        env=environ or clean_environment(), stdin=subprocess.DEVNULL, check=check,
    )  # fmt: skip


def himach(
    *words: object, timeout: float = 200, cwd: Path | None = None, code: int | None = None, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run ``himach`` with `words` and return what came of it; fail unless it ends with `code`, if that is given."""
    words = ("-P", "-m", "himach", *words)
    done = run_python(*words, timeout=timeout, cwd=cwd, environ=clean_environment(**environ))
    assert code is None or done.returncode == code, f"exit code {done.returncode}\n{done.stderr}"
    return done


def start_himach(*words: object, cwd: Path | None = None, **environ: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "himach", *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, cwd=cwd, env=clean_environment(**environ), stdin=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip


def write_analysis(
    path: Path, map_text: str, *, name: str = "Count", before: str = "", reduce: str = "len(series)"
) -> Path:
    """Write a script whose analysis has this text in map(), and behind it; return its path."""
    body = textwrap.indent(textwrap.dedent(map_text).strip(), " " * 8)
    path.write_text(
        f"import himach\n{before}\nclass {name}(himach.Analysis):\n    def map(self, frame):\n{body}\n"
        f"    def reduce(self, key, series):\n        return {reduce}\n"
    )
    return path


def same_files(one: Path, other: Path) -> None:
    """Both runs left the same files in ``--out``, byte for byte, but for their records."""
    mine, theirs = (
        {path.relative_to(out).as_posix(): path.read_bytes() for path in out.rglob("*") if path.is_file()}
        for out in (one, other)
    )
    assert mine.pop("run.json")
    assert theirs.pop("run.json")
    assert sorted(mine) == sorted(theirs)
    assert any(name.endswith(".csv") for name in mine)
    assert [name for name in mine if mine[name] != theirs[name]] == []


def processes_with(mark: str) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                environ = (folder / "environ").read_bytes().split(b"\0")
                state = (folder / "stat").read_text().rsplit(")", 1)[1].split()[0]
            except OSError:
                continue
            if f"HIMACH_TEST_MARK={mark}".encode() in environ and state != "Z" and int(folder.name) != os.getpid():
                found.append(int(folder.name))
    return found


def wait_until(condition, seconds: float = 60) -> bool:
    """Wait until ``condition()`` holds; return whether it came to hold in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return bool(condition())


#: What a run does to files, each at a moment at which it may be killed.
TOUCHING = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.listdir", "shutil.rmtree"}


def killed_at_touch(folder: Path, at: int, act: Callable[[], object]) -> bool:
    """Act in a process that is killed at its touch number `at` of what lies in a folder; return whether it was."""
    child = os.fork()
    if child == 0:
        touches = 0

        def count(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal touches
            if event in TOUCHING and str(folder) in str(arguments[0]):
                touches += 1
                if touches == at:
                    os.kill(os.getpid(), signal.SIGKILL)

        try:
            sys.addaudithook(count)
            act()
        except BaseException:
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL)
    return status != 0
