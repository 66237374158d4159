"""``python -m himach.output.figures.drawing_process``: draws what `start_drawing()` sends, alone and once."""

import io
import os
import pickle
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import IO, Any

from himach.analysis import Analysis, state_without_universe
from himach.output.figures.drawer import Drawer
from himach.output.figures.picture import canvas
from himach.output.figures.plots import render_plot, thin_tables
from himach.ranks.launch.code_pickle import CodePickler, by_value
from himach.ranks.launch.preload import stand_ins
from himach.ranks.process_exit import set_parent_death_signal

#: Members that plot() does not call: without them their modules (MDAnalysis, SciPy) need not be imported.
LEFT_OUT = {"setup", "atoms", "map", "combine", "reduce", "reduce_many", "finish", "then", "methods"}
LEFT_OUT |= {"__dict__", "__weakref__"}
#: Largest plot sent to the process, in bytes, because it is copied.
MOST_SENT = 1 << 26


def start_drawing(
    drawer: Drawer | None, plots: Sequence[tuple[str, Analysis, Any]], formats: Sequence[str] = ("png",)
) -> Callable[[], list[list[bytes] | None]]:
    """Send plots to the drawing process; return a function that waits for the files of each."""
    no_files: list[list[bytes] | None] = [None] * len(plots)
    if drawer is None or not plots or "matplotlib" in sys.modules:
        return lambda: no_files
    try:
        with _open(drawer.requests, os.O_WRONLY) as pipe:
            pickle.dump((list(sys.path), formats, [_pack(*plot) for plot in plots]), pipe)
    except OSError:
        return lambda: no_files

    def finish() -> list[list[bytes] | None]:
        try:
            with _open(drawer.answers, os.O_RDONLY) as pipe:
                return list(pickle.load(pipe))
        except (OSError, EOFError, pickle.UnpicklingError):
            return no_files

    return finish


def _open(path: str, flags: int) -> IO[bytes]:
    descriptor = os.open(path, flags | os.O_NONBLOCK)  # else it waits for a process that has ended
    os.set_blocking(descriptor, True)
    return open(descriptor, "wb" if flags else "rb")


def _pack(label: str, analysis: Analysis, outcome: Any) -> bytes | None:
    """Pickle a plot with the code that plot() may call; None if it cannot be pickled."""
    classes = [cls for cls in type(analysis).__mro__ if cls not in Analysis.__mro__]
    body = {name: value for cls in reversed(classes) for name, value in vars(cls).items() if name not in LEFT_OUT}
    body |= {"__module__": "__main__", "__getattribute__": _attribute}
    modules = [sys.modules[name] for name in {cls.__module__ for cls in classes} - {"__main__"}]
    file = _LimitedBuffer()
    try:
        state = state_without_universe(analysis)
        copy: Any = object.__new__(type(type(analysis).__name__, (Analysis,), body))
        copy.__dict__.update({name: _LazyAttribute(state.get(name, b"")) for name in vars(analysis)})
        with by_value(modules):
            CodePickler(file).dump((label, copy, thin_tables(outcome)))
    except Exception:
        return None
    return file.getvalue()


class _LazyAttribute(bytes):
    """A pickled attribute of an analysis; it is unpickled when plot() reads it, as some import much."""


def _attribute(analysis: Analysis, name: str) -> Any:
    attributes = object.__getattribute__(analysis, "__dict__")
    for attribute in [*attributes] if name == "__dict__" else [name]:
        if isinstance(attributes.get(attribute), _LazyAttribute):
            attributes[attribute] = pickle.loads(attributes[attribute])
    return object.__getattribute__(analysis, name)


class _LimitedBuffer(io.BytesIO):
    """A buffer of at most `MOST_SENT` bytes."""

    def write(self, data: Any) -> int:
        if self.tell() + memoryview(data).nbytes > MOST_SENT:
            raise OverflowError("too much to be sent")
        return super().write(data)


def main() -> None:
    """Import what plots need, wait for plots, and draw them."""
    set_parent_death_signal(os.getppid())
    answers, sys.stdout = sys.stdout.buffer, io.StringIO()
    sys.stdout.close()  # printing raises an error
    with stand_ins():
        vars(import_module("matplotlib.artist"))["kwdoc"] = lambda artist: ""  # docstrings cost a fifth of the import
        canvas().subplots()
        import_module("himach.examples.drawing")
    sys.path[:], formats, packed = pickle.load(sys.stdin.buffer)
    sys.stderr = sys.stdout
    pickle.dump([None if plot is None else _render(plot, formats) for plot in packed], answers)


def _render(packed: bytes, formats: Sequence[str]) -> list[bytes] | None:
    try:
        with warnings.catch_warnings(record=True) as caught:
            files = render_plot(pickle.loads(packed), formats)
    except Exception:
        return None
    return None if caught else files


if __name__ == "__main__":
    main()
