"""What tests need of the machine: they skip, or fail where it is required, and say for want of what."""

import ctypes.util
import importlib.util
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import pytest

T = TypeVar("T")
_WANT = "for want of: "


def program(*names: str, of: str = "", required: str = "") -> str:
    """Return the path of the first of these programs; skip unless all are here.

    `of` names what they belong to. Where the environment variable `required` is set, the test fails instead.
    """
    paths = [shutil.which(name) for name in names]
    if absent := ", ".join(name for name, path in zip(names, paths, strict=True) if path is None):
        what = f"{absent} ({of})" if of else absent
        if required and os.environ.get(required):
            pytest.fail(f"{what} is required here and is not installed")
        skip(what)
    return str(paths[0])


def module(name: str) -> Any:
    """Import and return a module; skip where it is not installed."""
    if importlib.util.find_spec(name) is None:
        skip(name)
    return importlib.import_module(name)


def root(why: str) -> None:
    """Skip unless these tests run as root."""
    if os.geteuid() != 0:
        skip(f"root ({why})")


def mount_namespace() -> None:
    """Skip unless this process may start others that see a file in another's place."""
    root("to mount a file on another one")
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        skip("the right to mount a file on another one")


def fuse() -> None:
    """Skip unless a FUSE file system can be served here: mfusepy, libfuse, /dev/fuse."""
    module("mfusepy")
    if not any(ctypes.util.find_library(name) for name in ("fuse3", "fuse")):
        skip("libfuse (Debian's fuse3)")
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        skip("a /dev/fuse that this user may open")


def skip(what: str) -> NoReturn:
    """Skip for want of this."""
    pytest.skip(f"{_WANT}{what}", allow_module_level=True)


def missing(reasons: Iterable[str]) -> list[str]:
    """Return what tests were skipped for want of, each with their number, of the reasons of all skips."""
    wanted = Counter(found[1] for reason in reasons if (found := re.search(f"{re.escape(_WANT)}(.*)", reason)))
    return [f"{what} - {count} test{'s' if count > 1 else ''}" for what, count in sorted(wanted.items())]


def sample(cases: Iterable[T], number: int) -> list[T]:
    """Return so many of the cases, spread evenly from the first to the last; by night all of them."""
    cases = list(cases)
    if os.environ.get("HIMACH_NIGHTLY") or number >= len(cases):
        return cases
    return [cases[i * (len(cases) - 1) // max(number - 1, 1)] for i in range(number)]


@contextmanager
def small_disk(folder: Path, options: str) -> Iterator[Path]:
    """Mount a disk at a new folder, with options of tmpfs (``size=1M``); skip where that may not be done."""
    root("to mount a small disk")
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", folder], capture_output=True, check=False)
    if mounted.returncode:
        skip("the right to mount a small disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
