"""Required width of intervals: `HalfWidth`, of ``--until``, and the length of simulation that it needs."""

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from himach.errors import UsageError
from himach.uncertainty.block_mean import LEAST_N_EFF

FORM = re.compile(r"\s*(.+)\.([^.<]+?)\s*<\s*([^<]+)")


@dataclass(frozen=True)
class HalfWidth:
    """A column of a table, as named in a run's record, and the upper bound of its intervals' half-width."""

    table: str
    column: str
    most: float

    @classmethod
    def parse(cls, text: str) -> "HalfWidth":
        """Parse a text such as ``rdf.g<0.02``; raises UsageError if it is invalid."""
        parts = FORM.fullmatch(text) if isinstance(text, str) else None
        with suppress(ValueError):
            if parts and 0 < (most := float(parts[3])) < math.inf:
                return cls(parts[1], parts[2], most)
        raise UsageError(
            f"until {text!r}: it is a table, a column and the half-width that its intervals shall be below, such as "
            "'rdf.g<0.02'"
        )

    def __str__(self) -> str:
        return f"{self.table}.{self.column}<{self.most:g}"

    def observed(self, uncertainty: Mapping[str, Any]) -> float:
        """Return the half-width in a record's field ``uncertainty``, nan if there is no interval yet."""
        widths = uncertainty.get(self.table, {}).get("half_widths") or {}
        if self.column not in widths:
            names = [f"{table}.{key}" for table, entry in uncertainty.items() for key in entry.get("half_widths") or {}]
            missing = f"such interval; it makes {', '.join(names)}" if names else "intervals"
            raise UsageError(f"until {self}: the run makes no {missing}")
        return float(math.nan if widths[self.column] is None else widths[self.column])

    def times_as_long(self, uncertainty: Mapping[str, Any]) -> tuple[float, str]:
        """Return the required length of simulation relative to a run's, and a text with the reason.

        Existing intervals shrink with the square root of the time. Narrowing due to more blocks is ignored.
        """
        width, name = self.observed(uncertainty), f"{self.table}.{self.column}"
        if math.isfinite(width):
            return max(1.0, (width / self.most) ** 2), f"intervals of {name} are within ±{width:.3g}"
        n_eff = float(uncertainty[self.table]["n_eff"] or 0)
        longer = max(2.0, LEAST_N_EFF / n_eff) if n_eff else math.nan
        return longer, f"{name} has no interval yet (N_eff {n_eff:.2g}): this is the least after which it may have one"
