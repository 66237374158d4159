"""What a dataset is, in plain values: `describe()`, for ``himach info``."""

from __future__ import annotations

from typing import Any

from himach.errors import UsageError
from himach.io.origin import Origin

__all__ = ["describe"]


def describe(origin: Origin) -> dict[str, Any]:
    """Describe a dataset.

    Parameters
    ----------
    origin
        The opened dataset.

    Returns
    -------
    dict
        ``format`` (one name, or one for each file where they differ), ``files``, ``frames``, ``atoms``, ``bytes``,
        ``first_time``, ``last_time`` and ``dt`` (ps; dt None where uneven), ``box`` (of the first frame: Å and degrees,
        or None), ``velocities``, ``forces``, ``topology`` (the file that the dataset brings, or None), ``fingerprint``,
        ``warnings`` (what was said on opening).
    """
    first = next(origin.read([0]))
    last_time = float(origin.times([origin.n_frames - 1])[0])
    kinds = list(dict.fromkeys(origin.kinds))
    return {
        "format": kinds[0] if len(kinds) == 1 else kinds,
        "files": list(origin.paths),
        "frames": origin.n_frames,
        "atoms": origin.n_atoms,
        "first_time": first.time,
        "last_time": last_time,
        "dt": origin.dt(range(origin.n_frames)),
        "box": None if first.box is None else [float(value) for value in first.box],
        "velocities": origin.has_velocities,
        "forces": origin.has_forces,
        "topology": _topology(origin),
        "fingerprint": origin.fingerprint,
        "warnings": list(origin.warnings),
    }


def _topology(origin: Origin) -> str | None:
    from himach.io.topology import own_topology

    try:
        return own_topology(origin)
    except UsageError:
        return None
