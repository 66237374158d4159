"""A process that has run user's code becomes as it was: `Renewal`.

What a new process would not have goes after each run: modules of the user's, what they set in Python and in libraries,
figures, objects. Where something is left that cannot be taken back, such as a thread or a child, the process is spent:
it ends as it would have after a run of its own.
"""

from __future__ import annotations

import atexit
import builtins
import ctypes
import gc
import importlib
import linecache
import locale
import logging
import multiprocessing.context
import os
import random
import resource
import signal
import site
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType
from typing import Any

import MDAnalysis
import numpy as np

import himach

__all__ = ["Renewal"]

SYS_VALUES = (
    *("stdin", "stdout", "stderr", "argv", "path", "excepthook", "displayhook", "unraisablehook", "breakpointhook"),
    *("dont_write_bytecode", "tracebacklimit"),
)
LIMITS = tuple(value for name, value in vars(resource).items() if name.startswith("RLIMIT_"))
TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)


class Renewal:
    """The process as it is now, before any run, to be had again after each."""

    def __init__(self) -> None:
        self._environ = dict(os.environ)
        self._modules = set(sys.modules)
        self._roots = _installed() | _roots(self._modules)
        self._threads = set(threading.enumerate())
        self._children = set(_children())
        self._at_exit = _UsersAtExit(self._is_installed)
        self._settings = [(get(), set_) for get, set_ in SETTINGS]
        self._runs = 0
        gc.collect()
        gc.freeze()  # what is there stays, and need not be looked through after each run

    def finish_threads(self) -> None:
        """Wait for the threads that Python waits for at its end."""
        for thread in set(threading.enumerate()) - self._threads:
            if not thread.daemon:
                thread.join()

    def spent(self) -> bool:
        """Tell whether something is left that a new process would not have, and that goes with a process alone."""
        return bool(
            self._at_exit.registered
            or set(threading.enumerate()) - self._threads
            or set(_children()) - self._children
            or any(_is_compiled(sys.modules[name]) for name in self._users_modules())
        )

    def renew(self) -> None:
        """Take back what the run changed."""
        pyplot: Any = sys.modules.get("matplotlib.pyplot")
        if pyplot is not None:
            pyplot.close("all")
        for name in self._users_modules():
            del sys.modules[name]
        _forget_code()
        for before, set_ in self._settings:
            set_(before)
        _reset()
        if os.environ != self._environ:
            os.environ.clear()
            os.environ.update(self._environ)
        os.chdir("/")  # a directory of the user's can be unmounted meanwhile
        gc.collect()
        self._runs += 1
        if self._runs == 1:  # what the first run imported stays, too
            gc.freeze()
        with suppress(AttributeError):  # the C library is another
            ctypes.CDLL(None).malloc_trim(0)

    def _users_modules(self) -> list[str]:
        return [
            name
            for name, module in list(sys.modules.items())
            if name not in self._modules and not self._is_installed(_place(module))
        ]

    def _is_installed(self, place: str | None) -> bool:
        """Tell whether code lies where packages are installed; what lies nowhere is Python's own."""
        return place is None or place.startswith(tuple(self._roots))


class _UsersAtExit:
    """Notes whether code of the user's asks to be called at the end of the process."""

    def __init__(self, is_installed: Callable[[str], bool]) -> None:
        self.registered = False
        register = atexit.register

        def noting(function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Callable[..., Any]:
            if not is_installed(sys._getframe(1).f_code.co_filename):
                self.registered = True
            return register(function, *arguments, **keywords)

        atexit.register = noting


def _installed() -> set[str]:
    """Return the folders of installed packages, each ending with a slash."""
    folders = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders += [*site.getsitepackages(), site.getusersitepackages(), *himach.__path__]
    return {os.path.join(form, "") for folder in folders for form in (folder, os.path.realpath(folder))} | {"<frozen "}


def _roots(names: set[str]) -> set[str]:
    """Return the folders from which these modules were imported, such as a cluster's own in $PYTHONPATH."""
    tops = {name.partition(".")[0] for name in names} - {"__main__"}
    places = [_place(sys.modules[name]) for name in tops if name in sys.modules]
    folders = {os.path.dirname(place) for place in places if place is not None}
    packages = {os.path.dirname(folder) for folder in folders}
    return {os.path.join(folder, "") for folder in packages | folders if folder in sys.path}


def _place(module: ModuleType) -> str | None:
    """Return where a module's code lies; None for what is built in."""
    found = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), None)
    spec = getattr(module, "__spec__", None)
    return found if found is not None or getattr(spec, "origin", None) in ("built-in", "frozen") else ""


def _is_compiled(module: ModuleType) -> bool:
    return (_place(module) or "").endswith(tuple(EXTENSION_SUFFIXES))


def _children() -> Iterator[int]:
    """Give the processes that this one has started and that run."""
    for path in Path("/proc/self/task").glob("*/children"):
        for number in path.read_text().split():
            with suppress(OSError):
                if Path("/proc", number, "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
                    yield int(number)


def _forget_code() -> None:
    """Forget code that lies in files or cells, so that it is read again as it is then."""
    import cloudpickle.cloudpickle as by_value

    linecache.clearcache()
    importlib.invalidate_caches()
    # By these, classes of cells would come back as the last run left them.
    by_value._DYNAMIC_CLASS_TRACKER_BY_CLASS.clear()
    by_value._DYNAMIC_CLASS_TRACKER_BY_ID.clear()


def _reset() -> None:
    """Reset what a new process has no value of its own for."""
    for timer in TIMERS:
        signal.setitimer(timer, 0)
    signal.set_wakeup_fd(-1)
    sys.settrace(None)
    sys.setprofile(None)
    random.seed()
    np.random.seed()  # noqa: NPY002 - what it gives to all who draw from it
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    matplotlib: Any = sys.modules.get("matplotlib")
    if matplotlib is not None:
        matplotlib.rc_file_defaults()


def _dicts() -> list[tuple[dict[Any, Any], dict[Any, Any]]]:
    """Return the names that code can set for all, and what MDAnalysis knows of readers, parsers and attributes."""
    registries = [value for name, value in vars(MDAnalysis).items() if type(value) is dict and name != "__builtins__"]
    return [(kept, dict(kept)) for kept in (vars(builtins), vars(sys.modules["__main__"]), *registries)]


def _set_dicts(before: list[tuple[dict[Any, Any], dict[Any, Any]]]) -> None:
    for kept, content in before:
        if kept != content:
            kept.clear()
            kept.update(content)


def _handlers() -> dict[int, Any]:
    return {number: signal.getsignal(number) for number in signal.valid_signals()}


def _set_handlers(before: dict[int, Any]) -> None:
    for number, handler in before.items():
        if handler is not None and signal.getsignal(number) != handler:
            signal.signal(number, handler)


def _set_sys(before: dict[str, Any]) -> None:
    for name, value in before.items():
        setattr(sys, name, value)


def _set_limits(before: dict[int, tuple[int, int]]) -> None:
    for which, limits in before.items():
        if resource.getrlimit(which) != limits:
            resource.setrlimit(which, limits)


def _set_logging(before: tuple[int, list[logging.Handler], int]) -> None:
    root = logging.getLogger()
    root.setLevel(before[0])
    root.handlers[:] = before[1]
    logging.disable(before[2])


def _set_start_method(before: Any) -> None:
    """Set how multiprocessing starts processes; it can be set once only."""
    multiprocessing.context._default_context._actual_context = before  # type: ignore[attr-defined]


def _set_gc(before: tuple[bool, tuple[int, int, int]]) -> None:
    (gc.enable if before[0] else gc.disable)()
    gc.set_threshold(*before[1])


#: What returns a setting, and what sets it again.
SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], object]], ...] = (
    (_dicts, _set_dicts),
    (_handlers, _set_handlers),
    (
        lambda: signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        lambda mask: signal.pthread_sigmask(signal.SIG_SETMASK, mask),
    ),
    (lambda: {name: getattr(sys, name) for name in SYS_VALUES if hasattr(sys, name)}, _set_sys),
    (lambda: list(sys.meta_path), lambda before: sys.meta_path.__setitem__(slice(None), before)),
    (lambda: list(sys.path), lambda before: sys.path.__setitem__(slice(None), before)),
    (lambda: list(sys.path_hooks), lambda before: sys.path_hooks.__setitem__(slice(None), before)),
    (sys.getrecursionlimit, sys.setrecursionlimit),
    (sys.getswitchinterval, sys.setswitchinterval),
    (lambda: threading.excepthook, lambda hook: setattr(threading, "excepthook", hook)),
    (lambda: {which: resource.getrlimit(which) for which in LIMITS}, _set_limits),
    (lambda: os.sched_getaffinity(0), lambda before: os.sched_setaffinity(0, before)),
    (lambda: locale.setlocale(locale.LC_ALL), lambda before: locale.setlocale(locale.LC_ALL, before)),
    (
        lambda: (logging.getLogger().level, list(logging.getLogger().handlers), logging.root.manager.disable),
        _set_logging,
    ),
    (lambda: multiprocessing.context._default_context._actual_context, _set_start_method),  # type: ignore[attr-defined]
    (lambda: (gc.isenabled(), gc.get_threshold()), _set_gc),
    (np.geterr, lambda before: np.seterr(**before)),
    (np.geterrcall, np.seterrcall),
    (np.get_printoptions, lambda before: np.set_printoptions(**before)),
)
