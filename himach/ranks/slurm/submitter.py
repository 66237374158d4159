"""``python -m himach.ranks.slurm.submitter``: submits a job for the process that started it, forwards their messages.

It does for ranks in a job what a launcher does for those of this machine (see `JobPool`): the first call submits the
job, each further call is a run. It and the job live as long as the process that started it.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import secrets
import shlex
import signal
import socket
import sys
import threading
import time
from types import FrameType
from typing import Any, NoReturn

from himach.errors import HimachError, RankError, as_himach
from himach.io.server.admission import AdmissionListener
from himach.ranks import process_exit
from himach.ranks.launch.parent_channel import KINDS, STARTED_BY, ParentChannel
from himach.ranks.launch.stop_requests import Terminated
from himach.ranks.slurm.job import JOINS, UNREACHABLE, JobState, SlurmJob, split_options
from himach.ranks.slurm.session import MessageKind, Session

__all__: list[str] = []

#: Environment variable: address at which a job's nodes reach this machine; the host name by default.
HOST = "HIMACH_LOGIN_HOST"
FIRST_LOOK, LAST_LOOK = 0.5, 10.0  # seconds between checks of a queued job
ENDS = 2.0  # seconds for a job to end by itself
COMPLETES = 10.0  # most seconds until SLURM reports how a job ended


class Channel(ParentChannel):
    """Channel to a process whose end also ends the job."""

    def _exit_orphaned(self) -> NoReturn:
        raise Terminated


class Submitter:
    """A job, run on behalf of the starting process."""

    def __init__(self, parent: ParentChannel, options: list[str]) -> None:
        self._parent, self._options = parent, options
        #: Messages of the job, signal numbers, "joined" once, and None when the job has gone.
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._job: SlurmJob | None = None
        self._session: Session | None = None
        self._listener: AdmissionListener | None = None
        self._place = ""
        self._busy = self._ending = self._job_gone = False
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self._on_signal)
        parent.receive_signals((signal.SIGUSR1, signal.SIGTERM))

    def serve(self) -> None:
        """Do requested work while the starting process and the job live."""
        job_runs = True
        while job_runs and self._parent.wait():
            self._events = queue.SimpleQueue()  # drop events that were meant for earlier work
            self._busy = True
            if self._job_gone:  # after the last run had its result
                self._events.put(None)
            try:
                if self._job is None:
                    self._submit()
                else:
                    job_runs = self._run(self._job, self._parent.work())
            except HimachError as error:
                job_runs = False
                self._parent.publish_error(error)
            self._busy = False
            if job_runs:
                self._parent.report_end()

    def close(self) -> None:
        """End the job."""
        self._ending = True
        if self._listener is not None:
            self._listener.close()
        if self._session is not None:
            self._session.close()
            deadline = time.monotonic() + ENDS
            while self._job is not None and time.monotonic() < deadline:
                if self._job.poll().is_over:
                    return
                time.sleep(0.1)
        if self._job is not None:
            self._job.cancel()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._busy:  # handled between events, so that messages are sent whole
            self._events.put(number)
        elif number == signal.SIGTERM and not self._ending:
            self._ending = True
            raise Terminated

    def _submit(self) -> None:
        """Submit the job; publish its number and size."""
        listening = socket.create_server(("", 0))
        host = os.environ.get(HOST) or socket.gethostname()
        port, key = listening.getsockname()[1], secrets.token_hex(32)
        self._place = f"{host}:{port}"
        self._listener = AdmissionListener(listening, key.encode(), self._admit)
        # Keep signals for the main thread, which sleeps: of two at once, the kernel gives one to another thread.
        signals = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self._listener.start()  # its thread also starts the one that listens to the job
        signal.pthread_sigmask(signal.SIG_SETMASK, signals)
        options, steps = split_options(self._options)
        python = shlex.join([sys.executable, "-P", "-m", "himach.ranks.slurm.job_main", *steps])
        # Only this user can read the script, on the way to the node and there; a command line or a file may be public.
        joins = shlex.quote(f"{host} {port} {key}")
        self._job = SlurmJob.submit(options, f"#!/bin/sh\nexport {JOINS}={joins}\nexec {python}\n")
        submitted = {"job": self._job.number, "size": self._job.tasks()}
        self._parent.report_begin()
        self._parent.publish_result(json.dumps(submitted).encode())

    def _admit(self, descriptor: int, key: bytes) -> None:
        """Accept the job's connection, in the listener's thread; only the job has the key."""
        connection = socket.socket(fileno=descriptor)
        if self._session is not None:
            connection.close()
            return
        self._session = Session(connection, key, joined=False)
        threading.Thread(target=self._listen, args=(self._session,), daemon=True).start()
        self._events.put("joined")

    def _listen(self, session: Session) -> None:
        """Receive the job's messages in a thread."""
        assert self._listener is not None
        self._listener.close()
        streams = {MessageKind.OUT: sys.stdout, MessageKind.ERR: sys.stderr}
        while (message := session.receive()) is not None:
            kind, body = message
            if kind in streams:
                with contextlib.suppress(OSError):
                    streams[kind].write(body.decode())
                    streams[kind].flush()
            else:
                self._events.put((kind, body))
        self._job_gone = True
        if self._busy:
            self._events.put(None)
        else:
            os.kill(os.getpid(), signal.SIGTERM)

    def _run(self, job: SlurmJob, work: bytes) -> bool:
        """Have the job's ranks do this work when the job has joined; return whether it goes on afterwards."""
        keeps = json.loads(work.partition(b"\n")[0])["keeps"]
        session = self._await_session(job)
        if session is None:
            return False
        self._parent.report_begin()

        def send(kind: MessageKind, body: bytes = b"") -> None:
            with contextlib.suppress(OSError):  # the job has gone, which the listener reports
                session.send(kind, body)

        send(MessageKind.WORK, work)
        while True:
            event = self._events.get()
            match event:
                case signal.SIGUSR1:
                    send(MessageKind.COMMIT)
                case signal.SIGINT:
                    send(MessageKind.STOP)
                case signal.SIGTERM if keeps:
                    keeps = False  # a second SIGTERM does not wait
                    send(MessageKind.END)
                case signal.SIGTERM:
                    return False
                case MessageKind.RESULT, body:
                    self._parent.publish_result(body)
                    return True
                case MessageKind.ERROR, body:
                    fields = json.loads(body)
                    error = KINDS[fields["kind"]](fields["text"])
                    if isinstance(error, RankError) and job.poll().is_over:
                        raise self._lost_error(job)
                    self._parent.publish_error(error)
                    return True
                case MessageKind.STOPPED, _:
                    return True
                case None:
                    raise self._lost_error(job)

    def _await_session(self, job: SlurmJob) -> Session | None:
        """Wait until the job has begun and joined; return None if it was cancelled meanwhile."""
        pause, reason = FIRST_LOOK, ""
        while self._session is None:
            try:
                event = self._events.get(timeout=pause)
            except queue.Empty:
                state = job.poll()
                if state.is_over:
                    raise self._missed_error(job, state) from None
                if state.waits and state.reason != reason:
                    reason = state.reason
                    print(
                        f"himach: job {job.number} waits in the queue ({reason or state.name}); Ctrl-C cancels it",
                        file=sys.stderr,
                        flush=True,
                    )
                pause = min(LAST_LOOK, 1.5 * pause)
                continue
            if event in (signal.SIGINT, signal.SIGTERM):
                return None
        return self._session

    def _lost_error(self, job: SlurmJob) -> HimachError:
        """Return the error for the end of a job that had joined."""
        deadline = time.monotonic() + COMPLETES
        while (state := job.poll()).name == "COMPLETING" and time.monotonic() < deadline:
            time.sleep(0.2)
        return job.end_error(state)

    def _missed_error(self, job: SlurmJob, state: JobState) -> HimachError:
        """Return the error for a job that ended before it joined."""
        error = job.end_error(state)
        if state.exit_code == UNREACHABLE:
            return RankError(
                f"job {job.number} did not reach this machine at {self._place}; name another address of it by "
                f"${HOST}, at which the nodes reach any port"
            )
        return type(error)(f"{error}; its ranks never came. What it printed is in the file of --output=FILE, if given")


def main() -> None:
    """Submit a job and forward messages while the starting process lives."""
    parent = Channel.from_env()
    if parent is None:
        raise SystemExit("himach.ranks.slurm.submitter is how himach submits a job; it is not started by hand")
    os.environ.pop(STARTED_BY)
    submitter = Submitter(parent, sys.argv[1:])
    try:
        submitter.serve()
    except Terminated:
        pass
    except BaseException as error:
        parent.publish_error(as_himach(error))
        raise
    finally:
        submitter.close()
        process_exit.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
