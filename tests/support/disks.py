"""Disks of a test's own, in memory, that are soon full."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support import needs


@contextmanager
def small_disk(folder: Path, options: str) -> Iterator[Path]:
    """Mount a disk at a new folder, with options of tmpfs (``size=1M``); skip where that may not be done."""
    needs.root("to mount a small disk")
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", folder], capture_output=True, check=False)
    if mounted.returncode:
        needs.skip("the right to mount a small disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
