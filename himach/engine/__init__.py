"""MapReduce over values: from what map() yields to what reduce() gets.

`run_pass()` is the engine. In reading order: `keys` and `values` (what may be yielded), `columns` and `stamps` (pairs
as they travel, and their frames), `emission` and `mapping` (from map() to blocks), `runs`, `spill`, `shuffle`,
`exchange`, `merge` and `series` (from blocks to one series per key), `reducing`, `results`, `job`, and `failures` (what
is told when a method of an analysis raises). The engine knows frames as values, and no molecules.
"""

from himach.engine.failures import failure
from himach.engine.job import Passed, run_pass
from himach.engine.results import Results
from himach.engine.runs import Memory
from himach.engine.series import Series

__all__ = ["Memory", "Passed", "Results", "Series", "failure", "run_pass"]
