"""ProLIF's fingerprints on ranks, beside its own processes and one process: whole processes, the same table."""

import importlib.util
import sys
from collections.abc import Mapping
from statistics import median

import click

from .. import FOLDER
from ..harness.interleave import Contender, run_in_turn
from ..harness.options import RANKS, repeats

__all__ = ["main"]

#: How many times faster than one process ranks are to be, where there are two of them.
BAR = 1.7


@click.option(
    "--frames", type=click.IntRange(min=2, max=250), default=50, show_default=True, help="Frames that each looks at."
)
@repeats(3)
@RANKS
def main(frames: int, repeats: int, ranks: int) -> None:
    """Fingerprints of ProLIF on ranks, beside ProLIF on as many processes and on one."""
    if importlib.util.find_spec("prolif") is None:
        raise click.UsageError("this needs ProLIF: pip install 'himach[gallery]'")
    answers: set[str] = set()

    def told(output: str) -> Mapping[str, float]:
        answers.add(output.rsplit(maxsplit=1)[-1])
        return {}

    script = [sys.executable, str(FOLDER / "peers" / "fingerprints.py")]
    names = {"one": ("prolif", 1), "own": ("prolif", ranks), "himach": ("himach", ranks)}
    contenders = [
        Contender(name, [*script, how, str(frames), str(processes)], phases=told, warm=False)
        for name, (how, processes) in names.items()
    ]
    times = run_in_turn(contenders, repeats)
    if len(answers) > 1:
        raise click.ClickException("the tables are not the same")
    one, own, ours = (median(times[name]["wall"]) for name in names)
    click.echo(
        f"ProLIF, {frames} frames, the same table: {ours:.1f} s on {ranks} ranks, {own:.1f} s on {ranks} processes of "
        f"its own, {one:.1f} s on one"
    )
    for name, beside, bar in ((f"its {ranks} processes", own, 1.0), ("one process", one, BAR)):
        met = "met" if beside / ours >= bar else "missed"
        click.echo(f"  {beside / ours:.2f} times as fast as {name} (bar {bar:g}: {met})")
    spent = {name: median(times[name]["cpu"]) for name in names}
    click.echo("  processor time: " + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in spent.items()))
