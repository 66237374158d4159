"""MapReduce over values: from what map() yields to what reduce() gets.

`run_pass()` is the engine. In reading order: `keys` and `values` (what may be yielded), `columns` (pairs as they
travel), `emission` and `mapping` (from map() to blocks), `runs`, `exchange`, `merge` and `series` (from blocks to one
series per key), `reducing`, `results`, `job`, and `failures` (what is told when a method of an analysis raises). The
engine knows frames as values, and no molecules.
"""

from himach.engine.failures import failure
from himach.engine.job import Passed, run_pass
from himach.engine.results import Results
from himach.engine.series import Series

__all__ = ["Passed", "Results", "Series", "failure", "run_pass"]
