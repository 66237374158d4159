"""The style ``himach``: `drawn_in_style()` for himach's own figures, `add_when_imported()` for Matplotlib's users."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.abc import Loader

__all__ = ["NAME", "StyleLoader", "add_style", "drawn_in_style"]

NAME = "himach"
FILE = Path(__file__).with_name(f"{NAME}.mplstyle")


@contextmanager
def drawn_in_style() -> Iterator[None]:
    """Have Matplotlib's parameters as the style has them, but for those that the user has set to other values."""
    import matplotlib

    now, usual = matplotlib.rcParams, matplotlib.rcParamsDefault
    with matplotlib.rc_context({name: value for name, value in _style().items() if now[name] == usual[name]}):
        yield


def add_style(library: Any) -> None:
    """Add the style to those that Matplotlib knows by name, `matplotlib.style`."""
    library.library[NAME] = _style()
    library.available[:] = sorted({*library.available, NAME})


class StyleLoader:
    """Loads `matplotlib.style`, and adds the style to it."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    @staticmethod
    def found(name: str, path: Sequence[str] | None) -> ModuleSpec | None:
        """Return how `matplotlib.style` is to be loaded."""
        spec = PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            spec.loader = StyleLoader(spec.loader)  # type: ignore[assignment]
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Leave it to Python."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Run the module."""
        assert module.__spec__ is not None
        module.__loader__ = module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        add_style(module)


def _style() -> Any:
    """Return the parameters of the style."""
    import matplotlib

    return matplotlib.rc_params_from_file(FILE, use_default_template=False)
