"""Imports of every run, done by himach's own processes before they fork ranks or work: `preload()`.

More than half of the time of ``import MDAnalysis`` goes to modules that few analyses use, above all SciPy's. During the
import, empty modules stand in for them; the first access to an attribute of one imports the real module.
"""

import gc
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any

#: These import the others.
AHEAD = (
    "MDAnalysis",
    "himach.examples",
    "himach.result",
    "himach.runner.commands",
    "himach.runner.rank",
    "himach.runner.run",
    "himach.runner.scripts",
)
#: Modules that few runs use, with the names needed at once and the module that defines each.
UNUSED: dict[str, dict[str, str]] = {
    "MDAnalysis.lib.pkdtree": {},
    "asyncio": {},
    "filelock": {},
    "mmtf": {},
    "scipy.io": {"netcdf_file": "scipy.io._netcdf"},  # needed at once as a base class
    "scipy.io.netcdf": {},
    "scipy.special": dict.fromkeys(("gammaincinv", "ndtri", "stdtr", "stdtrit"), "scipy.special._ufuncs"),
}


def preload(own: bool = True) -> None:
    """Import the modules of `AHEAD`; `own`: in a process of himach's own, see `stand_ins()`."""
    missing = [name for name in AHEAD if name not in sys.modules]
    with stand_ins(own) if missing else nullcontext():  # once: what an earlier update left is to be collected
        for name in missing:
            import_module(name)


@contextmanager
def stand_ins(own: bool = True) -> Iterator[None]:
    """Replace modules that few runs use by stand-ins while other modules import them, without garbage collection.

    Collections while importing, later ones of what was imported, and the last one take a fifth of a short run. Only in
    a process of himach's `own` are there no later ones: what else a user's process has would never be collected.
    """
    collecting = gc.isenabled()
    gc.disable()
    for name, homes in UNUSED.items():
        package, _, rest = name.partition(".")
        spec = PathFinder.find_spec(package)
        if name not in sys.modules and spec is not None:
            module = sys.modules[name] = _StandIn(name)
            if homes:
                module.__path__ = [f"{folder}/{rest}" for folder in spec.submodule_search_locations or ()]
    try:
        yield
    finally:
        for name in UNUSED:
            _drop(name)
        if own:
            gc.freeze()
        if collecting:
            gc.enable()


def _drop(name: str) -> None:
    if isinstance(sys.modules.get(name), _StandIn):
        del sys.modules[name]


class _StandIn(ModuleType):
    def __getattr__(self, name: str) -> Any:
        home = UNUSED[self.__name__].get(name)
        if home is None:
            home = self.__name__
            _drop(home)
        return getattr(import_module(home), name)


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Delay Ctrl-C and SIGTERM: a module imported by half cannot be imported again; numpy may lose the exception."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    handlers = {number: handler for number, handler in handlers.items() if callable(handler)}
    arrived: list[int] = []
    for number in handlers:
        signal.signal(number, lambda number, place: arrived.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if arrived:
        signal.raise_signal(arrived[0])
