"""Origin of a file or a module: installed, himach's, or the user's own (a script, a module, a notebook's cell)."""

import functools
import os
import re
import sys
import sysconfig

#: Prefix of the module names of scripts, which every rank of a run loads.
SCRIPT_MODULE = "himach_script_"
#: Folder of himach's own files, which are not installed in a checkout.
HIMACH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")
#: File names of code without a file: modules built into Python, and code compiled by numpy.
FILELESS = ("<frozen", "<__array_function__")


@functools.lru_cache(4096)
def is_installed(file: str) -> bool:
    """Return whether a file belongs to an installed package or to Python."""
    if not file:
        return False
    folder, name = os.path.split(file)
    plain = os.path.isabs(file) and not os.path.islink(file)  # then only its folder must be resolved, once
    path = os.path.join(_real_path(folder), name) if plain else os.path.realpath(file)
    return bool(re.search(r"/(site|dist)-packages/", path)) or path.startswith(_folders())


@functools.lru_cache(4096)
def _real_path(folder: str) -> str:
    return os.path.realpath(folder)


def is_user_code(file: str) -> bool:
    """Return whether a file, as named in tracebacks, is the user's: a script, a module or a notebook's cell."""
    return not file.startswith((HIMACH, *FILELESS)) and not is_installed(file)


def own_modules() -> dict[str, str]:
    """Return the files of all loaded user modules, by name."""
    return {name: module_file(name) for name in sorted(sys.modules) if name != "__main__" and is_own(name)}


def is_own(module: str) -> bool:
    """Return whether a module is the user's; a program or a notebook, which cannot be imported, is, too."""
    if module == "__main__" or module not in sys.modules:
        return True
    return module.partition(".")[0] != "himach" and _is_own_file(module_file(module))


def is_library(module: str) -> bool:
    """Return whether a module is installed and not of the standard library."""
    return module.partition(".")[0] not in sys.stdlib_module_names and is_installed(module_file(module))


def module_file(module: str) -> str:
    """Return the file of a loaded module, "" if it has none."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return file if isinstance(file, str) else ""


def is_found(module: str) -> bool:
    """Return whether another process gets this very module by importing its name."""
    top = module.partition(".")[0]
    spec = next(filter(None, (finder.find_spec(top, None) for finder in sys.meta_path)), None)
    if spec is None or top not in sys.modules or top == "himach":  # of which a checkout has another copy, found first
        return spec is not None
    if spec.has_location and spec.origin:
        return os.path.realpath(spec.origin) == os.path.realpath(module_file(top))
    if spec.submodule_search_locations is None:
        return True
    # A namespace package: folders without __init__.py.
    folders = [os.path.join(os.path.realpath(folder), "") for folder in spec.submodule_search_locations]
    return os.path.realpath(module_file(module)).startswith(tuple(folders))


@functools.lru_cache(4096)
def _is_own_file(file: str) -> bool:
    return os.path.isfile(file) and not is_installed(file)


@functools.cache
def _folders() -> tuple[str, ...]:
    """Return the folders of installed packages and of the standard library."""
    paths = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return tuple(os.path.join(os.path.realpath(path), "") for path in paths)
