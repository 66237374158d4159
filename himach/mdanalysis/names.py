"""Names of datasets as MDAnalysis gets them: `is_url()`, `dataset_of()`, `url_of()`; `open_url()` opens one.

``himach://NAME`` is a dataset that this node can reach; ``himach://NAME?server=HOST:PORT`` one that a server and its
peers have.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from himach.errors import UsageError
from himach.opening.dataset import OpenDataset, OpenRequest, open_dataset
from himach.opening.options import DatasetRequest
from himach.parallel.communicator import alone

SCHEME = "himach://"
SERVER = "?server="


def is_url(thing: Any) -> bool:
    """Tell whether `thing` is the name of a dataset, as MDAnalysis gets it."""
    return isinstance(thing, str) and thing.startswith(SCHEME)


def dataset_of(filename: str | os.PathLike[str]) -> str:
    """Return the dataset that ``himach://NAME`` names: as ``--trajectory NAME`` does, by its name or its path.

    Raises
    ------
    UsageError
        It names nothing.
    """
    name = os.fspath(filename).removeprefix(SCHEME).partition(SERVER)[0]
    if not name or "\0" in name:
        raise UsageError(f"{filename} names no dataset: it is {SCHEME}NAME, as in {SCHEME}run7 or {SCHEME}/data/md.xtc")
    return name


def cache_of(filename: str | os.PathLike[str], cache: str) -> str:
    """Return where frames are looked for: at the server that is named, else in `cache`.

    Raises
    ------
    UsageError
        The server's address is none.
    """
    server = os.fspath(filename).partition(SERVER)[2]
    if not server:
        return cache
    from himach.io.server.address import choice_of

    return choice_of(server)


def url_of(filename: str | os.PathLike[str]) -> str:
    """Return the same as ``himach://NAME``."""
    return SCHEME + dataset_of(filename) + "".join(os.fspath(filename).partition(SERVER)[1:])


def open_url(
    filename: str | os.PathLike[str], cache: str = "auto", keywords: Mapping[str, Any] | None = None
) -> OpenDataset:  # fmt: skip
    """Open a dataset, or a trajectory file, in this process alone.

    Parameters
    ----------
    filename
        As of `dataset_of`.
    cache
        As of `cache_of`.
    keywords
        Keywords of MDAnalysis for it: dt, time_offset, format.

    Raises
    ------
    UsageError
        There is no such dataset, or it cannot be opened in this way.
    TrajectoryError
        It cannot be read.
    """
    asked = DatasetRequest([Path(dataset_of(filename))], None, dict(keywords or {}), cache_of(filename, cache))
    return open_dataset(alone(), OpenRequest(asked, reads_files=True))
