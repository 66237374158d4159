"""Defaults that a user gives options of ``himach run`` and ``follow``: ``~/.config/himach/config.toml``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from himach.errors import UsageError
from himach.files import config_directory, read_toml

#: By name of an option: the types of its value, and the default where the file has none.
DEFAULTS: Mapping[str, tuple[tuple[type, ...], Any]] = {
    "cache": ((str,), "auto"),
    "ranks": ((int,), 1),
    "confidence": ((float, str), 0.95),
    "figure": ((str, list), "png"),
}


def user_defaults() -> dict[str, Any]:
    """Return the options that the user's file sets; raises UsageError."""
    path = config_directory() / "config.toml"
    values = read_toml(path, str(path)) if path.exists() else {}
    for name, value in values.items():
        if name not in DEFAULTS:
            raise UsageError(f"{path}: {name} cannot be set; there are {', '.join(DEFAULTS)}")
        if isinstance(value, bool) or not isinstance(value, DEFAULTS[name][0]):
            raise UsageError(f"{path}: {name} is {value!r}; it is written as in {name} = {DEFAULTS[name][1]!r}")
    if values.get("ranks", 1) < 1:
        raise UsageError(f"{path}: ranks is {values['ranks']}; it is 1 or more")
    return values


def describe_defaults() -> str:
    """Return a text on the defaults and the file that sets them."""
    values = user_defaults()
    lines = [f"  {name:11} {values.get(name, default)}" for name, (_, default) in DEFAULTS.items()]
    return "\n".join([f"defaults of 'himach run', which {config_directory() / 'config.toml'} can set:", *lines])
