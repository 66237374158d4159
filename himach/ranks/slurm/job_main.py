"""``python -m himach.ranks.slurm.job_main``: script of a job; joins the submitting process and has ranks do its work.

The ranks of a run are a step of the job (`StepPool`). When they have ended, those of the next run start and wait. The
script, and with it the job, ends when the submitting process has gone.
"""

from __future__ import annotations

import io
import os
import pickle
import queue
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import NoReturn

from himach.errors import RankError, UsageError, as_himach
from himach.ranks.launch.parent_channel import portable
from himach.ranks.launch.pool import RANK, RankPool
from himach.ranks.launch.stop_requests import terminate
from himach.ranks.mpi import load
from himach.ranks.slurm.job import JOINS, UNREACHABLE
from himach.ranks.slurm.session import MessageKind, Session, join

PMIX = ("Open MPI", "PRRTE")
#: Options of srun. Steps overlap: the next run's step starts before SLURM has removed the last one.
STEP = ("--quiet", "--kill-on-bad-exit=1", "--unbuffered", "--export=ALL", "--overlap")
AT_MOST = 1000  # most characters kept of a line of srun
ATTEMPTS, SECONDS, PAUSE = 3, 10.0, 2.0  # for reaching the process that submitted this job


class Printed(io.TextIOBase):
    """Stream that sends its text to the submitter."""

    encoding = "utf-8"
    DEATH = re.compile(r"^srun: error: (\S+): tasks? ([\d,-]+): (.+)$", re.MULTILINE)

    def __init__(self, session: Session, kind: MessageKind) -> None:
        self._session, self._kind = session, kind
        self._line = self._death = ""

    def write(self, text: str) -> int:
        """Send text; note the first death that srun reports in it."""
        self._session.send(self._kind, text.encode())
        lines = self._line + text
        if not self._death and (match := self.DEATH.search(lines)):
            self._death = f"rank {match[2]} on {match[1]} ({match[3]})"
        self._line = lines[lines.rfind("\n") + 1 :][-AT_MOST:]
        return len(text)

    def take_death(self) -> str:
        """Return srun's report of the first task that died since the last call; "" if there is none."""
        death, self._death = self._death, ""
        return death


class JobWork:
    """Has ranks do one piece of work after another and sends the outcome of each."""

    def __init__(self, session: Session, options: list[str]) -> None:
        self._session, self._options = session, options or [fitting_mpi()]
        sys.stdout, sys.stderr = Printed(session, MessageKind.OUT), Printed(session, MessageKind.ERR)
        self._errors = sys.stderr
        self._requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._environ = dict(os.environ)
        self._busy = self._stopped = False
        signal.signal(signal.SIGINT, self._on_stop)
        signal.signal(signal.SIGTERM, terminate)
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)

    def do_all(self) -> NoReturn:
        """Do requested work until this process ends."""
        threading.Thread(target=self._listen, daemon=True).start()
        ranks = self._ranks()
        while True:
            changes, cwd, umask, keeps, work = pickle.loads(self._requests.get())
            try:
                self._follow(changes, cwd)
                os.umask(umask)
                if not ranks.alive:
                    ranks.end()
                    ranks = self._ranks()
                self._busy = True
                if self._stopped:  # stopped while ranks were started
                    raise KeyboardInterrupt
                answer = MessageKind.RESULT, ranks.do(work, keeps, last=True)
            except KeyboardInterrupt:
                answer = MessageKind.STOPPED, b""
            except Exception as error:
                answer = MessageKind.ERROR, pickle.dumps(portable(as_himach(error)))
            finally:
                self._busy = False
            self._session.send(*answer)
            ranks = self._ranks()

    def _ranks(self) -> StepPool:
        return StepPool(self._options, self._errors.take_death)

    def _follow(self, changes: dict[str, str | None], cwd: str) -> None:
        """Take the requester's environment and directory."""
        requested = {**self._environ, **changes}
        environ = {name: value for name, value in requested.items() if value is not None}
        os.environ.update(environ)
        for name in os.environ.keys() - environ.keys():
            del os.environ[name]
        try:
            os.chdir(cwd)
        except OSError as error:
            raise UsageError(
                f"the working directory {cwd} is not there on the nodes of job {os.environ.get('SLURM_JOB_ID')} "
                f"({error.strerror}): os.chdir() to one that all nodes see"
            ) from None

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        if self._busy:
            self._busy = False
            raise KeyboardInterrupt

    def _listen(self) -> NoReturn:
        """Receive requests in a thread."""
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # for the main thread, which sleeps
        signals = {MessageKind.COMMIT: signal.SIGUSR1, MessageKind.STOP: signal.SIGINT, MessageKind.END: signal.SIGTERM}
        while (message := self._session.receive()) is not None:
            kind, body = message
            if kind in (MessageKind.WORK, MessageKind.STOP):
                self._stopped = kind is MessageKind.STOP
            if kind is MessageKind.WORK:
                self._requests.put(body)
            elif kind is not MessageKind.COMMIT or self._busy:
                os.kill(os.getpid(), signals[kind])
        os._exit(0)  # SLURM ends the ranks with this script


class StepPool(RankPool):
    """Ranks that are the tasks of one step of this job; rank 0 is on this process's node."""

    def __init__(self, options: Sequence[str], first_death: Callable[[], str]) -> None:
        self._first_death = first_death
        tasks = int(os.environ.get("SLURM_NTASKS") or os.environ["SLURM_JOB_NUM_NODES"])  # the default is one a node
        words = ["srun", *STEP, f"--ntasks={tasks}", *options]
        if cpus := os.environ.get("SLURM_CPUS_PER_TASK"):  # srun ignores it since 22.05
            words.append(f"--cpus-per-task={cpus}")
        super().__init__([*words, *RANK, "step"], tasks, step=True)

    def _death(self, status: int, first: int | None) -> str:
        subject = self._first_death() or f"a rank (srun ended with exit code {status})"
        rest = f", and the other ranks of {self._size} were ended" if self._size > 1 else ""
        return f"{subject} ended before the work was done{rest}; what it, its MPI library or SLURM printed is above"

    def _pass_on(self, signum: int) -> None:
        self._process.send_signal(signum)  # srun forwards it to all

    def _kill(self) -> None:
        self._channel.end_ranks()  # ends rank 0; srun then ends the others


def fitting_mpi() -> str:
    """Return srun's option with which ranks of the present MPI library find each other."""
    library = load()
    return "--mpi=pmix" if any(name in library for name in PMIX) else "--mpi=pmi2"


def main() -> None:
    """Join the process that submitted this job and work for it until it ends."""
    host, port, key = os.environ.pop(JOINS).split()
    session = _join(host, int(port), key.encode())
    try:
        JobWork(session, sys.argv[1:]).do_all()
    finally:
        os._exit(0)  # SIGTERM arrived, or the submitter has gone


def _join(host: str, port: int, key: bytes) -> Session:
    for attempt in range(ATTEMPTS):
        time.sleep(PAUSE if attempt else 0)
        try:
            return join(host, port, key, SECONDS)
        except (OSError, RankError) as error:
            print(f"himach: {host}:{port}: {error}", file=sys.stderr, flush=True)
    sys.exit(UNREACHABLE)


if __name__ == "__main__":
    main()
