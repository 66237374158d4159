"""Commands on several ranks: `started_elsewhere()` obeys their option -n.

`say_last()` is for the line that sums up what ranks did, wherever they were started.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import click

from himach.parallel.environment import promised_ranks, under_launcher
from himach.parallel.spawn import Started, launch

__all__ = ["say_last", "started_elsewhere"]

LAST = "last"  # file in the private folder


def started_elsewhere(ranks: int | None) -> bool:
    """Run this command on `ranks` ranks of this machine if that is asked for.

    Returns
    -------
    bool
        True if they have done the work; False if this process is to do it, alone or as one of several ranks.
    """
    started = Started.here()
    if ranks is not None and started is None:
        if under_launcher():
            if ranks != promised_ranks():
                raise click.UsageError(f"-n {ranks}, but the launcher started {promised_ranks()} ranks; leave -n out")
        elif ranks > 1:
            _start_ranks(ranks)
            return True
    if started is not None:
        started.hold_lifeline()
    return False


def _start_ranks(ranks: int) -> None:
    """Start the same command on several ranks; they find by themselves what the words of the command mean."""
    os.environ.setdefault("HIMACH_BEGAN", str(time.time()))
    with tempfile.TemporaryDirectory(prefix="himach-") as folder:
        launch([sys.executable, "-P", "-m", "himach", *sys.argv[1:]], ranks, Path(folder))
        last = Path(folder, LAST)
        if last.exists():
            print(last.read_text(encoding="utf-8"), file=sys.stderr)


def say_last(text: str) -> None:
    """Print `text` on standard error after all that was printed, which may still be on its way from another process."""
    started = Started.here()
    if started is None:
        print(text, file=sys.stderr)
    else:
        (started.folder / LAST).write_text(text, encoding="utf-8")
