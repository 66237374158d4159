"""Runs himach's command line for the tests, as a user would: its exit code, what it prints, the files it leaves."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from MDAnalysisTests.datafiles import DCD, PSF
from support.ranks import clean_environment

# AdK alone: 3,341 atoms, 98 frames.
DATA = ["--trajectory", str(DCD), "--topology", str(PSF)]


def himach(
    *words: object, timeout: float = 200, cwd: Path | None = None, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run ``himach`` with `words` and return what came of it."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "himach", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=cwd,
        env=clean_environment(**environ),
        stdin=subprocess.DEVNULL,
        check=False,
    )


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
