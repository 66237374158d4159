"""Another himach's figures beside this one's: both run the same benchmark in turn, and tell the same lines."""

import re
import sys
from collections.abc import Sequence
from statistics import median

from .interleave import Contender, run_in_turn

__all__ = ["beside", "numbers"]

NUMBER = re.compile(r"(?<![\w.-])\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.]| ranks)")


def beside(other: str, words: Sequence[str], turns: int) -> None:
    """Print medians of `interleave` of each figure that ``himach bench`` tells with these `words`, here and there."""
    pythons = {"other": other, "this": sys.executable}
    sides = [
        Contender(name, [python, "-P", "-m", "himach", "bench", *words], phases=numbers, warm=False)
        for name, python in pythons.items()
    ]
    times = run_in_turn(sides, turns)
    print(f"{f'medians of {turns} turns':<72} {'this':>10} {'other':>10} {'ratio':>7}")
    for what in times["this"]:
        if what in times["other"]:
            this, that = (median(times[name][what]) for name in ("this", "other"))
            print(f"{what:<72} {this:>10.4g} {that:>10.4g} {this / that if that else float('nan'):>7.3f}")


def numbers(printed: str) -> dict[str, float]:
    """Return the numbers that a benchmark prints, by the name that begins their line, and their place in it."""
    found = {}
    for line in map(str.strip, printed.splitlines()):
        name, *rest = re.split(r"\s{2,}", line, maxsplit=1) if "  " in line else line.split(": ", 1)
        values = NUMBER.findall(rest[0].partition("(")[0]) if rest else []  # in brackets: a bar, a spread
        for i, value in enumerate(values):
            found[f"{name} [{i + 1}]" if len(values) > 1 else name] = float(value)
    return found
