"""`Machine`: what a plan knows of a machine; `read_machine()` and `Machine.write()`, its file.

The file is TOML: a line ``name = value`` for each attribute that is known. ``himach bench machine`` writes one.
"""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path

from himach.errors import UsageError

__all__ = ["Machine", "read_machine"]


@dataclass(frozen=True)
class Machine:
    """A machine of equal nodes; what is None is not known.

    Attributes
    ----------
    cores
        Of a node.
    memory
        Bytes of a node.
    disk_read, disk_write
        Bytes a second from and to a node's local disk.
    disk
        Bytes of it that a store may take.
    network
        Bytes a second that a node sends and, at the same time, receives.
    latency
        Seconds from node to node of a message of few bytes.
    combine
        Bytes a second at which a core combines two bitmaps.
    origin
        Bytes a second that the origin gives to all nodes together.
    origin_at_once
        Bytes that it gives at once when it was idle.
    node_mtbf
        Mean seconds between two failures of one node.
    one_host
        Whether all nodes are on one host and share its cores, as virtual ones are.
    """

    cores: int | None = None
    memory: int | None = None
    disk_read: float | None = None
    disk_write: float | None = None
    disk: int | None = None
    network: float | None = None
    latency: float | None = None
    combine: float | None = None
    origin: float | None = None
    origin_at_once: float | None = None
    node_mtbf: float | None = None
    one_host: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "one_host":
                if not isinstance(value, bool):
                    raise UsageError(f"machine: one_host is true or false, not {value!r}")
            elif value is not None and not _is_amount(value):
                raise UsageError(f"machine: {field.name} is a number above 0, not {value!r}")
            elif field.name == "cores" and value is not None and value != int(value):
                raise UsageError(f"machine: cores is a whole number, not {value!r}")

    def write(self, path: Path) -> None:
        """Write it to a file."""
        given = [(field.name, getattr(self, field.name)) for field in fields(self)]
        lines = [f"{name} = {_toml(value)}" for name, value in given if value is not None]
        path.write_text("\n".join(["# of one node, bytes and seconds; see docs/plan.md", *lines, ""]))


def read_machine(path: Path) -> Machine:
    """Read a file of `Machine.write`, or one written by hand.

    Raises
    ------
    UsageError
        If there is no such file, it is no TOML, or it says what no machine has.
    """
    try:
        told = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{path}: no description of a machine ({why}); 'himach bench machine' writes one") from error
    known = [field.name for field in fields(Machine)]
    if strange := sorted(set(told) - set(known)):
        raise UsageError(f"{path}: a machine has no {', '.join(strange)}; it has {', '.join(known)}")
    return Machine(**told)


def _is_amount(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value > 0


def _toml(value: float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:.6g}" if isinstance(value, float) else str(value)
