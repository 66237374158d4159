"""`HimachParser`: the topology of a dataset, as it was used with it last."""

from __future__ import annotations

from typing import Any

from MDAnalysis.core.topology import Topology
from MDAnalysis.topology.base import TopologyReaderBase

from himach.io.universe.parsed_topology import copy_topology
from himach.mdanalysis.names import is_url, open_url

__all__ = ["HimachParser"]


class HimachParser(TopologyReaderBase):  # type: ignore[misc]
    """Gives the topology that a dataset brings, or that it was last staged or run with; else its number of atoms."""

    format = "HIMACH"

    @staticmethod
    def _format_hint(thing: Any) -> bool:
        return is_url(thing)

    def parse(self, cache: str = "auto", **kwargs: Any) -> Topology:
        """Return the topology.

        Raises
        ------
        UsageError, TrajectoryError
            As `open_url` does.
        """
        dataset = open_url(self.filename, cache)
        found = dataset.find_topology({})
        return Topology(dataset.origin.n_atoms, 1, 1) if found is None else copy_topology(found)
