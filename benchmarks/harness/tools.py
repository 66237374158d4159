"""The tools that himach is compared with: where they are, their versions, and how they are installed.

`prepare()` makes virtual environments of their own for them from the lists in ``peers/``, once, and asks Debian's
package manager for GROMACS where it may; `here()` takes what this environment has. What cannot be had is a `Tool`
without a command that says why, so that the table can say it too.
"""

import json
import os
import shutil
import sys
import venv
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from himach.errors import HimachError

from .. import FOLDER
from .interleave import checked

__all__ = ["Tool", "here", "prepare"]

#: Distributions by the list in ``peers/`` that installs them, and the names that tables give them.
LISTS = {
    "newest": {
        "MDAnalysis": "MDAnalysis",
        "MDTraj": "mdtraj",
        "chemfiles": "chemfiles",
        "waterdynamics": "waterdynamics",
    },
    "pmda": {"PMDA": "pmda"},
}
APT = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"]
VERSIONS = """
import importlib.metadata, json
print(json.dumps({each.name: each.version for each in importlib.metadata.distributions()}))
"""


@dataclass(frozen=True)
class Tool:
    """A tool to compare with: its Python or program, None if it is not here; its version, or why it is not here."""

    name: str
    command: str | None
    version: str


def prepare(folder: Path, lists: Iterable[str] = tuple(LISTS)) -> dict[str, Tool]:
    """Install what is not installed yet of some lists, and GROMACS, below `folder`; return the tools by name."""
    tools: dict[str, Tool] = {}
    for label in lists:
        names = LISTS[label]
        requirements = FOLDER / "peers" / f"{label}.txt"
        try:
            python = _environment(folder / label, requirements)
        except HimachError as error:
            tools.update({name: Tool(name, None, str(error)) for name in names})
        else:
            tools.update(_installed(python, names))
    _install_gmx()
    return {**tools, "gmx": _gmx()}


def here() -> dict[str, Tool]:
    """Return the tools that this environment has, by name, and those that it has not."""
    names = {name: distribution for each in LISTS.values() for name, distribution in each.items()}
    return {**_installed(sys.executable, names), "gmx": _gmx()}


def _environment(place: Path, requirements: Path) -> str:
    """Return the Python of a virtual environment that has these requirements, made anew when they change."""
    python = place / "bin" / "python"
    stamp = place / "installed.txt"
    if not stamp.exists() or stamp.read_text() != requirements.read_text():
        print(f"installing {requirements.stem} into {place}", file=sys.stderr, flush=True)
        venv.create(place, clear=True, with_pip=True)
        checked([str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", "-r", str(requirements)])
        stamp.write_text(requirements.read_text())
    return str(python)


def _installed(python: str, names: dict[str, str]) -> dict[str, Tool]:
    found = json.loads(checked([python, "-c", VERSIONS]))
    here = {name: found.get(distribution) for name, distribution in names.items()}
    return {
        name: Tool(name, python if version else None, version or f"not installed ({names[name]})")
        for name, version in here.items()
    }


def _install_gmx() -> None:
    """Install Debian's GROMACS if this is root on Debian and there is none; it is not on the package index."""
    if shutil.which("gmx") is None and os.getuid() == 0 and shutil.which("apt-get"):
        print("installing Debian's package gromacs", file=sys.stderr, flush=True)
        try:
            checked([*APT, "update", "-qq"])
            checked([*APT, "install", "-y", "-qq", "--no-install-recommends", "gromacs"])
        except HimachError as error:
            print(error, file=sys.stderr)


def _gmx() -> Tool:
    program = shutil.which("gmx")
    if program is None:
        return Tool("gmx", None, "not installed: apt-get install gromacs")
    lines = checked([program, "-quiet", "--version"]).splitlines()
    versions = [line.partition(":")[2].strip() for line in lines if line.startswith("GROMACS version")]
    return Tool("gmx", program, versions[0] if versions else "of unknown version")
