"""``himach bench outcomes``: the files that runs write, beside another himach's: the same bytes, whatever the ranks.

Every built-in and every analysis of the tutorial runs on one rank and on three: from an empty cache, from that cache,
and resumed, over half of the frames first and then over all with the pairs that were kept.
"""

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from ..harness.answers import DisagreementError
from ..harness.interleave import scratch
from ..harness.options import DIRECTORY

__all__ = ["main"]

#: The sample trajectories of a checkout, which this benchmark is run from.
SAMPLES = Path("examples/data").resolve()
RANKS = (1, 3)
WAYS = ("first", "cached", "resumed")
SAVED = re.compile(r"^```python\n# (\w+\.py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Question:
    """An analysis with its parameters, over a sample trajectory of so many frames."""

    analysis: str
    system: str = "nanopore"
    frames: int = 1500
    parameters: dict[str, str] = field(default_factory=dict)

    def words(self) -> list[str]:
        """Return it as words of ``himach run``."""
        return [self.analysis, *(word for name, value in self.parameters.items() for word in ("-p", f"{name}={value}"))]


BUILT_IN = (
    Question("ion-permeation", "kcsa", 101, {"top": "resid 66 and name O", "bottom": "resid 63 and name OG1"}),
    Question("rmsd", "villin", 500, {"selection": "name CA"}),
    Question("rdf", parameters={"a": "name K", "b": "name O", "r_max": "9", "bins": "60"}),
    Question("msd", parameters={"selection": "name K", "tau_max": "40"}),
    Question("water-residence", parameters={"water": "name O", "solute": "name K", "tau_max": "20"}),
    Question(
        "hydrogen-bonds",
        "villin",
        500,
        {
            "donors": "protein and name N",
            "hydrogens": "protein and name H",
            "acceptors": "protein and name O",
            "tau_max": "10",
        },
    ),
)


@click.argument("other", metavar="PYTHON")
@click.option("--tutorial", type=click.Path(exists=True, path_type=Path), help="Its page.  [docs/tutorial.md]")
@DIRECTORY
def main(other: str, tutorial: Path | None, directory: Path | None) -> None:
    """Compare the outcomes of all analyses with those of the himach of another Python, byte by byte."""
    differing = 0
    with scratch(directory) as place:
        asked = [*BUILT_IN, *_tutorials(tutorial or Path("docs/tutorial.md"), place)]
        for question in asked:
            found = {
                (name, ranks, way): digest
                for name, python in {"other": other, "this": sys.executable}.items()
                for ranks in RANKS
                for way, digest in _outcomes(python, question, ranks, place / f"{name}-{ranks}", place)
            }
            same = len(set(found.values())) == 1
            differing += not same
            print(f"{Path(question.analysis).name:<32} {len(found)} runs: {'the same bytes' if same else 'DIFFERENT'}")
            if not same:
                print(*(f"    {' '.join(map(str, key))}: {digest}" for key, digest in found.items()), sep="\n")
    if differing:
        raise DisagreementError(f"{differing} of {len(asked)} analyses have outcomes of different bytes")
    print(f"{len(asked)} analyses, each with the same bytes")


def _tutorials(page: Path, place: Path) -> Iterator[Question]:
    """Save the scripts that the tutorial tells to save; yield them, with short trajectories."""
    for name, text in SAVED.findall(page.read_text(encoding="utf-8")):
        script = place / name
        script.write_text(text, encoding="utf-8")
        yield Question(str(script), frames=60)  # one of them fails later, as it is to show


def _outcomes(python: str, question: Question, ranks: int, place: Path, cwd: Path) -> Iterator[tuple[str, str]]:
    """Run the three ways from an empty cache; yield the digest of what each writes beside its record."""
    folder = place / re.sub(r"\W+", "-", Path(question.analysis).name)
    folder.mkdir(parents=True)
    environment = {**os.environ, "HIMACH_CACHE": str(folder / "cache")}
    kept = ["--pairs", str(folder / "pairs")]
    for way in WAYS:
        out = folder / way
        if way == "resumed":
            _run(python, question, ranks, question.frames // 2, folder / "half", environment, cwd, kept)
        _run(python, question, ranks, question.frames, out, environment, cwd, kept if way == "resumed" else [])
        yield way, _digest(out)


def _run(
    python: str, question: Question, ranks: int, stop: int, out: Path, environment: Any, cwd: Path, more: Sequence[str]
) -> None:
    data = SAMPLES / question.system
    over = ["--trajectory", f"{data}.xtc", "--topology", f"{data}.pdb", "--stop", str(stop), "--out", str(out)]
    words = [python, "-P", "-m", "himach", "run", *question.words(), *over, "-n", str(ranks), "--quiet", *more]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment, cwd=cwd)
    if done.returncode:
        raise click.ClickException(f"{question.analysis}, {ranks} ranks, of {python}:\n{done.stderr.strip()}")


def _digest(out: Path) -> str:
    """Return a digest of all files of an outcome but its record and plots (fonts are Matplotlib's)."""
    digest = hashlib.sha256()
    for file in sorted(path for path in out.rglob("*") if path.is_file() and path.suffix != ".png"):
        if file.name != "run.json":
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]
