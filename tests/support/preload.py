"""A process that has imported what commands import, and forks for each command of the tests.

A test session starts it once (`support.commands`). A request is a JSON object (words, folder, environment) with the
three standard descriptors of the command; the answers are its process number and, at its end, its wait status. A
forked command runs what ``python WORDS`` would run, to the end of the interpreter.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import runpy
import select
import signal
import socket
import sys
import tempfile
import time
import warnings
from importlib import import_module
from types import ModuleType, TracebackType

import numpy as np

from himach.launch.preload import preload

#: But himach.cli.run, which takes the time when it is imported for that at which a command began.
MODULES = (
    "himach.checkpoint.checkpoint_run",
    "himach.checkpoint.listing",
    "himach.cli.cache",
    "himach.cli.pairs",
    "himach.cli.run_words",
    "himach.cli.stage",
    "himach.cli.trajectory",
    "himach.examples.common",
    "himach.launch.helper",
    "himach.launch.rank_pool",
    "himach.output.directory",
    "himach.output.figures.plots",
    "himach.output.show",
    "himach.planning.plan",
    "himach.report.files",
    "himach.runner.outcome.estimates",
    "himach.staging.stage",
    "MDAnalysisTests.datafiles",
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
    "numpy.ma",
    "scipy.interpolate",
    "scipy.optimize",
    "scipy.sparse",
    "scipy.spatial",
    "scipy.special",
    "scipy.stats",
)


def receive_request(listener: socket.socket) -> tuple[socket.socket, dict, list[int]]:
    """Wait for a client; return its connection, its request (none of a client that was killed) and its descriptors."""
    connection, _ = listener.accept()
    size, descriptors, _, _ = socket.recv_fds(connection, 8, 3)
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
        _, status = os.waitpid(child, 0)
        connection.sendall(status.to_bytes(4, "little"))
        os._exit(0)
    connection.close()
    for target, descriptor in enumerate(descriptors):
        os.dup2(descriptor, target)
    os.closerange(3, max(descriptors) + 1)
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
        if self.code is not None:
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
    request = serve(sys.argv[1])
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
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
