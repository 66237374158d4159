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
FRAMES = 300
CLUSTER = """\
cores = 32
memory = 128e9
disk_read = 2e9
disk_write = 1e9
network = 1.2e9
latency = 2e-5
origin = 2e9
node_mtbf = 1.6e8
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
    from himach.planning.published import points

    lines = ["| what | published | himach's forms say | | |", "| --- | --- | --- | --- | --- |"]
    for point in points():
        low, high = point.found
        found = f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
        error = "" if point.how == "open" else f" ({point.error:+.1%})"
        lines.append(
            f"| {point.what} | {point.published:g} {point.unit} | {found}{error} | *{point.how}* | {point.reason} |"
        )
    return "\n".join([*lines, ""])


def _measured() -> str:
    """Return what was predicted of virtual hosts beside what was measured."""
    from himach.planning.accuracy import MEASURED

    rows = [row for row in json.loads(MEASURED.read_text())["rows"] if row["blind"]]
    if not rows:
        return "There are no figures of this version.\n"
    lines = ["| analysis | run | hosts | predicted | measured | error | spread | limit |", "| --- " * 8 + "|"]
    for row in rows:
        error = row["predicted"] / row["measured"] - 1
        lines.append(
            f"| {row['analysis']} | {row['kind']} | {row['nodes']} "
            f"| {row['predicted']:.2f} s | {row['measured']:.2f} s "
            f"| {error:+.1%} | ±{row['spread']:.1%} | {row['limit']} |"
        )
    return "\n".join(
        [*lines, "", "Medians of 5 repeats; *spread* is half of what lies between the least and the most.", ""]
    )


def _do(command: str, folder: str) -> str:
    words = [sys.executable, "-P", "-m", *command.split()]
    environ = {**os.environ, "COLUMNS": "110"}
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, env=environ)
    if done.returncode:
        raise RuntimeError(f"{command}: {done.stderr}")
    return done.stdout
