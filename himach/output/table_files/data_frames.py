"""Tables as pandas DataFrames: `to_frame()`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from himach.errors import UsageError
from himach.output.table import Table

if TYPE_CHECKING:
    import pandas


def to_frame(table: Table) -> pandas.DataFrame:
    """Return a table as a DataFrame, which has the units of columns as ``attrs["units"]``.

    Raises
    ------
    UsageError
        If pandas is not installed.
    """
    try:
        import pandas
    except ImportError:
        raise UsageError("to_frame() needs pandas, which is not installed: pip install 'himach[pandas]'") from None
    frame = pandas.DataFrame({name: cells[:] for name, cells in table.items()})
    frame.attrs["units"] = dict(table.units)
    return frame
