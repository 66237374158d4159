"""``himach run --dry-run``: what the run would do on the ranks that there are, and by a record how long it takes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from himach.errors import HimachError, UsageError
from himach.opening.dataset import OpenFrames
from himach.opening.member import some_of
from himach.opening.member_table import members_of
from himach.opening.options import Job
from himach.output.parts import parts_text
from himach.output.record import analysis_record
from himach.output.table import Table
from himach.parallel.collective import on_first_rank
from himach.parallel.communicator import World
from himach.planning.closed_forms import stored_bytes
from himach.planning.costs import Costs, observe
from himach.planning.machine import Machine
from himach.planning.model import Kind, PredictionInput
from himach.planning.plan import check_length, planned
from himach.runner.ensemble.member_run import attempted, each_member, job_of
from himach.runner.rank_run import RankRun, stages

#: Frames from which the bytes of all are told.
SAMPLE = 1000


@dataclass(frozen=True)
class Looked:
    """What a run over a trajectory would do."""

    counts: Mapping[str, int]  # frames by the rule that gives them to their readers
    atoms: int  # of a frame
    frame_bytes: float  # of a frame in the origin
    stored_bytes: float  # of a frame as the cache keeps it: of the atoms that analyses need

    @property
    def frames(self) -> int:
        """How many would be mapped."""
        return sum(self.counts.values())


def dry_run(world: World, job: Job) -> str | None:
    """Return what the run would do, on rank 0 (collective)."""
    comm = world.comm
    if job.ensemble is None:
        alone = looked(world, job)
        return on_first_rank(comm, lambda: told(world, job, [alone], {}))
    members = on_first_rank(comm, partial(members_of, job.ensemble, job.topology), share=True)
    on_first_rank(comm, lambda: [stages(analysis) for analysis in job.analyses])

    def look(on: World, at: int) -> Looked | HimachError:
        return attempted(on, members[at], lambda: looked(on, job_of(job, members[at])))

    every = comm.gather(each_member(world, job, members, look, job.quiet))
    return on_first_rank(comm, lambda: _told_of_all(world, job, {at: one for own in every for at, one in own.items()}))


def _told_of_all(world: World, job: Job, every: dict[int, Looked | HimachError]) -> str:
    """Return what there is to say of all members. On the first rank."""
    ordered = [every[at] for at in sorted(every)]
    found = [one for one in ordered if isinstance(one, Looked)]
    failed = [one for one in ordered if isinstance(one, HimachError)]
    if not found:
        raise failed[0]
    lines = [told(world, job, found, {"members": len(ordered), "of these would fail": len(failed)})]
    if failed:
        lines.append(some_of(list(map(str, failed)), "\n"))
    return "\n\n".join(lines)


def looked(world: World, job: Job) -> Looked:
    """Open the trajectory, set analyses up and assign frames, as the run would (collective)."""
    run = RankRun.open(world, job)
    run.set_up()
    opened, atoms, share = run.opened, run.atoms, run.assign()
    counts = share.counts
    share.close()
    of, each = opened.origin.n_atoms, _frame_bytes(opened)
    kept = of if atoms is None else len(atoms)
    opened.origin.close()
    opened.close()
    return Looked(counts, of, each, stored_bytes(kept, each * kept / of or None))


def told(world: World, job: Job, found: Sequence[Looked], members: Mapping[str, Any]) -> str:
    """Return what would be done with one trajectory, or with the members of an ensemble, and how long it would take."""
    counts = {rule: sum(one.counts[rule] for one in found) for rule in found[0].counts}
    stored = sum(one.frames * one.stored_bytes for one in found)
    what = {
        **members,
        "frames": sum(counts.values()),
        "atoms": max(one.atoms for one in found),
        "ranks": world.comm.size,
        "nodes": len(world.nodes),
        "in caches, native": counts["native"],
        "in caches, alien": counts["alien"],
        "from the origin": counts["residue"],
        "from the origin, MB": round(sum(one.counts["residue"] * one.frame_bytes for one in found) / 1e6, 3),
        "a node's part in its store, MB": round(stored / len(world.nodes) / 1e6, 3),
    }
    table = Table({"what": list(what), "this run": [f"{value:,}" for value in what.values()]})
    lines = [parts_text([("run", table)])]
    if job.pairs is not None:
        lines.append("Pairs that are kept are not looked at: frames that they cover need not be read.")
    return "\n\n".join([*lines, _times(world, job, counts)])


def _frame_bytes(opened: OpenFrames) -> float:
    """Return the mean bytes of a frame in the origin, from some."""
    n = len(opened.frames)
    if not opened.origin.present or not n:
        return 0.0
    some = np.array([opened.frames[i] for i in np.unique(np.linspace(0, n - 1, min(n, SAMPLE)).astype(int)).tolist()])
    return opened.origin.nbytes(some) / len(some)


def _times(world: World, job: Job, counts: dict[str, int]) -> str:
    """Return what it would take, from a record of a run of these analyses; else which run would tell."""
    # DIR is what --rerun was given.
    record, name = (job.earlier, "DIR") if job.earlier is not None else (_earlier(job.out), str(job.out))
    frames = sum(counts.values())
    if record is None:
        return (
            "How long it takes is not known: no run of these analyses has left a record. The same command with "
            f"--stop N and --out DIR leaves one, and 'himach plan DIR --frames {frames} --nodes {len(world.nodes)}' "
            "tells."
        )
    asked = json.loads(json.dumps([_plain(analysis_record(one)) for one in job.analyses], default=str))
    if [_plain(one) for one in record.get("analyses", ())] != asked:
        return "How long it takes is not known: the record that there is is of other analyses or parameters."
    kinds: list[Kind] = ["first"] if counts["residue"] else []
    if counts["residue"] < frames or not frames:
        kinds.append("second")
    asking = PredictionInput(len(world.nodes), max(1, world.comm.size // len(world.nodes)), frames or 1)
    try:
        costs = Costs([observe(record, name)])
        check_length(costs, asking.frames)
        found = planned(costs, Machine(), [asking], kinds)
    except UsageError as error:
        return f"How long it takes is not known: {error}"
    which = f"As a {kinds[0]} run" if len(kinds) == 1 else "Part of it is in caches; between a first and a second run"
    return f"{which}:\n{found}"


def _plain(entry: Any) -> dict[str, Any]:
    """Return an entry of a record without where its code is."""
    return {name: entry[name] for name in ("name", "parameters") if name in entry}


def _earlier(out: Path | None) -> dict[str, Any] | None:
    if out is None or not (out / "run.json").is_file():
        return None
    found: dict[str, Any] = json.loads((out / "run.json").read_text())
    return found
