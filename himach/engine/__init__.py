"""MapReduce over values: from what map() yields to what reduce() gets.

`run_pass()` is the engine. In reading order: `pairs/` (pairs as columns: from what map() yields to blocks), `mapping`
(the map loop), `shuffle/` (blocks from rank to rank), `merging/` (from blocks to one series per key), `reducing`,
`results`, `mapreduce`, and `failures` (errors raised by methods of an analysis). The engine treats frames as values and
knows no molecules.
"""

from himach.engine.mapping import RankFrames
from himach.engine.mapreduce import Passed, run_pass
from himach.engine.merging.series import ManySeries, Series
from himach.engine.results import Results
from himach.engine.shuffle.runs import Memory

__all__ = ["ManySeries", "Memory", "Passed", "RankFrames", "Results", "Series", "run_pass"]
