"""How narrow an interval shall be: `HalfWidth`, of ``--until``, and how much longer a simulation must be for it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from himach.errors import UsageError

FORM = re.compile(r"\s*(.+)\.([^.<]+?)\s*<\s*([^<]+)")
#: Fewest independent values or blocks of which an interval is made (`himach.uncertainty.mean`).
LEAST_N_EFF = 8


@dataclass(frozen=True)
class HalfWidth:
    """A column of a table, as a run's record names them, and the half-width that its intervals shall be below."""

    table: str
    column: str
    most: float

    @classmethod
    def parse(cls, text: str) -> HalfWidth:
        """Return what a text such as ``rdf.g<0.02`` says; raises UsageError if it is none."""
        parts = FORM.fullmatch(text) if isinstance(text, str) else None
        try:
            most = float(parts[3]) if parts else math.nan
        except ValueError:
            most = math.nan
        if parts is None or not 0 < most < math.inf:
            raise UsageError(
                f"until {text!r}: it is a table, a column and the half-width that its intervals shall be below, such "
                "as 'rdf.g<0.02'"
            )
        return cls(parts[1], parts[2], most)

    def __str__(self) -> str:
        return f"{self.table}.{self.column}<{self.most:g}"

    def observed(self, uncertainty: Mapping[str, Any]) -> float:
        """Return the half-width in a record's field ``uncertainty``, nan where there is no interval yet."""
        widths = uncertainty.get(self.table, {}).get("half_widths") or {}
        if self.column not in widths:
            names = [f"{table}.{key}" for table, entry in uncertainty.items() for key in entry.get("half_widths") or {}]
            missing = f"such interval; it makes {', '.join(names)}" if names else "intervals"
            raise UsageError(f"until {self}: the run makes no {missing}")
        return float(math.nan if widths[self.column] is None else widths[self.column])

    def times_as_long(self, uncertainty: Mapping[str, Any]) -> tuple[float, str]:
        """Return how many times as long as that of a run a simulation must be, and why.

        Intervals shrink with the root of the time, once they are there. Those that become narrower because they are
        made of more blocks are not counted on.
        """
        width, name = self.observed(uncertainty), f"{self.table}.{self.column}"
        if math.isfinite(width):
            return max(1.0, (width / self.most) ** 2), f"intervals of {name} are within ±{width:.3g}"
        n_eff = float(uncertainty[self.table]["n_eff"] or 0)
        longer = max(2.0, LEAST_N_EFF / n_eff) if n_eff else math.nan
        return longer, f"{name} has no interval yet (N_eff {n_eff:.2g}): this is the least after which it may have one"
