"""Atoms as a parameter of an analysis: `Atoms`, a choice of atoms without a Universe; `AtomGroup`, its type.

In Python such a parameter is an AtomGroup or a selection, on the command line a selection. Before setup(), every rank
selects the same atoms from the analysis's Universe.
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from himach.errors import UsageError

#: Prefix of a selection that is evaluated in every frame.
UPDATING = "updating "
#: Most indices shown of a group.
MOST_SHOWN = 10
#: Most ranges of indices in a selection; MDAnalysis scans all atoms for each.
MOST_RANGES = 100


class AtomGroup:
    """The type of a parameter that is a group of atoms: ``protein: himach.AtomGroup = "protein"``.

    ``MDAnalysis.AtomGroup`` means the same. In setup() and map() the attribute is an AtomGroup of the analysis's own
    Universe.
    """


def is_atom_group(hint: Any) -> bool:
    """Return whether an annotation is `AtomGroup` or that of MDAnalysis, without importing MDAnalysis."""
    if hint is AtomGroup:
        return True
    named = getattr(hint, "__module__", ""), getattr(hint, "__qualname__", "")
    return named == ("MDAnalysis.core.groups", "AtomGroup")


@dataclass(frozen=True)
class Atoms:
    """The atoms of a parameter."""

    selections: tuple[str, ...] = ()  # for MDAnalysis's ``select_atoms``; empty if there are indices
    indices: tuple[int, ...] | None = None  # of atoms in any order; None if there are selections
    updating: bool = False  # whether the selections are evaluated in every frame
    base: "Atoms | None" = None  # the atoms to select from; None for all
    n_atoms: int = field(default=0, compare=False)  # of the Universe of a given group; 0 if there was none

    @classmethod
    def from_value(cls, value: Any) -> "Atoms":
        """Return the atoms of a selection, an AtomGroup or a `value`; raise TypeError for anything else.

        An updating group whose selection refers to other groups raises UsageError.
        """
        if isinstance(value, Atoms):
            return value
        if isinstance(value, str):
            text = value.strip()
            updating = text.startswith(UPDATING)
            return cls((text.removeprefix(UPDATING).strip(),), updating=updating)
        if isinstance(value, dict) and value.keys() == {"updating", "of"}:
            base = None if value["of"] is None else cls.from_value(value["of"])
            return cls(tuple(map(str, value["updating"])), updating=True, base=base)
        if isinstance(value, list | tuple) and all(isinstance(index, int | np.integer) for index in value):
            return cls(indices=tuple(map(int, value)))
        if hasattr(value, "universe") and hasattr(value, "atoms"):
            return cls._of_group(value)
        raise TypeError

    @classmethod
    def _of_group(cls, group: Any) -> "Atoms":
        n_atoms = len(group.universe.atoms)
        if not hasattr(group, "_selection_strings"):  # fixed atoms, residues or segments
            return cls._of_indices(group.atoms.ix, n_atoms)
        selections = tuple(group._selection_strings)
        if any(re.search(r"\bgroup\b", selection) for selection in selections):
            raise UsageError(
                f"the updating group {' or '.join(selections)!r} names other groups, which a run cannot; select it in "
                "setup()"
            )
        covers_all = np.array_equal(group._base_group.ix, np.arange(n_atoms))
        base = None if covers_all else cls._of_group(group._base_group)
        return cls(selections, updating=True, base=base, n_atoms=n_atoms)

    @classmethod
    def _of_indices(cls, ix: Any, n_atoms: int) -> "Atoms":
        """Return atoms by a selection if it is short and keeps their order, else by indices."""
        breaks = np.flatnonzero(np.diff(ix) != 1) + 1
        if len(ix) and len(breaks) < MOST_RANGES and np.all(np.diff(ix) > 0):
            bounds = [(piece[0], piece[-1]) for piece in np.split(ix, breaks)]
            ranges = " ".join(f"{first}:{last}" if first < last else f"{first}" for first, last in bounds)
            return cls((f"index {ranges}",), n_atoms=n_atoms)
        return cls(indices=tuple(ix.tolist()), n_atoms=n_atoms)

    @property
    def value(self) -> Any:
        """Value for a JSON record: a selection as text, else a list of indices or a dict."""
        if self.indices is not None:
            return list(self.indices)
        if self.base is None and len(self.selections) == 1:
            return (UPDATING if self.updating else "") + self.selections[0]
        return {"updating": list(self.selections), "of": None if self.base is None else self.base.value}

    def __str__(self) -> str:
        return self.value if isinstance(self.value, str) else json.dumps(self.value)

    def __repr__(self) -> str:
        few = self.indices is None or len(self.indices) <= MOST_SHOWN
        return repr(self.value) if few else f"<{len(self.indices or ())} atoms>"

    def select_fixed(self, universe: Any, parameter: str) -> Any:
        """Return these atoms as `select` does; raise UsageError if they are updating."""
        if self.updating:
            raise UsageError(
                f"parameter {parameter}: {str(self)[:80]!r} selects other atoms in each frame, and here they must be "
                "the same in all: leave out 'updating', or write an analysis with a himach.AtomGroup as parameter"
            )
        return self.select(universe, parameter)

    def select(self, universe: Any, parameter: str) -> Any:
        """Return these atoms of a Universe as an AtomGroup; raise a UsageError that names the parameter if none fit."""
        from MDAnalysis.exceptions import SelectionError

        total = len(universe.atoms)
        what = f"parameter {parameter}: {str(self)[:80]!r}"
        if self.n_atoms not in (0, total):
            mismatch = f"is of a Universe of {self.n_atoms} atoms, and that of the run has {total}"
            raise UsageError(f"parameter {parameter}: the AtomGroup {mismatch}")
        if self.indices is not None:
            outside = [index for index in self.indices if not 0 <= index < total]
            if outside:
                raise UsageError(f"{what} has index {outside[0]}, and there are {total} atoms")
            group = universe.atoms[np.array(self.indices, dtype=np.int64)]
        else:
            among = universe.atoms if self.base is None else self.base.select(universe, parameter)
            try:
                group = among.select_atoms(*self.selections, updating=self.updating)
            except (SelectionError, ValueError, AttributeError) as error:
                why = "it ends where more is needed" if "'None'" in str(error) else str(error)
                if "Unknown selection token" in why or "Failed to find group" in why:
                    why += "; selections are MDAnalysis's, such as 'backbone', and 'group NAME' is one of --index FILE"
                raise UsageError(f"{what} cannot be used as a selection: {why}") from error
        if not len(group) and not self.updating:
            raise UsageError(f"{what} selects none of the {total} atoms; set {parameter} to what the topology has")
        return group
