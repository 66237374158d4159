"""Topologies after parsing and guessing: `encode()`, `decode()`; and `copy_topology()`, a fast copy.

The format is a pickle behind its CRC32C. Unpickling can run code, so `decode()` may only get bytes that no other user
can have written; see `himach.io.store.store.Dataset.own_attachment`.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from himach.io.store.bodhi import crc32c

if TYPE_CHECKING:
    from MDAnalysis.core.topology import Topology

#: Attributes that every Topology makes itself.
_CORE = frozenset({"Atomindices", "Resindices", "Segindices"})
#: An attribute's topology, and its cache of computed values.
_DERIVED = frozenset({"top", "_cache"})


def encode(topology: Topology, facts: dict[str, Any]) -> bytes | None:
    """Return a topology and facts about it as bytes; None if it cannot be pickled."""
    try:
        content = pickle.dumps((topology, facts), pickle.HIGHEST_PROTOCOL)
    except Exception:  # attributes may hold any object
        return None
    return crc32c(content).to_bytes(4, "little") + content


def decode(content: bytes) -> tuple[Topology, dict[str, Any]]:
    """Return the topology and the facts of `encode`; raises ValueError if that fails."""
    view = memoryview(content)
    if crc32c(view[4:]).to_bytes(4, "little") != view[:4]:
        raise ValueError("damaged")
    try:
        topology, facts = pickle.loads(view[4:])
    except Exception as error:  # e.g. a class that no longer exists
        raise ValueError("cannot be rebuilt") from error
    return topology, facts


def copy_topology(topology: Topology) -> Topology:
    """Return a copy that shares nothing mutable, as Topology.copy() does, without its loop over all names."""
    from MDAnalysis.core.topology import Topology
    from MDAnalysis.core.topologyattrs import _Connection

    table = topology.tt
    new = Topology(table.n_atoms, table.n_residues, table.n_segments, None, table._AR, table._RS)
    for attribute in topology.attrs:
        kind: Any = type(attribute)
        if kind.__name__ not in _CORE:
            copied = kind.__new__(kind)
            state = {name: value for name, value in vars(attribute).items() if name not in _DERIVED}
            vars(copied).update(
                {name: value.copy() if hasattr(value, "copy") else value for name, value in state.items()}
            )
            if issubclass(kind, _Connection):
                copied._cache = {}
            new.add_TopologyAttr(copied)
    return new
