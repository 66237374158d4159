"""How narrow an interval shall be: `HalfWidth`, of ``--until``, and how much longer a simulation must be for it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from himach.errors import UsageError

__all__ = ["HalfWidth"]

FORM = re.compile(r"\s*(.+)\.([^.<]+?)\s*<\s*([^<]+)")
#: Fewest independent values or blocks of which an interval is made (`himach.uncertainty.mean`).
LEAST_N_EFF = 8


@dataclass(frozen=True)
class HalfWidth:
    """A column of a table and the half-width that its intervals shall be below.

    Attributes
    ----------
    table, column
        As the record of a run names them (its field ``uncertainty``).
    most
        In the unit of the column.
    """

    table: str
    column: str
    most: float

    @classmethod
    def of(cls, text: str) -> HalfWidth:
        """Return what a text such as ``rdf.g<0.02`` says.

        Raises
        ------
        UsageError
            If it is none.
        """
        found = FORM.fullmatch(text) if isinstance(text, str) else None
        try:
            most = math.nan if found is None else float(found[3])
        except ValueError:
            most = math.nan
        if found is None or not (math.isfinite(most) and most > 0):
            raise UsageError(
                f"until {text!r}: it is a table, a column and the half-width that its intervals shall be below, such "
                "as 'rdf.g<0.02'"
            )
        return cls(found[1], found[2], most)

    def __str__(self) -> str:
        return f"{self.table}.{self.column}<{self.most:g}"

    def seen(self, uncertainty: Mapping[str, Any]) -> float:
        """Return the half-width in what a run's record says of uncertainty, nan where there is no interval yet.

        Raises
        ------
        UsageError
            If the run makes no such interval.
        """
        widths = uncertainty.get(self.table, {}).get("half_widths") or {}
        if self.column not in widths:
            names = [f"{table}.{column}" for table, of in uncertainty.items() for column in of.get("half_widths") or {}]
            raise UsageError(
                f"until {self}: the run makes no such interval; it makes {', '.join(names)}"
                if names
                else f"until {self}: the run makes no intervals"
            )
        return float(math.nan if widths[self.column] is None else widths[self.column])

    def times_as_long(self, uncertainty: Mapping[str, Any]) -> tuple[float, str]:
        """Return how many times as long as that of a run a simulation must be, and why.

        Intervals shrink with the root of the time, once they are there. Those that become narrower because they are
        made of more blocks are not counted on.
        """
        width = self.seen(uncertainty)
        if math.isnan(width):
            n_eff = float(uncertainty[self.table]["n_eff"] or 0)
            longer = max(2.0, LEAST_N_EFF / n_eff) if n_eff else math.nan
            return longer, (
                f"{self.table}.{self.column} has no interval yet (N_eff {n_eff:.2g}): what is told is the least after "
                "which it may have one"
            )
        return max(1.0, (width / self.most) ** 2), f"intervals of {self.table}.{self.column} are within ±{width:.3g}"
