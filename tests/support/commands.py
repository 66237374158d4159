"""Runs himach's command line for the tests, as a user would: its exit code, what it prints, the files it leaves.

Commands are forked from a process that has imported himach and MDAnalysis (`support.preload`), one a test process.
Tests marked ``fresh`` start an interpreter for each command instead.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from MDAnalysisTests.datafiles import DCD, PSF
from support.ranks import clean_environment

# AdK alone: 3,341 atoms, 98 frames.
DATA = ["--trajectory", str(DCD), "--topology", str(PSF)]


#: Variables that an interpreter or a library reads while it starts: a command with others of these is started afresh.
AT_START = ("PYTHON", "LANG", "LC_", "LD_", "MALLOC", "OMP_", "OPENBLAS_", "MKL_", "MPL", "MDA", "COVERAGE")


class Preloaded:
    """The process that forks for commands; `fresh` says that the test at hand wants new interpreters."""

    fresh = False

    def __init__(self) -> None:
        self.environment = clean_environment()
        self._folder = tempfile.TemporaryDirectory(prefix="preloaded-")
        self.path = str(Path(self._folder.name) / "socket")
        program = str(Path(__file__).with_name("preload.py"))
        self._process = subprocess.Popen(
            [sys.executable, "-P", program, self.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={name: value for name, value in self.environment.items() if name != "PYTHONPATH"},
            cwd="/",
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"
        self._process.wait()  # the process that forks is its child

    def serves(self, words: Sequence[str], environ: Mapping[str, str]) -> bool:
        """Whether ``python WORDS`` in this environment can be forked."""
        changed = {name for name, value in {*self.environment.items()} ^ {*environ.items()}}
        before = words[: words.index("-c")] if "-c" in words else words
        options = {word for word in before if word[:2] in ("-X", "-I", "-S")}
        return not options and not any(name.startswith(AT_START) and name != "PYTHONPATH" for name in changed)

    def request(
        self, words: Sequence[str], environ: Mapping[str, str], cwd: Path | None, files: Sequence[int]
    ) -> Command:
        """Have a command forked with these standard descriptors."""
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self.path)
        folder = str(cwd or Path.cwd())
        text = json.dumps({"words": list(words), "folder": folder, "environment": dict(environ)}).encode()
        socket.send_fds(connection, [len(text).to_bytes(8, "little")], files)
        connection.sendall(text)
        return Command(connection)


class Command:
    """A forked command."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.pid = self._receive()

    def _receive(self) -> int:
        answer = self._connection.recv(4, socket.MSG_WAITALL)
        assert len(answer) == 4, "the process that forks commands has gone"
        return int.from_bytes(answer, "little")

    def wait(self) -> int:
        """Return the exit code, as subprocess does."""
        code = os.waitstatus_to_exitcode(self._receive())
        self._connection.close()
        return code


@functools.cache
def preloaded() -> Preloaded:
    """Return the process that forks for this test process."""
    return Preloaded()


def run_python(
    *words: object,
    timeout: float = 200,
    cwd: Path | None = None,
    check: bool = False,
    environ: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run ``python WORDS`` without input, and return its exit code and output."""
    texts, environ = list(map(str, words)), environ or clean_environment()
    if Preloaded.fresh or not preloaded().serves(texts, environ):
        return subprocess.run(
            [sys.executable, *texts],
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd=cwd,
            env=environ,
            stdin=subprocess.DEVNULL,
            check=check,
        )
    out, err = os.pipe(), os.pipe()
    null = os.open(os.devnull, os.O_RDONLY)
    try:
        command = preloaded().request(texts, environ, cwd, [null, out[1], err[1]])
    finally:
        for descriptor in (null, out[1], err[1]):
            os.close(descriptor)
    printed: dict[int, str] = {}

    def read(end: int) -> None:
        with open(end, encoding="utf-8") as pipe:
            printed[end] = pipe.read()

    readers = [threading.Thread(target=read, args=(end,), daemon=True) for end in (out[0], err[0])]
    deadline = time.monotonic() + timeout
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(max(0, deadline - time.monotonic()))
        if reader.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(command.pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired(texts, timeout)
    done = subprocess.CompletedProcess([sys.executable, *texts], command.wait(), printed[out[0]], printed[err[0]])
    if check:
        done.check_returncode()
    return done


def himach(
    *words: object, timeout: float = 200, cwd: Path | None = None, check: bool = False, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run ``himach`` with `words` and return what came of it."""
    words = ("-P", "-m", "himach", *words)
    return run_python(*words, timeout=timeout, cwd=cwd, check=check, environ=clean_environment(**environ))


def start_himach(*words: object) -> subprocess.Popen[str]:
    """Start ``himach`` and return at once."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "himach", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )


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
    """Return the living processes whose environment carries ``HIMACH_TEST_MARK=mark``."""
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
