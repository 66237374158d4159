"""Names of datasets in MDAnalysis: `is_url()`, `parse_dataset()`, `normalize_url()`; `open_url()` opens one.

``himach://NAME`` is a dataset that this node can reach; ``himach://NAME?server=HOST:PORT`` is one of a server and its
peers.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from himach.errors import UsageError
from himach.io.datasets.opening import OpenDataset, open_dataset
from himach.io.datasets.request import DatasetRequest
from himach.io.server.survey import format_choice
from himach.ranks.communicator import alone

SCHEME = "himach://"
SERVER = "?server="


def is_url(thing: Any) -> bool:
    """Tell whether `thing` is a name of a dataset for MDAnalysis."""
    return isinstance(thing, str) and thing.startswith(SCHEME)


def parse_dataset(filename: str | os.PathLike[str]) -> str:
    """Return the dataset in ``himach://NAME``, as for ``--trajectory NAME``; raises UsageError if there is none."""
    name = os.fspath(filename).removeprefix(SCHEME).partition(SERVER)[0]
    if not name or "\0" in name:
        raise UsageError(f"{filename} names no dataset: it is {SCHEME}NAME, as in {SCHEME}run7 or {SCHEME}/data/md.xtc")
    return name


def normalize_url(filename: str | os.PathLike[str]) -> str:
    """Return a name as ``himach://NAME``, with its server."""
    return SCHEME + parse_dataset(filename) + "".join(os.fspath(filename).partition(SERVER)[1:])


def open_url(
    filename: str | os.PathLike[str], cache: str = "auto", keywords: Mapping[str, Any] | None = None
) -> OpenDataset:  # fmt: skip
    """Open a dataset, or a trajectory file, in this process alone."""
    if server := os.fspath(filename).partition(SERVER)[2]:
        cache = format_choice(server)
    request = DatasetRequest([Path(parse_dataset(filename))], None, dict(keywords or {}), cache)
    return open_dataset(alone(), request, reads_files=True)
