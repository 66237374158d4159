"""`drawing()`: a helper process that imports Matplotlib while ranks read, and draws what rank 0 sends."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple


class Drawer(NamedTuple):
    """Paths of the process's pipes, for other processes of this user and machine; each carries one pickle."""

    requests: str
    answers: str


@contextmanager
def drawing() -> Iterator[Drawer]:
    """Run the drawing process during the context."""
    command = [sys.executable, "-P", "-m", "himach.output.figures.drawing_process"]
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=null, start_new_session=True) as process:
        try:
            descriptors = (end.fileno() for end in (process.stdin, process.stdout) if end)
            yield Drawer(*(f"/proc/{os.getpid()}/fd/{end}" for end in descriptors))
        finally:
            process.kill()
