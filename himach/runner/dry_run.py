"""``himach run --dry-run``: what the run would do on the present ranks."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from himach.errors import HimachError
from himach.io.datasets.member import read_members, truncate
from himach.io.datasets.opening import OpenFrames
from himach.output.parts import parts_text
from himach.output.table import Table
from himach.planning.closed_forms import stored_bytes
from himach.ranks.collective import on_first_rank
from himach.ranks.communicator import World
from himach.runner.ensemble.member_run import attempt, each_member, member_job
from himach.runner.options import Job, stages
from himach.runner.rank_run import RankRun

#: Frames that are sampled to estimate the bytes of all.
SAMPLE = 1000
#: What a run over a trajectory would do: numbers by what they count.
Plan = dict[str, Any]
ATOMS, STORED = "atoms", "a node's part in its store, MB"


def dry_run(world: World, job: Job) -> str | None:
    """Return what the run would do, on rank 0 (collective)."""
    comm = world.comm
    if job.ensemble is None:
        single = plan_trajectory(world, job)
        return on_first_rank(comm, lambda: plan_text(world, job, [single], {}))
    members = on_first_rank(comm, partial(read_members, job.ensemble, job.topology), share=True)
    on_first_rank(comm, lambda: [stages(analysis) for analysis in job.analyses])

    def plan_member(member_world: World, at: int) -> Plan | HimachError:
        return attempt(member_world, members[at], lambda: plan_trajectory(member_world, member_job(job, members[at])))

    results = each_member(world, job, members, plan_member, job.quiet)

    def text() -> str:
        plans = [result for result in results if isinstance(result, dict)]
        errors = [result for result in results if isinstance(result, HimachError)]
        if not plans:
            raise errors[0]
        summary = plan_text(world, job, plans, {"members": len(results), "of these would fail": len(errors)})
        return "\n\n".join([summary, truncate(list(map(str, errors)), "\n")] if errors else [summary])

    return on_first_rank(comm, text)


def plan_trajectory(world: World, job: Job) -> Plan:
    """Open the trajectory, set analyses up and assign frames, as the run would (collective)."""
    run = RankRun.open(world, job)
    run.set_up()
    opened, atoms, counts = run.opened, run.atoms, run.assign().counts
    frames, n_atoms, frame_bytes = sum(counts.values()), opened.origin.n_atoms, _frame_bytes(opened)
    needed = n_atoms if atoms is None else len(atoms)
    opened.origin.close()
    opened.close()
    return {
        "frames": frames,
        ATOMS: n_atoms,
        "ranks": 0,
        "nodes": 0,
        "in caches, native": counts["native"],
        "in caches, alien": counts["alien"],
        "from the origin": counts["residue"],
        "from the origin, MB": counts["residue"] * frame_bytes / 1e6,
        STORED: frames * stored_bytes(needed, frame_bytes * needed / n_atoms or None) / 1e6,
    }


def plan_text(world: World, job: Job, plans: Sequence[Plan], members: Mapping[str, Any]) -> str:
    """Return text about the work of a run over one trajectory or an ensemble's members."""
    rows = {**members, **{name: sum(plan[name] for plan in plans) for name in plans[0]}}
    rows |= {ATOMS: max(plan[ATOMS] for plan in plans), "ranks": world.comm.size, "nodes": len(world.nodes)}
    rows[STORED] /= len(world.nodes)
    table = Table({"what": list(rows), "this run": [f"{round(value, 3):,}" for value in rows.values()]})
    lines = [parts_text([("run", table)])]
    if job.pairs is not None:
        lines.append("Pairs that are kept are not looked at: frames that they cover need not be read.")
    if not members:
        lines.append(
            f"'himach plan DIR --frames {rows['frames']} --nodes {len(world.nodes)}' tells how long it takes, where "
            "DIR is the --out of a run of these analyses, also over a few frames (--stop N)."
        )
    return "\n\n".join(lines)


def _frame_bytes(opened: OpenFrames) -> float:
    """Return the mean bytes of a frame in the origin, from a sample."""
    n = len(opened.frames)
    if not opened.origin.present or not n:
        return 0.0
    sample = np.array([opened.frames[i] for i in np.unique(np.linspace(0, n - 1, min(n, SAMPLE)).astype(int)).tolist()])
    return opened.origin.nbytes(sample) / len(sample)
