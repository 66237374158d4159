"""A topology as it was parsed and guessed: `encode()`, `decode()`; and `copy_topology()`, which is quick.

It is a pickle behind its CRC32C. Unpickling runs what the bytes say, so only what no other user can have written may be
given to `decode()`; see `himach.io.store.store.Dataset.own_attachment`.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from himach.io.store.bodhi import crc32c

if TYPE_CHECKING:
    from MDAnalysis.core.topology import Topology

#: Made anew by every Topology.
_CORE = frozenset({"Atomindices", "Resindices", "Segindices"})
#: The topology that an attribute belongs to, and what is computed from the rest when it is asked for.
_DERIVED = frozenset({"top", "_cache"})


def encode(topology: Topology, facts: dict[str, Any]) -> bytes | None:
    """Return a topology and some facts on it as bytes, or None where it cannot be pickled."""
    try:
        content = pickle.dumps((topology, facts), pickle.HIGHEST_PROTOCOL)
    except Exception:  # whatever an attribute holds
        return None
    return crc32c(content).to_bytes(4, "little") + content


def decode(content: bytes) -> tuple[Topology, dict[str, Any]]:
    """Return the topology that `encode` encoded, and the facts on it; raises ValueError where it cannot be."""
    view = memoryview(content)
    if crc32c(view[4:]).to_bytes(4, "little") != view[:4]:
        raise ValueError("damaged")
    try:
        topology, facts = pickle.loads(view[4:])
    except Exception as error:  # such as a class that is not there any more
        raise ValueError("cannot be rebuilt") from error
    return topology, facts


def copy_topology(topology: Topology) -> Topology:
    """Return a copy that shares nothing that can be changed, as Topology.copy() does, without looking at each name."""
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
