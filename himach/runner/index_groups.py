"""Groups of a GROMACS index file (.ndx), by name in selections: ``group Backbone``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from himach.errors import UsageError


def name_groups(universe: Any, path: Path, numbers_by_name: Mapping[str, list[int]]) -> None:
    """Let selections of a Universe have the groups of an index file, of `read_groups`; raises UsageError."""
    groups, total = {}, len(universe.atoms)
    for name, numbers in numbers_by_name.items():
        if outside := [number for number in numbers if not 0 < number <= total]:
            raise UsageError(f"index {path}: group {name} has atom {outside[0]}, and the topology has {total} atoms")
        groups[name] = universe.atoms[[number - 1 for number in sorted(set(numbers))]]
    select = type(universe.atoms).select_atoms

    def select_atoms(atoms: Any, *selections: str, **options: Any) -> Any:
        return select(atoms, *selections, **{**groups, **options})

    type(universe.atoms).select_atoms = select_atoms  # a class of this Universe alone


def read_groups(path: Path) -> dict[str, list[int]]:
    """Return the atoms of each group, numbers from 1, by its name; the last of groups of one name counts."""
    groups: dict[str, list[int]] = {}
    name = ""
    try:
        for line in path.read_text().splitlines():
            text = line.partition(";")[0].strip()
            if text.startswith("[") and text.endswith("]"):
                name = text[1:-1].strip()
                groups[name] = []
            elif text:
                groups[name] += map(int, text.split())
    except OSError as error:
        raise UsageError(f"index {path}: {error.strerror}") from error
    except (ValueError, KeyError) as error:
        raise UsageError(f"index {path}: an index file has groups, '[ NAME ]' and numbers of atoms below it") from error
    return groups
