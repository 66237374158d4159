"""`Member`: one simulation of an ensemble."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from himach.errors import UsageError
from himach.io.remote.url import strip_scheme

#: Columns of a table of members that are not metadata.
MEMBER_COLUMNS = ("name", "trajectory", "topology", "group", "start", "stop", "step")
#: Column names that joined tables use themselves.
RESERVED = ("member", "group")
#: Members named in a message.
MOST_NAMED = 5


@dataclass(frozen=True)
class Member:
    """One simulation of an ensemble.

    Parameters
    ----------
    name
        By which tables, errors and ``result.members`` call it.
    trajectory
        A trajectory file, several that follow one another, a frame directory, the name of a dataset, or, of a run, a
        running engine, ``imd://HOST:PORT``.
    topology
        Topology file; None: that of the run, else what the trajectory brings.
    group
        What is compared with other groups, such as ``"wild type"``; None: it is in none.
    start, stop, step
        Choice of its frames; None: as the run has it.
    metadata
        Further cells, by name, that stand beside its name in tables: a temperature, a seed.

    Raises
    ------
    UsageError
        If there is no name or no trajectory, the group is no text, or metadata go by the names ``member`` or ``group``.
    """

    name: str
    trajectory: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
    topology: str | os.PathLike[str] | None = None
    group: str | None = None
    start: int | None = field(default=None, kw_only=True)
    stop: int | None = field(default=None, kw_only=True)
    step: int | None = field(default=None, kw_only=True)
    metadata: Mapping[str, Any] = field(default_factory=dict, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise UsageError(f"a member of an ensemble has a name, a text; {self.name!r} is none")
        if not isinstance(self.trajectory, str | os.PathLike | Sequence):
            raise UsageError(f"member {self.name}: a trajectory is a file or a list of files, not {self.trajectory!r}")
        if not self.trajectories:
            raise UsageError(f"member {self.name} has no trajectory")
        if self.topology is not None:
            object.__setattr__(self, "topology", strip_scheme(self.topology))
        if self.group is not None and not isinstance(self.group, str):
            raise UsageError(f"member {self.name}: a group is a text such as '300 K', not {self.group!r}")
        for name in RESERVED:
            if name in self.metadata:
                raise UsageError(f"member {self.name}: metadata cannot be called {name!r}, tables have such a column")

    @property
    def trajectories(self) -> list[Path]:
        """The files of the trajectory, in order."""
        single = isinstance(self.trajectory, str | os.PathLike)
        paths = [self.trajectory] if single else self.trajectory
        return [Path(strip_scheme(path)) for path in paths if os.fspath(path)]  # type: ignore[arg-type, union-attr]

    @property
    def choice(self) -> dict[str, Any]:
        """What of `start`, `stop` and `step` it has of its own."""
        values = {"start": self.start, "stop": self.stop, "step": self.step}
        return {name: value for name, value in values.items() if value is not None}


def truncate(texts: Sequence[str], between: str = ", ") -> str:
    """Return the first few texts, joined, and the number of others."""
    rest = f" and {len(texts) - MOST_NAMED:,} more" if len(texts) > MOST_NAMED else ""
    return between.join(texts[:MOST_NAMED]) + rest


def checked_members(members: Sequence[Member]) -> list[Member]:
    """Return members after checking their types and that names are unique."""
    if isinstance(members, Member) or not isinstance(members, Iterable):
        raise UsageError(
            f"an ensemble is a list of himach.Member, the path of a CSV file or a pattern, not {type(members).__name__}"
        )
    names = set()
    for member in members:
        if not isinstance(member, Member):
            raise UsageError(f"an ensemble is of himach.Member, not of {type(member).__name__}")
        if member.name in names:
            raise UsageError(
                f"two members of the ensemble are called {member.name!r}; each needs a name of its own, as a table has"
            )
        names.add(member.name)
    if not names:
        raise UsageError("the ensemble has no members")
    return list(members)
