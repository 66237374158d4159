"""A figure as files: `canvas()` makes an empty one, `encode_figure()` encodes it as PNG, SVG or PDF.

Figures are made without pyplot: no global state, no display. Equal figures are equal bytes, alone or with others.

The style ``himach``: `style_context()` for himach's own figures, `find_style_module()` for Matplotlib's users.
"""

import io
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

NAME = "himach"
FILE = Path(__file__).with_name(f"{NAME}.mplstyle")


@contextmanager
def style_context() -> Iterator[None]:
    """Set Matplotlib's parameters to the style, except those that the user has changed."""
    import matplotlib

    current, defaults = matplotlib.rcParams, matplotlib.rcParamsDefault
    with matplotlib.rc_context({name: value for name, value in _style().items() if current[name] == defaults[name]}):
        yield


def add_style(library: Any) -> None:
    """Register the style in `matplotlib.style`."""
    library.library[NAME] = _style()
    library.available[:] = sorted({*library.available, NAME})


def find_style_module(name: str, path: Sequence[str] | None) -> ModuleSpec | None:
    """Return the spec of `matplotlib.style`, which adds the style when it is loaded."""
    spec = PathFinder.find_spec(name, path)
    if spec is not None and spec.loader is not None:
        load = spec.loader.exec_module

        def load_with_style(module: ModuleType) -> None:
            load(module)
            add_style(module)

        spec.loader.exec_module = load_with_style  # type: ignore[method-assign]
    return spec


def _style() -> Any:
    """Return the parameters of the style."""
    import matplotlib

    return matplotlib.rc_params_from_file(FILE, use_default_template=False)


ON_SCREEN = 150  # pixels per inch
PNG_LEVEL = 3  # of zlib: files are a twelfth larger than with the default 6, and take half the time
#: Matplotlib's metadata on itself and the time, left out of files.
OMITTED: dict[str, dict[str, None]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


def canvas(size: tuple[float, float] | None = None) -> Any:
    """Return an empty figure of a size in inches (default: the style's), which notebooks show without pyplot."""
    from matplotlib import rcParams
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    class Picture(Figure):  # type: ignore[misc, unused-ignore]
        def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
            return png(self), {"width": width_on_screen(self)}

        def savefig(self, fname: Any, *, metadata: Any = None, **options: Any) -> None:
            kind = options.get("format") or os.path.splitext(str(fname))[1][1:]
            if omitted := {**OMITTED.get(kind, {}), **(metadata or {})}:
                options["metadata"] = omitted
            if kind == "png":
                options["pil_kwargs"] = {"compress_level": PNG_LEVEL, **(options.get("pil_kwargs") or {})}
            with style_context():
                super().savefig(fname, **options)

    with style_context():
        save_dpi = rcParams["savefig.dpi"]
        dpi = rcParams["figure.dpi"] if save_dpi == "figure" else save_dpi
        picture = Picture(figsize=size, dpi=dpi, layout="constrained")
    FigureCanvasAgg(picture)
    return picture


def encode_figure(picture: Any, formats: Iterable[str]) -> list[bytes]:
    """Encode a figure in each format, with one layout so that all look alike."""
    engine = picture.get_layout_engine()
    with style_context():
        if engine is not None:
            engine.execute(picture)
            picture.set_layout_engine("none")
        try:
            return [_encode(picture, kind) for kind in formats]
        finally:
            if engine is not None:
                picture.set_layout_engine(engine)


def png(picture: Any) -> bytes:
    """Return a figure as a PNG."""
    return encode_figure(picture, ["png"])[0]


def width_on_screen(picture: Any) -> int:
    """Return the width in pixels at which a figure's letters are as large as those of a page."""
    return round(ON_SCREEN * float(picture.get_size_inches()[0]))


def _encode(picture: Any, kind: str) -> bytes:
    buffer = io.BytesIO()
    if kind == "png" and hasattr(picture.canvas, "print_png"):
        # savefig() draws twice, to repeat the layout.
        picture.canvas.print_png(buffer, metadata=OMITTED[kind], pil_kwargs={"compress_level": PNG_LEVEL})
    else:
        picture.savefig(buffer, format=kind)
    return buffer.getvalue()
