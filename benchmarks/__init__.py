"""What himach is measured with: the programs of ``himach bench``, the tools beside it, and the last results.

In reading order: `harness` (how things are timed and told), `runs` (whole runs, beside peers and as sizes grow),
`parts` (parts of a run), `store` (the frame store), ``peers/`` (scripts of other tools), ``analyses/`` (analyses that
only benchmarks need), ``results/``. Installed as ``himach.benchmarks``; `FOLDER` is where.
"""

from pathlib import Path

__all__ = ["FOLDER"]

FOLDER = Path(__file__).parent
