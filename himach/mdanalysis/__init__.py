"""himach in MDAnalysis: datasets as trajectories, ``himach://NAME``, and MDAnalysis's analyses on ranks.

Importing this registers a reader, a topology parser and a writer with MDAnalysis.
"""

from himach.adapted import adapted
from himach.mdanalysis.analysis_parts import Backend, run
from himach.mdanalysis.dataset_writer import HimachWriter, name_writers
from himach.mdanalysis.reader import HimachParser, HimachReader

__all__ = ["Backend", "HimachParser", "HimachReader", "HimachWriter", "adapted", "run"]

name_writers()
