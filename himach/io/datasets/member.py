"""`Member`: one simulation of an ensemble; `read_members()` reads them from a table or a pattern of file names."""

import csv
import glob
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from himach.errors import UsageError, nearest
from himach.io.trajectories.urls.url_names import is_url, strip_scheme

#: Columns of a table of members that are not metadata.
MEMBER_COLUMNS = ("name", "trajectory", "topology", "group", "start", "stop", "step")
#: Column names that joined tables use themselves.
RESERVED = ("member", "group")
#: Members named in a message.
MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
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

    Examples
    --------
    >>> members = [himach.Member(name, trajectory, topology, stop=2) for name in ("a", "b")]
    >>> himach.run("rmsd", ensemble=members, selection="name CA")["rmsd"].rows
    4
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


SEPARATOR = ";"  # between files of a trajectory in a cell
WHOLE = re.compile(r"-?(0|[1-9][0-9]*)")
DECIMAL = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]*)?([eE][-+]?[0-9]+)?|-?\.[0-9]+")
WILD = re.compile(r"\[[^\]/]+\]|\*+|\?")


def read_members(
    ensemble: str | os.PathLike[str] | Sequence[Member], topology: str | os.PathLike[str] | None = None
) -> list[Member]:
    """Return the members of an ensemble; the topology given is for those without one."""
    if not isinstance(ensemble, str | os.PathLike):
        members = [_with_topology(member, topology) for member in checked_members(ensemble)]
    elif WILD.search(os.fspath(ensemble)) and not os.path.exists(ensemble):
        members = _match_members(os.path.expanduser(ensemble), topology)
    else:
        members = [_with_topology(member, topology) for member in _read_table(Path(os.path.expanduser(ensemble)))]
    return checked_members(members)


def _with_topology(member: Member, topology: str | os.PathLike[str] | None) -> Member:
    if member.topology is not None or topology is None:
        return member
    text = os.fspath(topology)
    if WILD.search(text) and not os.path.exists(text):
        raise UsageError(
            f"topology {text}: a pattern goes with a pattern of an ensemble; give members their own topology in the "
            "column topology, or one file for all"
        )
    return replace(member, topology=topology)


def _read_table(path: Path) -> list[Member]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file, skipinitialspace=True)
            names = [name.strip() for name in rows.fieldnames or ()]
            rows.fieldnames = names
            table: list[Any] = [
                (rows.line_num, row) for row in rows if any(isinstance(x, str) and x.strip() for x in row.values())
            ]
    except OSError as error:
        raise UsageError(
            f"--ensemble {path} cannot be read ({error.strerror}); give a CSV file with the columns name and "
            "trajectory, or a pattern of trajectory files such as 'sims/*/traj.xtc'"
        ) from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(
            f"--ensemble {path} is no CSV file ({error}); a pattern of trajectory files has a '*' for what differs"
        ) from None
    _check_columns(path, names)
    if not table:
        raise UsageError(f"{path} has no members; each is a row below the names of the columns")
    metadata = {name: _numbers([row.get(name) or "" for _, row in table]) for name in names if _is_metadata(name)}
    for index, (line, row) in enumerate(table):  # in place, as there may be very many
        table[index] = _parse_member(path, line, row, {name: cells[index] for name, cells in metadata.items()})
    return table


def _check_columns(path: Path, names: Sequence[str]) -> None:
    if len(names) == 1 and re.search(r"[;\t]", names[0]):
        other = "';'" if ";" in names[0] else "tabs"
        raise UsageError(f"{path}: its cells are separated by {other}; write it with commas between them")
    for column in ("name", "trajectory"):
        if column not in names:
            raise UsageError(f"{path} has no column {column!r}{nearest(column, names)}; an ensemble needs one")
    duplicate = next((name for name in names if name and names.count(name) > 1), None)
    if duplicate is not None:
        raise UsageError(f"{path} has two columns {duplicate!r}; give one of them another name")


def _is_metadata(name: str) -> bool:
    return bool(name) and name not in MEMBER_COLUMNS


def _parse_member(path: Path, line: int, row: dict[Any, Any], metadata: dict[str, Any]) -> Member:
    if None in row or None in row.values():
        raise UsageError(f"{path}, line {line}: there are more or fewer cells than columns")
    cells = {name: text.strip() for name, text in row.items()}
    choice = {name: _integer(cells.get(name, ""), f"{path}, line {line}: {name}") for name in ("start", "stop", "step")}
    try:
        return Member(
            cells["name"],
            [_resolve_path(path, file.strip()) for file in cells["trajectory"].split(SEPARATOR) if file.strip()],
            sys.intern(_resolve_path(path, cells["topology"])) if cells.get("topology") else None,
            cells.get("group") or None,
            **choice,
            metadata=metadata,
        )
    except UsageError as error:
        raise UsageError(f"{path}, line {line}: {error}") from None


def _resolve_path(table: Path, file: str) -> str:
    """Return the path relative to the table's folder if that file exists, else the path as written."""
    if is_url(file):
        return file
    file = os.path.expanduser(strip_scheme(file))
    sibling = table.parent / file
    return str(sibling) if sibling.exists() else file


def _integer(text: str, label: str) -> int | None:
    if text and not WHOLE.fullmatch(text):
        raise UsageError(f"{label} is {text!r}: it is a whole number")
    return int(text) if text else None


def _numbers(texts: Sequence[str]) -> list[Any]:
    """Return cells as int or float if all are numbers (not 007, 1_1 or nan), else as text; empty ones as None."""
    cells = [text.strip() or None for text in texts]
    for kind, form in ((int, WHOLE), (float, DECIMAL)):
        if all(text is None or form.fullmatch(text) for text in cells):
            return [None if text is None else kind(text) for text in cells]
    return cells


def _match_members(pattern: str, topology: str | os.PathLike[str] | None) -> list[Member]:
    """Return a member for each file that a pattern matches, in natural order."""
    paths = sorted(glob.glob(pattern), key=_natural_key)
    if not paths:
        raise UsageError(f"--ensemble {pattern}: no file matches; the pattern is of trajectory files")
    parts = re.compile(_expression(pattern))
    members = []
    for path in paths:
        match = parts.fullmatch(path)
        stars = list(match.groups()) if match else [path]
        members.append(Member("-".join(filter(None, stars)) or path, path, _fill_pattern(topology, stars)))
    return members


def _natural_key(path: str) -> list[Any]:
    """Return a key that sorts r2 before r10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", path)]


def _expression(pattern: str) -> str:
    """Return a regular expression for a pattern, with a group for each wildcard."""
    expression, position = "", 0
    for wild in WILD.finditer(pattern):
        expression += re.escape(pattern[position : wild.start()]) + _wildcard_group(wild.group())
        position = wild.end()
    return expression + re.escape(pattern[position:])


def _wildcard_group(text: str) -> str:
    if text.startswith("["):
        return f"({text.replace('[!', '[^')})"
    return "([^/])" if text == "?" else "([^/]*)"


def _fill_pattern(topology: str | os.PathLike[str] | None, stars: Sequence[str]) -> str | None:
    """Return the topology of a member: fill in the wildcards of a pattern."""
    if topology is None:
        return None
    text = os.path.expanduser(topology)
    if not WILD.search(text) or os.path.exists(text):
        return text
    if len(WILD.findall(text)) != len(stars):
        raise UsageError(
            f"topology {text}: it has another number of '*' than the pattern of the ensemble; give both as many, "
            "or one file for all"
        )
    values = iter(stars)
    return WILD.sub(lambda _: next(values), text)
