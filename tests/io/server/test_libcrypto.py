"""Without OpenSSL's libcrypto: what has to do with other machines is refused by name, and the rest works."""

from __future__ import annotations

import ctypes
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support import needs
from support.ranks import clean_environment

PUSH = """
import numpy as np, sys, himach
from himach.io.server import control
from himach.io.server.client import find
place, servers = sys.argv[1], sys.argv[2:]
started = None if servers else control.start(place)
with himach.Writer("run", 3, servers=servers or [started["socket"]]) as writer:
    writer.push(np.ones((3, 3), np.float32), time=0)
with find(place) as client:
    (frame,) = client.open("run").read([0])
    print("read", frame.positions.sum())
control.stop(place)
"""


@pytest.fixture
def without_libcrypto(tmp_path):
    """Returns a function that runs Python with these words where libcrypto is an empty file."""
    needs.mount_namespace()
    ctypes.CDLL("libcrypto.so.3")
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/libcrypto.so." in line}
    hidden = [shlex.join(["mount", "--bind", "/dev/null", path]) for path in mapped]

    def run(*words):
        command = " && ".join([*hidden, f"exec {shlex.join([sys.executable, '-P', *map(str, words)])}"])
        return subprocess.run(
            ["unshare", "-m", "sh", "-c", command],
            env=clean_environment(HIMACH_CACHE=str(tmp_path / "store")),
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )

    return run


def test_what_is_local_works(without_libcrypto, tmp_path):
    done = without_libcrypto("-c", PUSH, tmp_path / "store")
    assert (done.stdout, done.stderr) == ("read 9.0\n", "")


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize(
    "words",
    [
        ["cache", "start", "--listen", "127.0.0.1:0", "--key"],
        ["run", "rmsd", "-p", "selection=all", "-t", "a.xtc", "-s", "b.pdb", "--server", "127.0.0.1:1", "--key"],
        ["datasets", "--server", "127.0.0.1:1", "--key"],
    ],
    ids=lambda words: words[0],
)
def test_other_machines_are_refused_in_one_line(without_libcrypto, key, words):
    done = without_libcrypto("-m", "himach", *words, key)
    assert done.returncode != 0 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("himach: error: ") and "libcrypto" in line and "libssl3" in line


def test_nothing_is_pushed_to_another_machine(without_libcrypto, tmp_path):
    done = without_libcrypto("-c", PUSH, tmp_path / "store", "127.0.0.1:1")
    said = done.stderr.splitlines()[-1]
    assert "StoreSystemError" in said and "libcrypto" in said and "libssl3" in said
