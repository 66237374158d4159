"""`Machine`: a machine's properties for a plan; `read_machine()` and `Machine.write()` read and write its file.

The file is TOML: a line ``name = value`` for each known attribute. ``himach bench machine`` writes one.
"""

import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from himach.errors import UsageError
from himach.files import read_toml


@dataclass(frozen=True)
class Machine:
    """A machine of equal nodes; what is None is not known.

    Attributes
    ----------
    cores, memory
        Of a node: cores, bytes of memory.
    disk_read, disk_write, disk
        Of a node's local disk: bytes a second from and to it; bytes that a store may take.
    network, latency, combine
        Bytes a second that a node sends and, at the same time, receives; seconds of a message of few bytes; bytes a
        second at which a core combines two bitmaps.
    origin, origin_at_once
        Bytes a second that the origin gives to all nodes together; bytes that it gives at once when it was idle.
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
    one_host: bool = False

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if name == "one_host":
                kind, fits = "true or false", isinstance(value, bool)
            else:
                number = not isinstance(value, bool) and isinstance(value, (int, float)) and 0 < value < math.inf
                whole = name == "cores" and number
                kind = "a whole number" if whole else "a number above 0"
                fits = value is None or (number and (not whole or value == int(value)))
            if not fits:
                raise UsageError(f"machine: {name} is {kind}, not {value!r}")

    def write(self, path: Path) -> None:
        """Write it to a file."""
        lines = [f"{name} = {_toml(value)}" for name, value in asdict(self).items() if value is not None]
        path.write_text("\n".join(["# of one node, bytes and seconds; see docs/plan.md", *lines, ""]))


def read_machine(path: Path) -> Machine:
    """Read a machine file, from `Machine.write` or written by hand."""
    settings = read_toml(path, f"machine {path}, as 'himach bench machine' writes it")
    names = [field.name for field in fields(Machine)]
    if unknown := sorted(set(settings) - set(names)):
        raise UsageError(f"{path}: a machine has no {', '.join(unknown)}; it has {', '.join(names)}")
    return Machine(**settings)


def _toml(value: float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:.6g}" if isinstance(value, float) else str(value)
