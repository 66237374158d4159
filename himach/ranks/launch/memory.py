"""Memory limits of ranks and pairs, from the node or its control group, and the directory for the rest."""

import os
from pathlib import Path

#: Smallest sensible limit in bytes: one rank's buffers take more.
MIN_LIMIT_BYTES = 1 << 20
CGROUPS = Path("/sys/fs/cgroup")


def node_memory() -> int:
    """Return the memory that this node, or the control group of this process, allows, in bytes."""
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_group_limits()])


def default_memory() -> int:
    """Return the default memory for pairs in bytes: a quarter of `node_memory()`."""
    return node_memory() // 4


def scratch_directory() -> Path:
    """Return where pairs beyond memory go: ``$TMPDIR``, else ``$SLURM_TMPDIR``, else ``/var/tmp`` (a disk)."""
    return Path(os.environ.get("TMPDIR") or os.environ.get("SLURM_TMPDIR") or "/var/tmp")


def _group_limits() -> list[int]:
    """Return the limits that are set for the control groups of this process, of either version."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    limits = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            root, name = CGROUPS, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = CGROUPS / "memory", "memory.limit_in_bytes"
        else:
            continue
        group = Path(path.lstrip("/"))
        limits += [_limit(root / folder / name) for folder in (group, *group.parents)]
    return [limit for limit in limits if limit is not None]


def _limit(file: Path) -> int | None:
    try:
        text = file.read_text().strip()
    except OSError:  # the group is of another mount, or has no limit
        return None
    return int(text) if text.isdigit() else None
