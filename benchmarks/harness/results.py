"""The results of benchmarks that go by names, kept in a folder: all figures as JSON, and the tables as Markdown."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from himach.errors import UsageError, nearest
from himach.files import write_bytes

__all__ = ["chosen", "keep", "kept", "trial"]

FULL_REPEATS = 3


def chosen(what: str, only: Sequence[str], known: Mapping[str, object]) -> Sequence[str]:
    """Return the names asked for, or all; one that is not known is a UsageError."""
    for name in only:
        if name not in known:
            raise UsageError(f"there is no {what} {name!r}{nearest(name, known)}; there are {', '.join(known)}")
    return only or list(known)


def trial(frames: int | None, repeats: int) -> bool:
    """Return whether frames or turns are fewer than bars are meant for."""
    return frames is not None or repeats < FULL_REPEATS


def kept(out: Path, name: str) -> dict[str, Any]:
    """Return what an earlier run has kept in this folder."""
    path = out / f"{name}.json"
    saved: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return saved


def keep(
    out: Path,
    name: str,
    saved: dict[str, Any],
    names: Sequence[str],
    measure: Callable[[str], None],
    page: Callable[[dict[str, Any]], str],
) -> None:
    """Have each measured into `saved`, keep all after each, so that a run can be ended, and print the page."""
    out.mkdir(parents=True, exist_ok=True)
    for each in names:
        print(f"{each} ...", file=sys.stderr, flush=True)
        measure(each)
        write_bytes(out / f"{name}.json", f"{json.dumps(saved, indent=1)}\n".encode())
        write_bytes(out / f"{name}.md", f"{page(saved)}\n".encode())
    print(page(saved))
