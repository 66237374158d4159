"""Names of datasets as paths below a mount: `dataset_path()`, `datasets_by_path()`.

A dataset named by a path appears at that path below the mount, so that ``DIR/NAME`` works for any name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

MAX_NAME_BYTES = 255  # of a part of a path
#: Prefixes of the files in a dataset's folder, which folders may not have.
TAKEN = ("trajectory.", "topology.")


def dataset_path(name: str) -> tuple[str, ...]:
    """Return the parts of a dataset's path: those of its name, escaped by ``%`` where they are no valid file names."""
    return tuple(map(_part, name.removeprefix("/").split("/")))


def datasets_by_path(names: Iterable[str]) -> dict[tuple[str, ...], str]:
    """Return datasets by path; a file's path that collides with a given name has ``%2F`` for its first slash."""
    places: dict[tuple[str, ...], str] = {}
    for name in sorted(names, key=lambda name: (name.startswith("/"), name)):
        path = dataset_path(name)
        if path in places:
            path = ("%2F" + path[0], *path[1:])
        places[path] = name
    return places


def _part(part: str) -> str:
    part = part.replace("%", "%25")
    if not part.strip("."):  # "", "." and ".."
        return part.replace(".", "%2E") or "%"
    if part.startswith(TAKEN):
        part = f"%{ord(part[0]):02X}{part[1:]}"
    try:
        encoded = part.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # not encodable as a file name: needs a substitute
        part = part.encode("utf-8", "replace").decode() + f"%{hashlib.sha256(repr(part).encode()).hexdigest()[:16]}"
        encoded = part.encode()
    if len(encoded) <= MAX_NAME_BYTES:
        return part
    digest = hashlib.sha256(encoded).hexdigest()[:16]
    return f"{encoded[: MAX_NAME_BYTES - 17].decode('utf-8', 'ignore')}%{digest}"
