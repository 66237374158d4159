"""MDAnalysis, imported by `preload()`, is what it always is; modules that others stood in for are there when asked."""

import json
import signal
import subprocess
import sys

import pytest
from MDAnalysisTests.datafiles import GRO, PRM_NCBOX, TRJ_NCBOX
from support.ranks import clean_environment

from himach.ranks.launch.preload import interrupts_wait

LAZY = "from himach.ranks.launch.preload import preload\npreload()\n"
PLAIN = "import MDAnalysis\n"
#: What a program may do first with each of these modules.
USES = {
    "scipy.io": (
        "import scipy.io, io; f = io.BytesIO(); scipy.io.savemat(f, {'a': 1}); assert scipy.io.loadmat(f)['a'] == 1"
    ),
    "scipy sub": "import scipy; assert scipy.special.gamma(3) == 2",
    "pkdtree": "from MDAnalysis.lib.pkdtree import PeriodicKDTree; PeriodicKDTree()",
    "special": "from scipy.special import ndtri, stdtrit; assert ndtri(0.5) == 0 == stdtrit(3, 0.5)",
    "asyncio": "import asyncio\nasync def f(): return 3\nassert asyncio.run(f()) == 3",
    "filelock": "from filelock import FileLock; assert FileLock('x')",
    "mmtf": "import mmtf; assert mmtf.MMTFDecoder()",
    "threads": (
        "import threading, scipy.io\n"
        "found = []\n"
        "threads = [threading.Thread(target=lambda: found.append(scipy.io.loadmat)) for _ in range(8)]\n"
        "[thread.start() for thread in threads]; [thread.join() for thread in threads]\n"
        "assert len(found) == 8 and len(set(found)) == 1"
    ),
}


def python(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a new process."""
    command = [sys.executable, "-P", "-W", "ignore", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, env=clean_environment(), timeout=60, check=False)


@pytest.mark.nightly
def test_modules_are_what_they_were():
    """Each in a process of its own, as what one use loads another finds loaded."""
    script = LAZY + (
        "import json, os, sys\n"
        "for code in json.load(sys.stdin):\n"
        "    if not (child := os.fork()):\n"
        "        exec(compile(code, 'use', 'exec'), {'__name__': 'use'})\n"
        "        sys.stdout.flush(); os._exit(0)\n"
        "    if os.waitpid(child, 0)[1]: print('failed:', code)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", "-c", script], input=json.dumps([*USES.values()]), capture_output=True,
        text=True, env=clean_environment(), timeout=200, check=False,
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("", 0), done.stdout + done.stderr


@pytest.mark.nightly
def test_mdanalysis_knows_all_its_formats_and_reads():
    facts = (
        "import json, sys, numpy as np\n"
        "import MDAnalysis\n"
        "known = {name: sorted(map(str, value)) for name, value in vars(MDAnalysis).items() if type(value) is dict"
        " and name != '__builtins__'}\n"
        f"u = MDAnalysis.Universe({str(PRM_NCBOX)!r}, {str(TRJ_NCBOX)!r})\n"
        "known['positions'] = [float(u.atoms.positions.sum())]\n"
        f"u = MDAnalysis.Universe({str(GRO)!r})\n"
        "known['around'] = u.select_atoms('around 3 resid 5').indices.tolist()\n"
        "known['sphere'] = u.select_atoms('sphzone 5 resid 7').indices.tolist()\n"
        "parts = (MDAnalysis, MDAnalysis.lib, MDAnalysis.lib.util, MDAnalysis.coordinates.TRJ)\n"
        "known['names'] = [name for part in parts for name in dir(part)]\n"
        "print(json.dumps(known))"
    )
    lazy, plain = python(LAZY + facts), python(PLAIN + facts)
    assert lazy.returncode == 0, lazy.stderr
    assert json.loads(lazy.stdout) == json.loads(plain.stdout)


def test_little_of_scipy_is_imported():
    done = python(
        LAZY + "import sys, json\n"
        "names = ('scipy.io', 'scipy.sparse', 'scipy.spatial', 'scipy.special', 'asyncio', 'ssl')\n"
        "print(json.dumps([name for name in names if name in sys.modules]))"
    )
    assert json.loads(done.stdout) == []


def test_what_is_there_stays_and_a_failure_is_the_usual_one():
    lines = ["import sys, scipy.io", "there = sys.modules['scipy.io']", LAZY, "assert sys.modules['scipy.io'] is there"]
    assert python("\n".join(lines)).returncode == 0
    code = "import sys\nsys.modules['MDAnalysis.version'] = None\nfrom himach.ranks.launch import preload as p\n"
    code += "try: p.preload()\nexcept ImportError: print(*[name for name in p.UNUSED if name in sys.modules])"
    assert python(code).stdout == "\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_wait_until_the_block_ends(number):
    def handle(number, place):
        raise KeyboardInterrupt(number)

    before, steps = signal.signal(number, handle), []
    try:
        with pytest.raises(KeyboardInterrupt, match=str(int(number))), interrupts_wait():
            signal.raise_signal(number)
            steps.append("went on")
        assert steps and signal.getsignal(number) is handle
    finally:
        signal.signal(number, before)


def test_a_users_process_goes_on_collecting_what_it_has():
    """A live run preloads there; a process of himach's own has nothing else, and leaves its imports out."""
    lines = ["import gc", "from himach.ranks.launch.preload import preload", "preload(own=False)"]
    assert python("\n".join([*lines, "print(gc.isenabled(), gc.get_freeze_count())"])).stdout == "True 0\n"


def test_what_an_update_left_is_collected_after_the_next_one_began():
    lines = [
        "import gc, weakref",
        "class Cycle: pass",
        "left = Cycle()",
        "left.itself, found = left, weakref.ref(left)",
    ]
    lines += ["gc.disable()", "del left", "preload()", "gc.collect()", "print(gc.get_freeze_count() > 0, found())"]
    assert python("\n".join([LAZY, *lines])).stdout == "True None\n"
