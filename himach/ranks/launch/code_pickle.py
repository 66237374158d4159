"""Pickling of code that another process cannot import: `CodePickler`; `by_value` pickles the code of modules."""

import contextlib
import io
import sys
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, ModuleType
from typing import Any, ClassVar

import cloudpickle

from himach.user_code import is_found


def dumps(value: Any) -> bytes:
    """Return a value as bytes for `pickle.loads`, with the code that it needs."""
    file = io.BytesIO()
    CodePickler(file).dump(value)
    return file.getvalue()


@contextlib.contextmanager
def by_value(modules: Iterable[ModuleType]) -> Iterator[None]:
    """Pickle the code of these modules instead of their names, while the context lasts."""
    modules = list(modules)
    try:
        for module in modules:
            cloudpickle.register_pickle_by_value(module)
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def unknown_elsewhere(names: Iterable[str]) -> list[ModuleType]:
    """Return the modules that another process cannot import by name, such as a test runner's or a plug-in's."""
    modules = sorted({*names} - {"__main__", "builtins"})
    return [sys.modules[name] for name in modules if name in sys.modules and not is_found(name)]


def _reduced(code: CodeType) -> tuple[Any, ...]:
    """Keep the file name, which cloudpickle since 3.1.3 replaces."""
    build, arguments = cloudpickle.Pickler.dispatch_table[CodeType](code)
    return _rebuilt, (code.co_filename, build, arguments)


def _rebuilt(file: str, build: Callable[..., CodeType], arguments: tuple[Any, ...]) -> CodeType:
    return build(*arguments).replace(co_filename=file)


class CodePickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle's pickler, except that code keeps its file name."""

    dispatch_table: ClassVar = ChainMap({CodeType: _reduced}, cloudpickle.Pickler.dispatch_table)
