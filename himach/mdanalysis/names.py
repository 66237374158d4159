"""Names of datasets as MDAnalysis gets them: `is_url()`, `dataset_of()`, `cache_of()`, `url_of()`.

``himach://NAME`` is a dataset that this node can reach; ``himach://NAME?server=HOST:PORT`` one that a server and its
peers have.
"""

from __future__ import annotations

import os
from typing import Any

from himach.errors import UsageError

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
