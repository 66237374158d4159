"""`himach.Ranks(slurm=...)` in a real SLURM: two nodes on this machine, from Debian's packages."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import pytest
from MDAnalysisTests.datafiles import DCD, PSF
from ranks.launch.probes import AtFrame, at_frame, found
from support.commands import processes_with, same_files, wait_until
from support.ranks import clean_environment
from support.slurm import Jobs, cluster_up

import himach
from himach.ranks.slurm.job import split_options

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

OPTIONS = "-N2 -n3 --time=30"


@pytest.fixture(scope="module")
def jobs():
    """SLURM, for this process, too."""
    with cluster_up(2) as environ, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", environ["SLURM_CONF"])
        yield Jobs(environ)


@pytest.fixture(scope="module")
def shared(jobs):
    """Ranks for tests that leave the job as it was."""
    with himach.Ranks(slurm=OPTIONS) as ranks:
        yield ranks


@pytest.fixture
def ranks(shared):
    """The same job has to be there before and after."""
    job = job_of(shared)
    assert shared.alive
    yield shared
    assert shared.alive and job_of(shared) == job


def job_of(ranks) -> str:
    return re.search(r"of job (\d+)", repr(ranks))[1]


def is_over(jobs: Jobs, job: str) -> bool:
    return jobs.says(job, "JobState") not in ("PENDING", "RUNNING", "COMPLETING")


def interrupt_when(path: Path) -> None:
    """Interrupt this process as Ctrl-C does, when there is that file."""

    def wait() -> None:
        if wait_until(path.exists, 60):
            os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=wait, daemon=True).start()


def sleep_at(path: Path) -> str:
    """Return code for map() that makes the file and sleeps."""
    return f"import pathlib, time\npathlib.Path({str(path)!r}).touch()\ntime.sleep(60)"


def test_a_run_leaves_the_bytes_of_one_process(ranks, tmp_path):
    analysis = himach.examples.load("rmsd")
    himach.run(analysis, DCD, PSF, out=tmp_path / "alone")
    for number in range(2):
        result = himach.run(analysis, DCD, PSF, ranks=ranks, out=tmp_path / "job")
        assert (result.record["ranks"], result.record["nodes"]) == (3, 2)
        same_files(tmp_path / "alone", tmp_path / "job")
        assert number == 0 or result.record["bytes"]["origin"] == 0  # each node has cached its frames
    assert ranks.size == 3


@pytest.mark.nightly
def test_code_environment_and_directory_are_those_of_the_call(ranks, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HIMACH_TEST_WORD", "now")
    umask = os.umask(0o027)
    try:
        code = "import os\nprint('printed')\nfound = os.environ.get('HIMACH_TEST_WORD'), os.getcwd(), os.umask(0o027)"
        assert found(ranks, code) == ("now", str(tmp_path), 0o027)
    finally:
        os.umask(umask)
    assert capfd.readouterr().out == "printed\n"
    monkeypatch.delenv("HIMACH_TEST_WORD")
    assert found(ranks, "import os, sys\nfound = os.environ.get('HIMACH_TEST_WORD')\nos.environ['LEFT'] = '1'") is None
    assert found(ranks, "import os\nfound = os.environ.get('LEFT')") is None


@pytest.mark.nightly
def test_progress_comes_while_the_ranks_work(ranks, monkeypatch, capfd):
    monkeypatch.setenv("HIMACH_PROGRESS", "tty")  # as a notebook says
    himach.run(AtFrame(code="import time\ntime.sleep(0.5)"), DCD, PSF, cache="off", progress=True, ranks=ranks)
    assert "98/98" in capfd.readouterr().err


@pytest.mark.nightly
def test_an_error_is_that_of_the_analysis_and_the_job_stays(ranks):
    with pytest.raises(himach.AnalysisError, match=r"failed at frame 40 .*on rank \d: ZeroDivisionError"):
        at_frame(ranks, "1 / 0")
    assert found(ranks, "found = 1") == 1


def test_a_rank_that_dies_is_named_and_the_job_stays(ranks, capfd):
    with pytest.raises(himach.RankError, match=r"a rank ended .* other ranks of 3 were ended; what it, .* is above"):
        at_frame(ranks, "import os\nos.kill(os.getpid(), 9)")
    assert re.search(r"srun: error: node\d: task \d: Killed", capfd.readouterr().err)
    assert found(ranks, "found = 1") == 1


def test_an_interrupt_ends_the_run_and_the_job_stays(ranks, tmp_path):
    interrupt_when(tmp_path / "maps")
    with pytest.raises(KeyboardInterrupt):
        at_frame(ranks, sleep_at(tmp_path / "maps"))
    assert found(ranks, "found = 1") == 1


def content_of(path: Path) -> bytes:
    with contextlib.suppress(OSError):
        return path.read_bytes()
    return b""


def test_the_job_ends_with_the_block(jobs):
    with himach.Ranks(slurm=["-n1", "--time=30"]) as ranks:
        job = job_of(ranks)
        assert found(ranks, "found = 1") == 1
    assert wait_until(lambda: is_over(jobs, job), 10)
    assert jobs.says(job, "JobState") == "COMPLETED"
    with pytest.raises(himach.UsageError, match=r"were closed; make new ones: himach.Ranks\(slurm='-n1 --time=30'\)"):
        found(ranks, "found = 1")


@contextlib.contextmanager
def full(jobs: Jobs):
    """Have all nodes busy with another job."""
    job = jobs.submit("-N2", "--exclusive", "--output=/dev/null", "--wrap=sleep 600")
    jobs.wait(job, "RUNNING")
    try:
        yield job
    finally:
        jobs.call("scancel", job)
        jobs.wait(job, "CANCELLED")


@pytest.mark.nightly
def test_a_job_waits_in_the_queue_and_an_interrupt_cancels_it(jobs, shared, tmp_path):
    shared.close()  # its job would be in the way
    code = (
        "import himach, sys\n"
        "from ranks.launch.probes import found\n"
        f"ranks = himach.Ranks(slurm={OPTIONS!r})\n"
        "print(ranks, flush=True)\n"
        "try:\n    found(ranks, 'found = 1')\n"
        "except KeyboardInterrupt:\n    print('interrupted', ranks.alive, flush=True)\n"
        "print(found(ranks, 'found = 1'), ranks, flush=True)\n"
    )
    with full(jobs) as other:
        process = start(code)
        job = submitted(process)
        line = process.stderr.readline()
        assert line.startswith(f"himach: job {job} waits in the queue (") and line.endswith("; Ctrl-C cancels it\n")
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted False\n"
        assert jobs.says(job, "JobState") == "CANCELLED"
        assert f" job {int(job) + 1} waits in the queue" in process.stderr.readline()
        assert other
    assert process.stdout.readline().startswith(f"1 <himach.Ranks: 3 ranks of job {int(job) + 1}, waiting>")
    process.communicate(timeout=30)
    assert process.returncode == 0
    assert wait_until(lambda: is_over(jobs, str(int(job) + 1)), 10)


def submitted(process: subprocess.Popen[str]) -> str:
    """Return the job that such a process says first."""
    line = process.stdout.readline()
    assert line, process.stderr.read()
    return re.search(r"of job (\d+)", line)[1]


def start(code: str, **environ: str) -> subprocess.Popen[str]:
    """Start a process that is like a notebook."""
    tests = Path(__file__).parents[2]
    path = os.pathsep.join(filter(None, [str(tests), os.environ.get("PYTHONPATH", "")]))
    own = {"SLURM_CONF": os.environ["SLURM_CONF"], "PYTHONPATH": path, **environ}
    return subprocess.Popen(
        [
            sys.executable,
            "-P",
            "-c",
            f"import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n{code}",
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(**own),
    )


@pytest.mark.nightly
@pytest.mark.parametrize("when", ["waits in the queue", "waits for a run", "runs"])
@pytest.mark.parametrize("killed", ["the notebook", "all that is here"])
def test_the_job_ends_with_the_notebook(jobs, tmp_path, when, killed):
    mark = uuid.uuid4().hex
    code = (
        "import himach, sys, time\n"
        "from ranks.launch.probes import at_frame, found\n"
        f"ranks = himach.Ranks(slurm={OPTIONS!r})\n"
        "print(ranks, flush=True)\n"
        f"when = {when!r}\n"
        "if when == 'waits for a run': found(ranks, 'found = 1')\n"
        "print('there', flush=True)\n"
        f"if when == 'runs': at_frame(ranks, {sleep_at(tmp_path / 'maps')!r})\n"
        "time.sleep(60)\n"
    )
    with full(jobs) if when == "waits in the queue" else contextlib.nullcontext():
        process = start(code, HIMACH_TEST_MARK=mark)
        job = submitted(process)
        assert process.stdout.readline() == "there\n"
        assert when != "runs" or wait_until((tmp_path / "maps").exists, 60)
        if killed == "all that is here":
            for pid in [pid for pid in processes_with(mark) if b"salloc" in content_of_command(pid)]:
                os.kill(pid, signal.SIGKILL)
        process.kill()
        process.communicate(timeout=30)
        if not (when == "waits in the queue" and killed == "all that is here"):  # nobody is there to cancel it
            assert wait_until(lambda: is_over(jobs, job), 60)
    assert wait_until(lambda: is_over(jobs, job), 60), "it found nobody, and went on"
    assert wait_until(lambda: not processes_with(mark), 15)


@pytest.mark.nightly
def test_no_job_is_left_whenever_the_notebook_is_killed(jobs):
    """Before, while and after the job is submitted, and when it is told to have been."""
    mark = uuid.uuid4().hex
    code = f"import himach, os, time\nranks = himach.Ranks(slurm={OPTIONS!r})\n"
    with full(jobs) as other:  # none of them begins, and finds that nobody is there
        for tenths in range(2, 22, 2):
            process = start(f"{code}time.sleep(60)", HIMACH_TEST_MARK=mark)
            time.sleep(tenths / 10)
            process.kill()
            process.communicate(timeout=30)
        for _ in range(6):
            start(f"{code}os.kill(os.getpid(), 9)", HIMACH_TEST_MARK=mark).communicate(timeout=60)
        assert wait_until(lambda: not processes_with(mark), 60)
        assert wait_until(lambda: jobs.call("squeue", "--noheader", "--format=%i") == other, 30), jobs.call("squeue")


def content_of_command(pid: int) -> bytes:
    return content_of(Path("/proc", str(pid), "cmdline"))


@pytest.mark.nightly
def test_when_the_time_is_up_a_new_job_goes_on(jobs, tmp_path, monkeypatch):
    """SLURM looks at times every 30 s. SIGUSR1 has all ranks keep pairs before."""
    monkeypatch.setenv("HIMACH_KEEP_EVERY", "1000")
    monkeypatch.setenv("HIMACH_TEST_NOTES", str(tmp_path / "maps"))
    (tmp_path / "maps").mkdir()
    pairs, parts = tmp_path / "pairs", lambda: [*(tmp_path / "pairs").rglob("*.pairs")]
    mapped, before = lambda: len([*(tmp_path / "maps").iterdir()]), []
    with himach.Ranks(slurm=OPTIONS) as ranks:
        first = job_of(ranks)

        def end() -> None:
            wait_until(lambda: mapped() > 10, 60)
            before.append(mapped())
            os.kill(os.getpid(), signal.SIGUSR1)
            wait_until(lambda: len(parts()) == 3, 60)
            jobs.call("scontrol", "update", f"jobid={first}", "EndTime=now+1")

        threading.Thread(target=end, daemon=True).start()
        asked = {"ranks": ranks, "cache": "off", "pairs": pairs}
        with pytest.raises(himach.TimeUpError, match=f"the time of job {first} is up"):
            himach.run(Paced(), DCD, PSF, **asked)
        assert parts()
        assert not ranks.alive
        (tmp_path / "maps.fast").touch()
        result = himach.run(Paced(), DCD, PSF, **asked)
        assert job_of(ranks) != first
        assert result.record["frames"] == 98
        assert result.record["reused"]["frames"] >= before[0] > 10, result.record["reused"]


class Paced(himach.Analysis):
    """Takes its time at each frame."""

    def map(self, frame):
        import pathlib
        import time

        notes = pathlib.Path(os.environ["HIMACH_TEST_NOTES"])
        time.sleep(0 if notes.with_suffix(".fast").exists() else 2)
        (notes / str(frame.number)).touch()
        yield "n", 1

    def reduce(self, key, series):
        return len(series)


@pytest.mark.nightly
def test_a_job_that_is_cancelled_is_told_and_another_one_is_submitted(jobs, tmp_path):
    with himach.Ranks(slurm=OPTIONS) as ranks:
        first = job_of(ranks)

        def cancel() -> None:
            if wait_until((tmp_path / "maps").exists, 60):
                jobs.call("scancel", first)

        threading.Thread(target=cancel, daemon=True).start()
        with pytest.raises(himach.RankError, match=f"job {first} is over: CANCELLED"):
            at_frame(ranks, sleep_at(tmp_path / "maps"))
        assert not ranks.alive
        assert found(ranks, "found = 1") == 1
        second = job_of(ranks)
        assert second != first
        jobs.call("scancel", second)
        assert wait_until(lambda: not ranks.alive, 30)  # though nobody runs anything
        assert found(ranks, "found = 1") == 1


@pytest.mark.nightly
def test_what_cannot_be_is_told(jobs, monkeypatch):
    with pytest.raises(
        himach.UsageError, match=r"salloc takes no job with the options '--partition=none'.*invalid part"
    ):
        himach.Ranks(slurm="--partition=none")
    with pytest.raises(himach.UsageError, match="give a number of ranks of this machine, or options for a job"):
        himach.Ranks(2, slurm="-n2")
    with himach.Ranks(slurm=f"{OPTIONS} --mpi=none") as ranks, pytest.raises(himach.RankError):
        found(ranks, "found = 1")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(himach.UsageError, match="there is no salloc here"):
        himach.Ranks(slurm=OPTIONS)


def test_options_of_srun_are_told_apart():
    assert split_options(["-N4", "--mpi=pmix", "-n64"]) == (["-N4", "-n64"], ["--mpi=pmix"])
    with pytest.raises(himach.UsageError, match="written with its value"):
        split_options(["--mpi", "pmix"])
