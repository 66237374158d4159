"""`EngineAddress`: the address ``imd://HOST:PORT`` of a running engine that sends its frames."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import parse_qs

from himach.errors import UsageError

#: Factors that convert an engine's times, velocities and forces to ps, Å/ps and kJ/(mol Å); lengths are in Å.
UNITS = {
    "imdv3": (1.0, 1.0, 1.0),
    "metal": (1.0, 1.0, 96.48533212331),  # ps, Å/ps, eV/Å
    "real": (1e-3, 1e3, 4.184),  # fs, Å/fs, kcal/(mol Å)
}
SCHEME = "imd:/"  # Path() removes one of the slashes
FORM = re.compile(r"imd:/{1,2}(?P<host>[^/:?]+):(?P<port>\d+)(?:\?(?P<query>.*))?")


@dataclass(frozen=True)
class EngineAddress:
    """An engine that sends its frames by IMDv3."""

    host: str
    port: int
    units: str = "imdv3"

    @classmethod
    def parse(cls, trajectory: str | os.PathLike[str]) -> "EngineAddress | None":
        """Return the engine that a trajectory's name denotes; None if it denotes no engine."""
        text = os.fspath(trajectory)
        if not text.startswith(SCHEME):
            return None
        match = FORM.fullmatch(text)
        query = parse_qs(match["query"] or "") if match else {}
        if match is None or not 0 < int(match["port"]) < 65536 or query.keys() - {"units"}:
            raise UsageError(f"{text}: an engine is named as imd://HOST:PORT, or imd://HOST:PORT?units=real")
        units = query.get("units", ["imdv3"])[-1]
        if units not in UNITS:
            raise UsageError(f"{text}: there are units={', units='.join(UNITS)}; those of LAMMPS's 'units' command")
        return cls(match["host"], int(match["port"]), units)

    def __str__(self) -> str:
        return f"imd://{self.host}:{self.port}" + (f"?units={self.units}" if self.units != "imdv3" else "")


def is_engine(trajectories: Sequence[str | os.PathLike[str]]) -> bool:
    """Tell whether one of these names denotes an engine."""
    return any(os.fspath(path).startswith(SCHEME) for path in trajectories)
