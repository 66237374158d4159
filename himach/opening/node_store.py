"""A node's store opened for a run: `open_store()`, and one generation of a dataset in it, `open_generation()`."""

from __future__ import annotations

from functools import partial

from himach.io.dataset.lookup import open_cache
from himach.io.server.survey import ServedStore
from himach.io.store.cached_frames import CachedFrames
from himach.io.store.quota import set_chosen_quota
from himach.io.store.store import Dataset, Store, StoreError, StoreNotFoundError
from himach.ranks.collective import run_collectively, warn_once
from himach.ranks.communicator import Communicator, node_name


def open_store(comm: Communicator, choice: str) -> tuple[Store | ServedStore | None, int]:
    """Open the chosen store; return it and its quota in bytes, 0 if it keeps nothing (collective)."""
    if choice == "off":
        return None, 0
    location = f" (node {node_name()})" if comm.size > 1 else ""
    store, reason = run_collectively(comm, partial(open_cache, choice))
    warn_once(comm, [reason + location] if reason else [])
    # The store may be absent or another user's, and the disk may have no room for a segment.
    quota, reason = run_collectively(comm, lambda: set_chosen_quota(store) if isinstance(store, Store) else (0, ""))
    warn_once(comm, [reason + location] if reason else [])
    return store, quota


def open_generation(
    store: Store | ServedStore | None, name: str, generation: bytes, create: bool
) -> tuple[CachedFrames | None, str]:
    """Open a dataset of a store; return it and the reason of a failure, "" if it does not exist."""
    try:
        return None if store is None else store.dataset(name, generation, create=create), ""
    except StoreNotFoundError:
        return None, ""
    except StoreError as error:
        return None, str(error)


def own_dataset(cached: CachedFrames | None) -> Dataset | None:
    """Return this user's own dataset, the only kind whose attached parsed topologies are used; else None."""
    return cached if isinstance(cached, Dataset) else None
