"""Ranks in a job of SLURM's, for a process outside it: `JobPool` submits the job and has its ranks do work."""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import secrets
import shlex
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence

from himach.errors import HimachError, RankError
from himach.io.server.admission_listener import AdmissionListener
from himach.ranks.launch.parent_channel import detach_in_children, read_umask
from himach.ranks.launch.pool import ENDING, common_environment, pass_on
from himach.ranks.launch.stop_requests import Terminated, relay_signals
from himach.ranks.slurm.job import JOINS, UNREACHABLE, JobState, SlurmJob, split_options
from himach.ranks.slurm.session import MessageKind, Session

#: Environment variable: address at which a job's nodes reach this machine; the host name by default.
HOST = "HIMACH_LOGIN_HOST"
FIRST_LOOK, LAST_LOOK = 0.5, 10.0  # seconds between checks of a queued job
ENDS = 2.0  # seconds for a job to end by itself
COMPLETES = 10.0  # most seconds until SLURM reports how a job ended


class JobPool:
    """Ranks in a job, which ends with `end()` or with this process."""

    def __init__(self, options: Sequence[str]) -> None:
        self.alive = True  # whether the job waits or takes work, as far as is known here
        self._process, self._environ = os.getpid(), common_environment()
        #: Messages of the job, and None when it has gone.
        self._events: queue.SimpleQueue[tuple[MessageKind | None, bytes]] = queue.SimpleQueue()
        #: Messages to the job, which another thread sends whole, whatever interrupts this one.
        self._requests: queue.SimpleQueue[tuple[MessageKind, bytes]] = queue.SimpleQueue()
        self._joined = threading.Event()
        self._session: Session | None = None
        self._ended = False
        listening = socket.create_server(("", 0))
        host = self._environ.get(HOST) or socket.gethostname()
        port, key = listening.getsockname()[1], secrets.token_hex(32)
        self._place = f"{host}:{port}"
        joins = shlex.quote(f"{host} {port} {key}")
        words, steps = split_options(options)
        python = shlex.join([sys.executable, "-P", "-m", "himach.ranks.slurm.job_main", *steps])
        # Only this user can read the script, on the way to the node and there; a command line or a file may be public.
        try:
            self.job = SlurmJob.submit(words, f"#!/bin/sh\nexport {JOINS}={joins}\nexec {python}\n", self._environ)
        except BaseException:
            listening.close()
            raise
        self._listener = AdmissionListener(listening, key.encode(), self._admit)
        # Keep signals for the main thread, which sleeps: of two at once, the kernel gives one to another thread.
        signals = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self._listener.start()  # its thread also starts those that talk with the job
        signal.pthread_sigmask(signal.SIG_SETMASK, signals)
        detach_in_children(self)
        try:
            self.size = self.job.tasks()
        except BaseException:
            self.end()
            raise

    def do(self, work: bytes, keeps: bool = False) -> bytes:
        """Have all ranks do this work when the job has begun; return rank 0's result."""
        before, now = self._environ, common_environment()
        changes = {name: now.get(name) for name in sorted({*before, *now}) if before.get(name) != now.get(name)}
        request = (changes, os.getcwd(), read_umask(os.getpid()), keeps, work)
        with relay_signals(lambda signum: self._requests.put((MessageKind.COMMIT, b""))):
            try:
                self._await_start()
                self._requests.put((MessageKind.WORK, pickle.dumps(request)))
                kind, body = self._receive()
            except BaseException as stopped:
                self._stop(stopped, keeps)
                raise
        if kind is MessageKind.RESULT:
            return body
        error = pickle.loads(body) if kind is MessageKind.ERROR else None
        if error is None or (isinstance(error, RankError) and self.job.poll().is_over):
            error = self._lost_error()
            self.end()
        raise error

    def _stop(self, stopped: BaseException, keeps: bool) -> None:
        """End the work because of an error, and the job on SIGTERM, where ranks that keep pairs get time to do so."""
        terminated = isinstance(stopped, Terminated)
        if self._session is not None and (keeps or not terminated):
            self._requests.put((MessageKind.END if terminated else MessageKind.STOP, b""))
            if self._receive(ENDING)[0] is not None and not terminated:
                return
        self.end()

    def end(self) -> None:
        """End the job, in the queue or running."""
        if os.getpid() != self._process or self._ended:
            return
        self.alive, self._ended = False, True
        self._listener.close()
        if self._session is not None:
            self._session.close()
            deadline = time.monotonic() + ENDS
            while not self.job.poll().is_over and time.monotonic() < deadline:
                time.sleep(0.1)
        self.job.cancel()

    def detach(self) -> None:
        """Stop keeping the job alive, in a child forked from this process."""
        self.job.detach()
        if self._session is not None:
            self._session.detach()

    def _receive(self, seconds: float | None = None) -> tuple[MessageKind | None, bytes]:
        """Print what ranks print until their work or the job is over, or `seconds` are; return the last message."""
        streams = {MessageKind.OUT: sys.stdout, MessageKind.ERR: sys.stderr}
        while True:
            try:
                kind, body = self._events.get(timeout=seconds)
            except queue.Empty:
                return None, b""
            if kind not in streams:
                return kind, body
            with contextlib.suppress(BrokenPipeError, ValueError):  # the reader has gone
                pass_on(body.decode(), streams[kind])

    def _await_start(self) -> None:
        """Wait until the job has begun and joined."""
        pause, reason = FIRST_LOOK, ""
        while not self._joined.wait(pause):
            state = self.job.poll()
            if state.is_over:
                raise self._missed_error(state)
            if state.waits and state.reason != reason:
                reason = state.reason
                print(
                    f"himach: job {self.job.number} waits in the queue ({reason or state.name}); Ctrl-C cancels it",
                    file=sys.stderr,
                    flush=True,
                )
            pause = min(LAST_LOOK, 1.5 * pause)

    def _admit(self, descriptor: int, key: bytes) -> None:
        """Accept the job's connection, in the listener's thread; only the job has the key."""
        connection = socket.socket(fileno=descriptor)
        if self._session is not None:
            connection.close()
            return
        self._session = Session(connection, key, joined=False)
        for talk in (self._listen, self._speak):
            threading.Thread(target=talk, args=(self._session,), daemon=True).start()
        self._joined.set()

    def _listen(self, session: Session) -> None:
        while (message := session.receive()) is not None:
            self._events.put(message)
        self.alive = False
        self._events.put((None, b""))

    def _speak(self, session: Session) -> None:
        with contextlib.suppress(OSError):  # the job has gone, which the other thread notices
            while True:
                session.send(*self._requests.get())

    def _lost_error(self) -> HimachError:
        """Return the error for the end of a job that had joined."""
        deadline = time.monotonic() + COMPLETES
        while (state := self.job.poll()).name == "COMPLETING" and time.monotonic() < deadline:
            time.sleep(0.2)
        return self.job.end_error(state)

    def _missed_error(self, state: JobState) -> HimachError:
        """Return the error for a job that ended before it joined."""
        error = self.job.end_error(state)
        if state.exit_code == UNREACHABLE:
            return RankError(
                f"job {self.job.number} did not reach this machine at {self._place}; name another address of it by "
                f"${HOST}, at which the nodes reach any port"
            )
        return type(error)(f"{error}; its ranks never came. What it printed is in the file of --output=FILE, if given")
