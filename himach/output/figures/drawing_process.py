"""``python -m himach.output.figures.drawing_process``: draws what `begin_drawing()` sends, alone and once."""

from __future__ import annotations

import io
import os
import pickle
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import IO, Any

from himach.analysis import Analysis, state_without_universe
from himach.launch.code_pickle import CodePickler, by_value
from himach.launch.preload import stand_ins
from himach.output.figures.drawer import Drawer
from himach.output.figures.picture import canvas
from himach.output.figures.plots import drawn
from himach.parallel.process_exit import set_parent_death_signal

#: What plot() does not call, whose modules (MDAnalysis, SciPy) need not be imported where it is called.
LEFT_OUT = {"setup", "atoms", "map", "combine", "reduce", "reduce_many", "finish", "then", "methods"}
LEFT_OUT |= {"__dict__", "__weakref__"}
#: Bytes of what is drawn elsewhere, at most: a copy of it is made.
MOST_SENT = 1 << 26


def begin_drawing(
    drawer: Drawer | None, plots: Sequence[tuple[str, Analysis, Any]], formats: Sequence[str] = ("png",)
) -> Callable[[], list[list[bytes] | None]]:
    """Have the process draw each plot alone; return what waits for it and gives their files."""
    nothing: list[list[bytes] | None] = [None] * len(plots)
    if drawer is None or not plots or "matplotlib" in sys.modules:
        return lambda: nothing
    try:
        with _opened(drawer.requests, os.O_WRONLY) as pipe:
            pickle.dump((list(sys.path), formats, [_packed(*plot) for plot in plots]), pipe)
    except OSError:
        return lambda: nothing

    def finish() -> list[list[bytes] | None]:
        try:
            with _opened(drawer.answers, os.O_RDONLY) as pipe:
                return list(pickle.load(pipe))
        except (OSError, EOFError, pickle.UnpicklingError):
            return nothing

    return finish


def _opened(path: str, way: int) -> IO[bytes]:
    number = os.open(path, way | os.O_NONBLOCK)  # else it waits for a process that has ended
    os.set_blocking(number, True)
    return open(number, "wb" if way else "rb")


def _packed(label: str, analysis: Analysis, outcome: Any) -> bytes | None:
    """Return a plot as bytes, with the code of the analysis that it may call; None if it cannot travel."""
    classes = [cls for cls in type(analysis).__mro__ if cls not in Analysis.__mro__]
    body = {name: value for cls in reversed(classes) for name, value in vars(cls).items() if name not in LEFT_OUT}
    body |= {"__module__": "__main__", "__getattribute__": _attribute}
    modules = [sys.modules[name] for name in {cls.__module__ for cls in classes} - {"__main__"}]
    file = _Bounded()
    try:
        state = state_without_universe(analysis)
        twin: Any = object.__new__(type(type(analysis).__name__, (Analysis,), body))
        twin.__dict__.update({name: _Late(state.get(name, b"")) for name in vars(analysis)})
        with by_value(modules):
            CodePickler(file).dump((label, twin, outcome))
    except Exception:
        return None
    return file.getvalue()


class _Late(bytes):
    """An attribute of an analysis that is unpickled when plot() asks for it: some import much."""


def _attribute(analysis: Analysis, name: str) -> Any:
    own = object.__getattribute__(analysis, "__dict__")
    for late in [*own] if name == "__dict__" else [name]:
        if isinstance(own.get(late), _Late):
            own[late] = pickle.loads(own[late])
    return object.__getattribute__(analysis, name)


class _Bounded(io.BytesIO):
    """A file that takes `MOST_SENT` bytes."""

    def write(self, data: Any) -> int:
        if self.tell() + memoryview(data).nbytes > MOST_SENT:
            raise OverflowError("too much to be sent")
        return super().write(data)


def main() -> None:
    """Import what plots call, wait for them, and draw them."""
    set_parent_death_signal(os.getppid())
    answers, sys.stdout = sys.stdout.buffer, io.StringIO()
    sys.stdout.close()  # who prints gets an error
    canvas().subplots()
    with stand_ins():
        import_module("himach.examples.drawing")
    sys.path[:], formats, packed = pickle.load(sys.stdin.buffer)
    sys.stderr = sys.stdout
    pickle.dump([None if plot is None else _drawn(plot, formats) for plot in packed], answers)


def _drawn(packed: bytes, formats: Sequence[str]) -> list[bytes] | None:
    try:
        with warnings.catch_warnings(record=True) as heard:
            files = drawn(pickle.loads(packed), formats)
    except Exception:
        return None
    return None if heard else files


if __name__ == "__main__":
    main()
