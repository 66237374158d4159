"""Plots drawn by a process that has Matplotlib already, `begin_drawing()`, where it does `draw_when_asked()`."""

from __future__ import annotations

import gc
import io
import pickle
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from typing import TYPE_CHECKING, Any

from himach.analysis import Analysis, state_without_universe
from himach.output.figures.picture import canvas
from himach.output.figures.plots import drawn

if TYPE_CHECKING:
    from himach.launch.helper import Helper

__all__ = ["begin_drawing", "draw_when_asked"]

#: What plot() does not call, whose modules (MDAnalysis, SciPy) need not be imported where it is called.
LEFT_OUT = frozenset(
    {
        "setup",
        "atoms",
        "map",
        "combine",
        "reduce",
        "reduce_many",
        "reduce_blocks",
        "finish",
        "then",
        "methods",
        "__dict__",
        "__weakref__",
    }
)
#: Bytes of what is drawn elsewhere, at most: a copy of it is made.
MOST_SENT = 1 << 26


def begin_drawing(
    helper: Helper | None, plots: Sequence[tuple[str, Analysis, Any]], formats: Sequence[str] = ("png",)
) -> Callable[[], list[list[bytes] | None]]:
    """Have a helper that does `draw_when_asked` draw each plot alone; return what waits for it and gives their files.

    None stands for what is left to do: what does not travel, and what raises, warns or prints, so that it does so here.
    So is all of it where Matplotlib was imported here: the user's code may have set its style.
    """
    nothing: list[list[bytes] | None] = [None] * len(plots)
    if helper is None or not plots or "matplotlib" in sys.modules:
        return lambda: nothing
    request = pickle.dumps((list(sys.path), list(formats), [_packed(*plot) for plot in plots]))
    wait = helper.begin(request)

    def finish() -> list[list[bytes] | None]:
        answer = wait()
        return nothing if answer is None else list(pickle.loads(answer))

    return finish


def draw_when_asked(wait: Callable[[], bytes], formats: Sequence[str] = ("png",)) -> bytes:
    """Import Matplotlib, ready for these formats, and wait for what `begin_drawing` asks for."""
    gc.disable()  # a short life, of which most is imports
    import himach.launch.code_pickle  # noqa: F401 (what is packed needs it)

    artist = import_module("matplotlib.artist")
    vars(artist)["kwdoc"] = lambda artist: ""  # what Matplotlib's methods say of themselves: a quarter of its import
    canvas().subplots()
    import_module("himach.examples.drawing")  # what plots of built-ins call
    import_module("PIL.Image").preinit()  # what makes a PNG
    for kind in {*formats} - {"png"}:
        import_module(f"matplotlib.backends.backend_{kind}")
    sys.path[:], formats, packed = pickle.loads(wait())
    return pickle.dumps([None if one is None else _drawn(one, formats) for one in packed])


def _packed(label: str, analysis: Analysis, outcome: Any) -> bytes | None:
    """Return a plot as bytes, with the code of the analysis that it may call; None if it cannot travel."""
    from himach.launch.code_pickle import CodePickler, by_value

    given = Analysis.__mro__
    classes = [cls for cls in type(analysis).__mro__ if cls not in given]
    body = {name: value for cls in reversed(classes) for name, value in vars(cls).items() if name not in LEFT_OUT}
    modules = [sys.modules[name] for name in {cls.__module__ for cls in classes} - {"__main__"}]
    file = _Bounded()
    try:
        drawer: Any = object.__new__(type(type(analysis).__name__, (Analysis,), {**body, "__module__": "__main__"}))
        with by_value(modules):
            CodePickler(file).dump((label, drawer, state_without_universe(analysis), outcome))
    except Exception:
        return None
    return file.getvalue()


def _drawn(packed: bytes, formats: Sequence[str]) -> list[bytes] | None:
    said = io.StringIO()
    try:
        with redirect_stdout(said), redirect_stderr(said), warnings.catch_warnings(record=True) as heard:
            label, drawer, state, outcome = pickle.loads(packed)
            drawer.__class__ = _with_state(type(drawer), state)
            files = drawn((label, drawer, outcome), formats)
    except Exception:
        return None
    return None if heard or said.getvalue() else files


def _with_state(cls: type[Any], state: Mapping[str, bytes]) -> type[Any]:
    """Return a class whose objects have these attributes, each unpickled when it is asked for: some import much."""

    def everything(drawer: Any) -> dict[str, Any]:
        for name in state:
            getattr(drawer, name)
        return _own(drawer)

    attributes = {name: _Attribute(name, packed) for name, packed in state.items()}
    return type(cls.__name__, (cls,), {**attributes, "__module__": cls.__module__, "__dict__": property(everything)})


def _own(drawer: Any) -> dict[str, Any]:
    own: dict[str, Any] = Analysis.__dict__["__dict__"].__get__(drawer)
    return own


class _Attribute:
    """An attribute of an object that is unpickled when it is asked for."""

    def __init__(self, name: str, packed: bytes) -> None:
        self.name = name
        self.packed = packed

    def __get__(self, drawer: Any, owner: type[Any]) -> Any:
        return _own(drawer).setdefault(self.name, pickle.loads(self.packed))


class _Bounded(io.BytesIO):
    """A file that takes `MOST_SENT` bytes."""

    def write(self, data: Any) -> int:
        if self.tell() + memoryview(data).nbytes > MOST_SENT:
            raise OverflowError("too much to be sent")
        return super().write(data)
