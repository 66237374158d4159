"""The words of ``himach run``: several files behind one -t, and what a shell completes.

Nothing is imported or run for a completion: scripts and built-ins are read as text.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath

import click
from click.shell_completion import CompletionItem

from himach.cli.command_group import Command

__all__ = ["RunWords", "complete_analyses", "complete_parameters"]

TRAJECTORY = ("-t", "--trajectory")


class RunWords(Command):
    """``himach run``, in which files of one kind may follow one -t, as a shell's ``*.xtc`` leaves them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Turn the words of a command line into parameters."""
        return super().parse_args(ctx, each_with_its_option(args))


def each_with_its_option(words: Sequence[str]) -> list[str]:
    """Return the words with a -t before each file that follows a -t's and has the same suffix.

    Examples
    --------
    >>> each_with_its_option(["rmsd", "-t", "a.xtc", "b.xtc", "-s", "c.gro"])
    ['rmsd', '-t', 'a.xtc', '-t', 'b.xtc', '-s', 'c.gro']
    """
    spread: list[str] = []
    suffix = ""  # of the trajectory just before
    behind = False  # whether the word before takes this one as its value
    for word in words:
        option, equals, value = word.partition("=")
        if behind:
            suffix, behind = _suffix(word), False
        elif word in TRAJECTORY:
            suffix, behind = "", True
        elif equals and option in TRAJECTORY:
            suffix = _suffix(value)
        elif word.startswith("-t") and not equals:
            suffix = _suffix(word[2:])
        elif suffix and not word.startswith("-") and _suffix(word) == suffix:
            spread.append(TRAJECTORY[0])
        else:
            suffix = ""
        spread.append(word)
    return spread


def _suffix(word: str) -> str:
    suffix = PurePath(word).suffix.lower()
    return "" if suffix == ".py" else suffix


def complete_analyses(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return built-ins, scripts, the classes of a script, and folders on the way to one."""
    from himach.examples import BUILTINS

    script, colon, begun = incomplete.partition(".py:")
    if colon:
        classes = _classes(Path(f"{script}.py"))
        return [CompletionItem(f"{script}.py:{name}") for name in classes if name.startswith(begun)]
    found = [CompletionItem(name) for name in BUILTINS if name.startswith(incomplete)]
    for path in sorted(Path(incomplete).parent.glob("*") if "/" in incomplete else Path().glob("*")):
        text = f"{incomplete[: incomplete.rfind('/') + 1]}{path.name}"
        if text.startswith(incomplete) and (path.suffix == ".py" or path.is_dir()):
            found.append(CompletionItem(f"{text}/" if path.is_dir() else text))
    return found


def complete_parameters(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the parameters of the analyses that were named so far, as ``NAME=``; of several, ``ANALYSIS.NAME=``."""
    analyses: Sequence[str] = ctx.params.get("analyses") or ctx.args  # the latter behind an option without its value
    found = []
    for spec in analyses:
        owner = f"{spec.rpartition(':')[2]}." if len(analyses) > 1 and not spec.endswith(".py") else ""
        found += [f"{owner}{name}=" for name in _parameters(spec)]
    return [CompletionItem(name) for name in dict.fromkeys(found) if name.startswith(incomplete)]


def _parameters(spec: str) -> Iterator[str]:
    """Give the annotated attributes of an analysis's class, and of all classes where a script is named alone."""
    from himach import examples

    path, _, chosen = spec.partition(":")
    if spec in examples.BUILTINS:
        module, _, chosen = examples.BUILTINS[spec].partition(":")
        path = str(Path(examples.__file__).parent.joinpath(*module.split(".")[2:]).with_suffix(".py"))
    for name, body in _classes(Path(path)).items():
        if chosen in ("", name):
            yield from body


def _classes(script: Path) -> dict[str, list[str]]:
    """Return the classes of a script, with their annotated attributes that are public and not ClassVars."""
    try:
        tree = ast.parse(script.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return {}
    return {
        node.name: [
            line.target.id
            for line in node.body
            if isinstance(line, ast.AnnAssign)
            and isinstance(line.target, ast.Name)
            and not line.target.id.startswith("_")
            and "ClassVar" not in ast.unparse(line.annotation)
        ]
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.bases
    }
