"""A process that has imported what himach's processes import, and forks for each command and for the ranks of tests.

A test session starts it once (`support.commands`). `ForkedProcess` stands in for `subprocess.Popen` there and in all
that it forks. A request is a JSON object with the standard descriptors of the process, which runs ``python WORDS``; the
answers are its number and its wait status.
"""

import atexit
import contextlib
import gc
import io
import json
import os
import resource
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping
from importlib import import_module
from inspect import signature
from types import ModuleType, TracebackType
from typing import Any

import numpy as np

from himach.ranks.launch.preload import preload

MODULES = (
    "himach.checkpoint.reuse", "himach.checkpoint.listing", "himach.cli", "himach.examples.common",
    "himach.output.figures.drawer", "himach.ranks.launch.pool", "himach.output.directory",
    "himach.output.figures.plots", "himach.planning.plan", "himach.report.report_files", "himach.runner.estimates",
    "himach.staging.stage", "MDAnalysisTests.datafiles", "matplotlib.backends.backend_agg", "matplotlib.figure",
    "hypothesis", "numpy.ma", "pytest", "scipy.interpolate", "scipy.optimize", "scipy.sparse", "scipy.spatial",
    "scipy.special", "scipy.stats",
)  # fmt: skip


#: Variables that an interpreter or a library reads while it starts, or that tests look for in /proc: a process with
#: others of these is started afresh.
AT_START = ("PYTHON", "LANG", "LC_", "LD_", "MALLOC", "OMP_", "OPENBLAS_", "MKL_", "MPL", "MDA", "COVERAGE")
AT_START += ("HIMACH_TEST_MARK",)
#: Variables of those that a forked process heeds.
HEEDED = {"PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONIOENCODING"}
#: Signals that a process ignores where the one that started it does.
INHERITED = (signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGTERM)
WAIT = os.waitpid
#: Number of a forked process -> where its status will come. Kept by a module that is no test's: himach compares what
#: map() could reach of those before and after.
vars(subprocess).setdefault("_forked", {})
_options = signature(subprocess.Popen._execute_child)  # type: ignore[attr-defined]


class Forked(list[str]):
    """Words of a command of Python's that may be forked though it runs no module of himach."""


class ForkedProcess(subprocess.Popen):
    """A process that is forked if it runs a module of himach or its words are `Forked`; else it is started as ever."""

    path: str  # of the socket of the process that forks
    environment: dict[str, str]  # in which it was started
    limits: tuple

    @classmethod
    def forks(cls) -> bool:
        """Whether there is a process that forks."""
        return True

    @classmethod
    def can_fork(cls, environ: Mapping[str, str]) -> bool:
        """Whether a process of this environment can be forked."""
        if not cls.forks():
            return False
        changed = {name for name, value in {*cls.environment.items()} ^ {*environ.items()}} - HEEDED
        return not any(name.startswith(AT_START) for name in changed) and cls.limits == limits()

    def _serves(self, words: list[str], options: dict[str, Any], environ: dict[str, str]) -> bool:
        before = words[: words.index("-c")] if "-c" in words else words
        himach = "-m" in words and words[words.index("-m") + 1].partition(".")[0] == "himach"
        if words[0] != sys.executable or not (himach or isinstance(options["args"], Forked)):
            return False
        if options["preexec_fn"] or options["pass_fds"] or {"-X", "-I", "-S"} & {word[:2] for word in before}:
            return False
        return self.can_fork(environ)

    def _execute_child(self, *given: Any) -> None:
        """Have it forked, unless it is to be started as ever."""
        options = _options.bind(self, *given).arguments
        several = isinstance(options["args"], list | tuple)
        words = [*map(os.fspath, options["args"])] if several else [""]
        environ = dict(options["env"] or os.environ)
        if not self._serves(words, options, environ):
            super()._execute_child(*given)  # type: ignore[misc]
            return
        pipes = [options[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")]
        standard = [number if pipe < 0 else pipe for number, pipe in enumerate((pipes[0], pipes[3], pipes[5]))]
        request = {"words": words[1:], "folder": os.fspath(options["cwd"] or os.getcwd()), "environment": environ}
        request |= {"session": options["start_new_session"], "umask": umask()}
        request["ignored"] = [number for number in INHERITED if signal.getsignal(number) == signal.SIG_IGN]
        text = json.dumps(request).encode()
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(self.path)
            socket.send_fds(connection, [len(text).to_bytes(8, "little")], standard)
            connection.sendall(text)
            self.pid = int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "little")
            subprocess._forked[self.pid] = connection
            self._child_created = True
        finally:
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def poll(self) -> int | None:
        """Return its exit code if it has ended."""
        if self.returncode is None and self.pid in subprocess._forked:
            process, status = wait_for(self.pid, os.WNOHANG)
            if not process:
                return None
            self.returncode = os.waitstatus_to_exitcode(status)
        return super().poll()


def wait_for(process: int, options: int) -> tuple[int, int]:
    """Do what `os.waitpid` does, of processes that another one has forked, too."""
    if process not in subprocess._forked:
        return WAIT(process, options)
    connection = subprocess._forked[process]
    if not select.select([connection], [], [], 0 if options & os.WNOHANG else None)[0]:
        return 0, 0
    with connection:
        del subprocess._forked[process]
        return process, int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "little")


def stand_in(kind: type[ForkedProcess]) -> None:
    """Have processes of this one forked where they can be."""
    subprocess.Popen = kind  # type: ignore[misc]
    os.waitpid = wait_for


def umask() -> int:
    with open("/proc/self/status") as status:
        return int(next(line.split()[1] for line in status if line.startswith("Umask:")), 8)


def limits() -> tuple:
    """Return what else a process has from the one that started it, but is not handed on to one that is forked."""
    kinds = sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})
    names = ("mnt", "pid", "user", "net")
    spaces = tuple(os.readlink(f"/proc/self/ns/{name}") for name in names)
    return os.geteuid(), frozenset(os.sched_getaffinity(0)), spaces, *map(resource.getrlimit, kinds)


def receive_request(listener: socket.socket) -> tuple[socket.socket, dict, list[int]]:
    """Wait for a client; return its connection, its request (none of a client that was killed) and its descriptors."""
    connection, _ = listener.accept()
    size, descriptors, _, _ = socket.recv_fds(connection, 8, 4)
    length = int.from_bytes(size, "little")
    text = connection.recv(length, socket.MSG_WAITALL) if length else b""
    return connection, json.loads(text) if text and len(text) == length else {}, descriptors


def serve(path: str) -> dict:
    """Fork for each request until standard input ends; return in the child that is to run a command."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(64)
        print("ready", flush=True)
        while True:
            if sys.stdin in select.select([sys.stdin, listener], [], [])[0]:
                os._exit(0)  # the test session has ended
            connection, request, descriptors = receive_request(listener)
            if request and os.fork() == 0:
                break
            connection.close()
            for descriptor in descriptors:
                os.close(descriptor)
    # A process between: it waits for the command, so that the server does nothing but fork.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if child := os.fork():
        for descriptor in descriptors:
            os.close(descriptor)
        connection.sendall(child.to_bytes(4, "little"))
        if request.get("bound"):  # to the life of who asked
            ended = os.pidfd_open(child)
            if ended not in select.select([ended, connection], [], [])[0]:
                os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        with contextlib.suppress(OSError):  # who asked has ended
            connection.sendall(status.to_bytes(4, "little"))
        os._exit(0)
    connection.close()
    if len(descriptors) > 3:  # that of PMI
        request["environment"]["PMI_FD"] = str(os.dup(descriptors[3]))
    for target, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, target)
    for descriptor in descriptors:
        os.close(descriptor)
    if request.get("session"):
        os.setsid()
    os.umask(request["umask"])
    for number in request["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    return request


def run(words: list[str]) -> None:
    """Run as ``python WORDS`` does: -P and -W, then -c, -m or a script."""
    sys.orig_argv, safe = [sys.executable, *words], False
    while words[0] in ("-P", "-W"):
        if words[0] == "-P":
            safe, words = True, words[1:]
        else:
            sys.warnoptions.append(words[1])
            warnings._processoptions(words[1:2])
            words = words[2:]
    kind, *rest = words
    module = sys.modules["__main__"] = ModuleType("__main__")
    module.__dict__.update(__builtins__=__builtins__, __annotations__={})
    sys.path[0:0] = os.environ.get("PYTHONPATH", "").split(os.pathsep) if os.environ.get("PYTHONPATH") else []
    if kind == "-m":
        sys.path[0:0] = [] if safe else [os.getcwd()]
        sys.argv = ["-m", *rest[1:]]
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.path[0:0] = [] if safe else [""]
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec", dont_inherit=True), vars(module))
    else:
        sys.path[0:0] = [] if safe else [os.path.dirname(os.path.abspath(kind))]
        sys.argv = [kind, *rest]
        path = os.path.abspath(kind)
        with open(path, "rb") as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)
        module.__dict__.update(__file__=path, __cached__=None)
        exec(code, vars(module))


class Ending:
    """Leaves the destruction of all that was imported out, which takes a tenth of a second."""

    code: int | None = None

    def __call__(self) -> None:
        """End the process behind all other functions of `atexit`; with what cannot be flushed the interpreter deals."""
        mpi = sys.modules.get("mpi4py.MPI")
        finalizes = mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized()  # behind all of Python's
        if self.code is not None and not finalizes:
            with contextlib.suppress(OSError, ValueError):
                for stream in (sys.stdout, sys.stderr):
                    if stream is not None:
                        stream.flush()
                os._exit(self.code)


def show_error(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Print a traceback without the lines of this file."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename == __file__:
        traceback = traceback.tb_next
    sys.__excepthook__(kind, error.with_traceback(traceback), traceback)


def main() -> None:
    """Import, serve, and run one command in each child."""
    if os.fork():
        os._exit(0)  # tests look at the children of their process
    ending = Ending()
    atexit.register(ending)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # what is between a command and this process ends unseen
    preload()
    for name in MODULES:
        import_module(name)
    tempfile.tempdir = None
    gc.freeze()
    ForkedProcess.path, ForkedProcess.environment, ForkedProcess.limits = sys.argv[1], dict(os.environ), limits()
    request = serve(sys.argv[1])
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    stand_in(ForkedProcess)
    if "PYTHONUNBUFFERED" in os.environ:  # ranks; these are written to in place of what the interpreter opened
        for number, name in ((1, "stdout"), (2, "stderr")):
            binary = open(number, "wb", buffering=0, closefd=False)  # noqa: SIM115 - to the end of the process
            errors = "strict" if name == "stdout" else "backslashreplace"
            stream = io.TextIOWrapper(binary, os.environ.get("PYTHONIOENCODING"), errors, write_through=True)
            setattr(sys, name, stream)
    time.tzset()
    np.random.seed()  # noqa: NPY002 - all commands would draw the same numbers
    sys.excepthook = show_error
    try:
        run(request["words"])
        ending.code = 0
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            ending.code = (ended.code or 0) & 0xFF
        raise


if __name__ == "__main__":
    main()
