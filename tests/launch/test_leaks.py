"""What a run's code leaves in its ranks is not there in the next run over the same `himach.Ranks`."""

from __future__ import annotations

import os
import signal
import textwrap

import pytest
from launch.probes import forker, found

import himach

#: What code does, and what tells whether it did.
LEFT = {
    "directory": ("import os; os.chdir('/tmp')", "import os; found = os.getcwd()"),
    "umask": ("import os; os.umask(0)", "import os; found = os.umask(0o22)"),
    "numpy errors": ("import numpy; numpy.seterr(all='raise')", "import numpy; found = numpy.geterr()"),
    "signals": ("import signal as s; s.signal(s.SIGUSR2, s.SIG_IGN)", "import signal as s; found = s.getsignal(12)"),
    "alarm": ("import signal; signal.alarm(30)", "import signal; found = signal.alarm(0)"),
    "main": ("import __main__; __main__.mine = 1", "import __main__; found = hasattr(__main__, 'mine')"),
    "limits": (
        "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (300, r.getrlimit(r.RLIMIT_NOFILE)[1]))",
        "import resource as r; found = r.getrlimit(r.RLIMIT_NOFILE)",
    ),
    "closed descriptor": (
        "import os; os.close(0)",
        "import os\ntry: found = os.fstat(0) and 'open'\nexcept OSError: found = 'closed'",
    ),
    "packages": (
        "import MDAnalysis; MDAnalysis.Universe.mine = 1",
        "import MDAnalysis; found = hasattr(MDAnalysis.Universe, 'mine')",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def ranks():
    with himach.Ranks(2) as ranks:
        yield ranks


@pytest.mark.nightly(but=["signals", "packages"])
@pytest.mark.parametrize("name", LEFT)
def test_what_a_run_sets_is_as_it_was_in_the_next(ranks, name):
    left, look = LEFT[name]
    before = found(ranks, look)
    process = forker(ranks)
    changed = found(ranks, f"{left}\n{look}")
    assert repr(changed) != repr(before), "the code changes nothing"
    assert repr(found(ranks, look)) == repr(before)
    assert forker(ranks) == process


def test_directory_variables_and_mask_are_those_of_this_process_now(ranks, tmp_path, monkeypatch):
    look = "import os; found = os.getcwd(), os.environ.get('HIMACH_MINE'), os.environ.get('MINE')"
    first = found(ranks, look)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HIMACH_MINE", "2")
    monkeypatch.setenv("MINE", "3")  # may be read by a library when it is loaded
    assert found(ranks, look) == (str(tmp_path), "2", "3")
    monkeypatch.undo()
    assert found(ranks, look) == first


def test_an_edited_helper_and_script_count_as_they_are(ranks, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    for word in ("one", "two and more"):
        (tmp_path / "stay_helper.py").write_text(f"WORD = {word!r}")
        assert found(ranks, "import stay_helper; found = stay_helper.WORD") == word
    package = tmp_path / "stay_package"
    package.mkdir()
    (package / "part.py").write_text("WORD = 1")
    assert found(ranks, "import stay_package.part; found = stay_package.part.WORD") == 1
    (package / "part.py").write_text("WORD = 1000")
    assert found(ranks, "import stay_package.part; found = stay_package.part.WORD") == 1000


@pytest.mark.nightly
def test_a_child_that_lives_on_holds_up_no_run(ranks):
    process = forker(ranks)
    code = "import subprocess; universe.mine = child = subprocess.Popen(['sleep', '60'])\nfound = child.pid"
    child = found(ranks, code)
    try:
        assert forker(ranks) == process
    finally:
        os.kill(child, signal.SIGKILL)


def test_what_is_registered_for_the_end_is_done_in_the_run(ranks, tmp_path, capfd):
    file = tmp_path / "end"
    code = f"import atexit, pathlib; atexit.register(lambda: print('bye', file=open({str(file)!r}, 'a')))\nfound = 1"
    assert found(ranks, code) == 1
    assert file.read_text().splitlines() == ["bye", "bye"]
    assert found(ranks, "found = 2") == 2
    assert ranks.alive


def test_a_run_waits_for_threads_that_are_no_daemons(ranks, tmp_path):
    file = tmp_path / "late"
    code = textwrap.dedent(f"""
        import threading, time, pathlib
        def late():
            time.sleep(0.5)
            pathlib.Path({str(file)!r}).touch()
        threading.Thread(target=late).start()
    """)
    found(ranks, code)
    assert file.exists()
