"""What ranks and the process that started them hand over and print, and what they leave."""

import io
import json
import os
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest
from support.commands import wait_until

from himach.errors import RankError, TrajectoryError
from himach.ranks import segments
from himach.ranks.launch.pool import RankPool, _before, _chunks, end, relay


def ranks_doing(code: str, before: str = "") -> list[str]:
    """Return the command of ranks that do this in place of their work, in a world of theirs."""
    work = textwrap.indent(f"world.comm.barrier()\n{code}", "    ")
    main = f"def work(world, cwd, umask, data):\n    import os, time\n{work}\n    return data"
    set_up = f"{before}\nfrom himach.ranks.launch import rank_main\nrank_main._result = work\nrank_main.main()"
    return [sys.executable, "-P", "-c", f"{main}\n{set_up}"]


def spawn(command: list[str], ranks: int, work: bytes) -> bytes:
    return RankPool(command, ranks).do(work, last=True)


def test_work_goes_to_the_ranks_and_the_result_comes_back():
    work = os.urandom(3_000_000)
    print_much = "[os.write(1, b'of a library\\n') for _ in range(20_000)] if world.comm.rank else []"
    assert spawn(ranks_doing(f"data = data[::-1]\n{print_much}"), 2, work) == work[::-1]


def test_the_error_of_one_rank_is_raised_in_its_own_class():
    code = (
        "from himach.errors import TrajectoryError\nif world.comm.rank: raise TrajectoryError('torn ' + 70_000 * 'x')"
    )
    with pytest.raises(TrajectoryError, match="torn x"):
        spawn(ranks_doing(f"{code}\ntime.sleep(60)"), 2, b"")


def test_a_rank_that_ends_well_without_a_whole_result_is_told():
    code = (
        "from fcntl import F_GETFL, fcntl\n"
        "files = [fd for fd in range(3, 100) if os.path.exists(f'/proc/self/fd/{fd}')]\n"
        "(file,) = [fd for fd in files if fcntl(fd, F_GETFL) & os.O_APPEND]\n"
        "os.write(file, rank_main.outcome_mark(os.environ[rank_main.MARK]) + b'half')\n"
    )
    with pytest.raises(RankError, match="ended by itself with exit code 0 before the work"):
        spawn(ranks_doing(f"{code}from himach.ranks import process_exit; process_exit._exit_now(0)"), 1, b"")


def test_segments_that_nobody_has_are_swept_and_no_others(tmp_path):
    began = time.time()
    for name in ("mpich_shm_1_0", "mpich_shm_2_0", "mpich_shar_tmpA1b2C3", "others"):
        (tmp_path / name).write_text("x")
    holder = f"f = open({str(tmp_path / 'mpich_shm_2_0')!r}); print(1, flush=True); import time; time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", holder], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        segments.sweep(began + 100, shared=tmp_path)  # all are older
        assert len(os.listdir(tmp_path)) == 4
        segments.sweep(began, shared=tmp_path)
        assert sorted(os.listdir(tmp_path)) == ["mpich_shm_2_0", "others"]
        process.kill()


def test_segments_of_a_process_that_is_dying_are_swept(tmp_path):
    began, path = time.time(), tmp_path / "mpich_shm_1_0"
    path.write_text("x")
    holder = f"f = open({str(path)!r}); print(1, flush=True); import time; time.sleep(0.5)"
    with subprocess.Popen([sys.executable, "-c", holder], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        segments.sweep(began, shared=tmp_path)
        assert not path.exists()


def test_the_names_of_segments_go_while_ranks_use_them():
    """Two ranks of a run have shared memory, and nothing of it has a name that a kill would leave."""
    code = (
        "import json, pathlib\n"
        "maps = pathlib.Path('/proc/self/maps').read_text()\n"
        "here = [word for word in maps.split() if word.startswith('/dev/shm/')]\n"
        "counter = world.make_counter()\n"
        "numbers = world.comm.gather([next(counter) for _ in range(3)]) or []\n"
        "there = [path for path in here if os.path.exists(path)]\n"
        "data = json.dumps([len(here), there, sorted(sum(numbers, []))]).encode()"
    )
    used, left, numbers = json.loads(spawn(ranks_doing(code), 2, b""))
    assert used > 0
    assert left == []
    assert numbers == list(range(6))


class Gone(io.StringIO):
    """The output of a process whose reader has ended, as that of ``| head``."""

    def write(self, text):
        raise BrokenPipeError


def test_ranks_do_not_wait_for_a_reader_that_has_gone():
    reader, writer = os.pipe()
    ended, line = os.pipe()
    with os.fdopen(reader, "rb"):
        thread = relay(_chunks(reader, ended), Gone(), [])
        text = bytes(1 << 20)  # more than a pipe holds
        printing = threading.Thread(target=lambda: (os.write(writer, text), os.close(writer)), daemon=True)
        printing.start()
        printing.join(10)
        assert not printing.is_alive()
        thread.join(10)
        assert not thread.is_alive()
    os.close(line)
    os.close(ended)


def test_what_ranks_leave_behind_holds_up_no_end():
    """A child that keeps the pipe of its rank's output open, and prints on."""
    reader, writer = os.pipe()
    ended, line = os.pipe()
    sink = io.StringIO()
    with os.fdopen(reader, "rb"):
        os.write(writer, b"before ")
        thread = relay(_chunks(reader, ended), sink, [])
        os.write(writer, b"the end")
        os.close(line)
        thread.join(5)
        assert not thread.is_alive()
    assert sink.getvalue() == "before the end"
    os.close(writer)
    os.close(ended)


def test_what_follows_a_mark_is_kept_and_not_printed():
    reader, writer = os.pipe()
    ended, line = os.pipe()
    sink, rest = io.StringIO(), bytearray()
    with os.fdopen(reader, "rb"):
        thread = relay(_before(b"\0mark", _chunks(reader, ended), rest), sink, [])
        for part in (b"text\0ma", b"t", b"\0m", b"ark\0ma", b"rest"):
            os.write(writer, part)
            assert wait_until(lambda: not select.select([reader], [], [], 0)[0])  # relayed by itself
        os.close(writer)
        thread.join(5)
    assert (sink.getvalue(), bytes(rest)) == ("text\0mat", b"\0marest")
    os.close(line)
    os.close(ended)


def test_a_process_ends_whose_poll_was_interrupted():
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    process._waitpid_lock.acquire()  # as an interrupt between two instructions of poll() leaves it
    end(process)
    assert process.returncode in (-signal.SIGTERM, -signal.SIGKILL)


def test_a_process_that_is_gone_has_ended():
    process = subprocess.Popen(["true"], start_new_session=True)
    os.waitpid(process.pid, 0)  # somebody else took its status
    end(process)


def test_a_library_with_a_launcher_of_its_own_is_named():
    open_mpi = "import himach.ranks.mpi\nhimach.ranks.mpi.load = lambda: 'Open MPI v5.0.6\\n'"
    with pytest.raises(RankError, match=r"Open MPI v5.0.6\) has a launcher of its own: mpiexec -n 2 himach"):
        spawn(ranks_doing("", open_mpi), 2, b"")
