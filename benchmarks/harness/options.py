"""What benchmarks' commands have in common: options, counts such as ``1e9``, another himach beside this one."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

__all__ = ["BESIDE", "DIRECTORY", "OUT", "PATH", "RANKS", "beside", "count", "only", "repeats"]

TURNS = 3


PATH = click.Path(path_type=Path)
RANKS = click.option("--ranks", type=click.IntRange(min=1), default=2, show_default=True, help="Ranks of himach.")
DIRECTORY = click.option("--directory", type=PATH, metavar="DIR", help="Scratch.  [/var/tmp]")
OUT = click.option("--out", "-o", type=PATH, default="himach-bench", metavar="DIR", help="Results.", show_default=True)
BESIDE = click.option("--beside", metavar="PYTHON", help="Time the himach of this other Python too, in turn.")


def count(text: str) -> int:
    """Return the number of things that a text such as ``1e9`` says."""
    return int(float(text))


def repeats(default: int) -> Callable[[Any], Any]:
    """Let a benchmark take ``--repeats``."""
    return click.option("--repeats", type=click.IntRange(min=1), default=default, show_default=True)


def only(what: str) -> Callable[[Any], Any]:
    """Let a benchmark take ``--only``, some of its parts."""
    return click.option("--only", multiple=True, metavar="NAME", help=f"Run this alone: {what}.")


def beside(name: str) -> Callable[[Any], Any]:
    """Let the benchmark of this name take ``--beside PYTHON``: that Python's himach and this one run it in turns."""

    def add(main: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(main)
        def run(*values: Any, beside: str | None = None, **options: Any) -> None:
            if beside is None:
                main(*values, **options)
                return
            from . import versions

            given = {key: value if isinstance(value, tuple) else (value,) for key, value in options.items()}
            words = [
                f"--{key}" if each is True else f"--{key}={each}"
                for key, several in given.items()
                for each in several
                if each is not None and each is not False
            ]
            versions.beside(beside, [name, *words], TURNS)

        return BESIDE(run)

    return add
