"""MDAnalysis without what it imports for later: `import_mdanalysis()`, for processes that are himach's own.

Two thirds of the time of ``import MDAnalysis`` go to packages that few analyses use: of SciPy, trees of neighbours and
a class for files; of numpy, its tests. They become modules that run when somebody asks for what they have. Who imports
them, before or after, sees what they always had.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.abc import Loader

__all__ = ["import_mdanalysis", "uncollected"]

#: Modules that wait while MDAnalysis is imported. Of some one thing is needed at once, which another module has.
LATER: dict[str, dict[str, str]] = {
    "MDAnalysis.lib.pkdtree": {},
    "asyncio": {},
    "filelock": {},
    "mmtf": {},
    "numpy.f2py": {},  # of SciPy's special functions, which look at all that numpy has
    "numpy.testing": {},
    "scipy": {},
    "scipy.io": {"netcdf_file": "scipy.io._netcdf"},  # a base class
    "scipy.io.netcdf": {},
    "scipy.special": dict.fromkeys(("gammaincinv", "ndtri", "stdtr", "stdtrit"), "scipy.special._ufuncs"),
    "sqlite3": {},
}
#: Modules of a package that waits, which those others import, and which import nothing of it.
APART = {
    f"scipy.special.{name}" for name in ("_ellip_harm_2", "_gufuncs", "_sf_error", "_special_ufuncs", "_ufuncs_cxx")
}
#: Functions that MDAnalysis imports from them by name, and calls later.
FUNCTIONS = {("numpy.testing", "assert_equal")}

_locks = {name: threading.RLock() for name in LATER}
_running: set[str] = set()  # modules whose code runs at this moment


def import_mdanalysis() -> None:
    """Import MDAnalysis, unless it is imported; what it does not need yet is run when it is asked for."""
    if "MDAnalysis" in sys.modules:
        return
    sys.meta_path.insert(0, _Finder())
    _Finder.waits = True
    try:
        with uncollected():
            import_module("MDAnalysis")
            import_module("numpy.f2py")
            import_module("scipy.special")
    finally:
        _Finder.waits = False


@contextmanager
def uncollected() -> Iterator[None]:
    """Have Python look for no garbage while modules are imported: they are none, and much to look through."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


class _Finder:
    """Finds the modules that wait; and has a package run before a module of it that does not wait is imported."""

    waits = False

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        parent = sys.modules.get(name.rpartition(".")[0])
        if _Finder.waits and name in LATER:
            spec = PathFinder.find_spec(name, path)
            if spec is not None and spec.loader is not None:
                spec.loader = _Waiting(spec.loader)  # type: ignore[assignment]
            return spec
        if isinstance(parent, _Later) and name not in APART and name not in LATER[parent.__name__].values():
            parent._run()
        return None


class _Waiting:
    """In place of a module's loader: makes a module that waits for it."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Leave it to Python."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Have the module wait."""
        assert module.__spec__ is not None
        module.__loader__ = module.__spec__.loader = self._loader
        module.__class__ = _Later


class _Later(ModuleType):
    """A module that runs when something is asked for that it has not yet."""

    def _run(self) -> None:
        with _locks[self.__name__]:  # other threads wait until it has run
            if type(self) is not _Later or self.__name__ in _running:
                return
            assert self.__spec__ is not None
            assert self.__spec__.loader is not None
            _running.add(self.__name__)
            try:
                self.__spec__.loader.exec_module(self)
                self.__class__ = ModuleType  # type: ignore[assignment]
            finally:
                _running.discard(self.__name__)

    def __getattr__(self, name: str) -> Any:
        elsewhere = LATER[self.__name__].get(name)
        if elsewhere is not None:
            return getattr(import_module(elsewhere), name)
        if (self.__name__, name) in FUNCTIONS and _Finder.waits:
            return _called_later(self, name)
        self._run()
        return ModuleType.__getattribute__(self, name)

    def __dir__(self) -> list[str]:
        self._run()
        return list(ModuleType.__dir__(self))


def _called_later(module: ModuleType, name: str) -> Any:
    def call(*arguments: Any, **keywords: Any) -> Any:
        return getattr(module, name)(*arguments, **keywords)

    return call
