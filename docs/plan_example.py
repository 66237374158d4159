"""What docs/plan.md shows: one real run of water-residence on this machine, and a plan of a longer one from its record.

Called by conf.py before pages are read; what it prints and draws goes to docs/plan-example/, which git leaves out.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
OUT = HERE / "plan-example"
#: What `himach bench plan --out` left.
MEASURED = HERE.parent / "benchmarks" / "results" / "plan.json"
FRAMES = 300
CLUSTER = """\
cores = 32
memory = 128e9
disk_read = 2e9
disk_write = 1e9
network = 1.2e9
latency = 2e-5
origin = 2e9
"""


def make() -> None:
    """Run it all, unless it is there."""
    OUT.mkdir(exist_ok=True)
    (OUT / "papers.md").write_text(_papers())
    (OUT / "measured.md").write_text(_measured())
    if (OUT / "plan.png").exists():
        return
    (OUT / "cluster.toml").write_text(CLUSTER)
    from himach.benchmarks.harness.data import adk

    topology, trajectory = adk(FRAMES)
    run = f"himach run water-residence -t {trajectory.name} --topology {topology.name} -n 2 --cache . --out run --quiet"
    plan = "himach plan run --machine cluster.toml --frames 2500000 --ranks-per-node 32 --nodes 1,8,64 --out plan"
    with tempfile.TemporaryDirectory() as name:
        for path in (topology, trajectory, OUT / "cluster.toml"):
            shutil.copy(path, name)
        _do(run, name)
        text = _do(plan, name)
        shutil.copy(Path(name) / "plan" / "plan.png", OUT)
    (OUT / "plan.txt").write_text(f"$ {run}\n$ {plan}\n{text}")


def _papers() -> str:
    """Return what papers published beside what the forms say."""
    from himach.benchmarks.runs.published import points

    lines = ["| what | published | himach's forms say | | |", "| --- | --- | --- | --- | --- |"]
    for point in points():
        low, high = point.found
        found = f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
        error = "" if point.how == "open" else f" ({point.error:+.1%})"
        lines.append(
            f"| {point.what} | {point.published:g} {point.unit} | {found}{error} | *{point.how}* | {point.reason} |"
        )
    return "\n".join([*lines, ""])


KINDS = {
    "first": "first run", "second": "second run", "stage": "staging", "lost": "second run, one host's cache lost",
    "shuffle": "shuffle of the second run", "rounds": "Zazen's rounds",
}  # fmt: skip


def _measured() -> str:
    """Return what was predicted of virtual hosts beside what was measured."""
    from himach.benchmarks.runs.accuracy import error, is_held

    told = json.loads(MEASURED.read_text())
    rows = [row for row in told["rows"] if row["blind"]]
    if not rows:
        return "There are no figures of this version.\n"
    lines = ["| analysis | run | hosts | predicted | measured | error | spread | |", "| --- " * 8 + "|"]
    for row in sorted(rows, key=lambda row: list(KINDS).index(row["kind"])):
        held = "" if is_held(row) else "missed"
        lines.append(
            f"| {'' if row['kind'] == 'rounds' else row['analysis']} | {KINDS[row['kind']]} | {row['nodes']} "
            f"| {row['predicted']:.2f} s | {row['measured']:.2f} s | {error(row):+.1%} | ±{row['spread']:.1%} "
            f"| {held} |"
        )
    kinds = [row["kind"] for row in rows]
    counts = [
        f"{KINDS[kind]} {sum(is_held(row) for row in rows if row['kind'] == kind)} of {kinds.count(kind)}"
        for kind in KINDS
        if kind in kinds
    ]
    repeats = sorted({row["repeats"] for row in rows})
    about = told["about"]
    return "\n".join([
        *lines, "",
        f"Medians of {' or '.join(map(str, repeats))} repeats; *spread* is half of what lies between the least and the "
        f"most. Within 3 %, or the spread: {', '.join(counts)}. Measured on {about['date']}, {about['cores']} cores; "
        f"links of {about['network'] / 1e6:.3g} MB/s and {about['latency'] * 1e3:.2g} ms (Zazen's rounds: links of "
        f"0.31 MB/s), an origin of {about['origin'] / 1e6:.3g} MB/s.", "",
    ])  # fmt: skip


def _do(command: str, folder: str) -> str:
    words = [sys.executable, "-P", "-m", *command.split()]
    environ = {**os.environ, "COLUMNS": "110"}
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, env=environ)
    if done.returncode:
        raise RuntimeError(f"{command}: {done.stderr}")
    return done.stdout
