"""``himach run --dry-run``: what the very run that is asked for would do, on the ranks that there are.

The trajectory is opened as for the run, analyses are set up, and frames are assigned, so it is known where each would
be read; no frame but the first is. Times come from an earlier run's record, where there is one: in ``--out``, or that
of ``--again``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from himach.errors import UsageError
from himach.opening.dataset import open_frames
from himach.opening.frame_steps import transform_of
from himach.output.record import analysis_record
from himach.output.show import parts_text
from himach.output.table import Table
from himach.parallel.collective import on_every_rank, on_first_rank
from himach.planning.closed_forms import stored_bytes
from himach.planning.fitting import fit
from himach.planning.machine import Machine
from himach.planning.plan import check_length, planned
from himach.planning.predict import PredictionInput
from himach.planning.records import observe
from himach.runner.rank import assign_frames, needed_atoms, set_up, stages
from himach.staging.assembly.api import assemble_for_run

if TYPE_CHECKING:
    from himach.opening.dataset import Opened
    from himach.opening.options import Job
    from himach.parallel.communicator import World
    from himach.planning.predict import Kind

__all__ = ["Looked", "dry_run", "looked", "told"]

#: Frames from which the bytes of all are told.
SAMPLE = 1000


@dataclass(frozen=True)
class Looked:
    """What a run over a trajectory would do.

    Attributes
    ----------
    counts
        Frames by the rule that gives them to their readers.
    atoms
        Of a frame.
    frame_bytes
        Of a frame in the origin.
    stored_bytes
        Of a frame as the cache keeps it: of the atoms that analyses need.
    """

    counts: Mapping[str, int]
    atoms: int
    frame_bytes: float
    stored_bytes: float

    @property
    def frames(self) -> int:
        """How many would be mapped."""
        return sum(self.counts.values())


def dry_run(world: World, job: Job) -> str | None:
    """Return what the run would do, on rank 0 (collective)."""
    found = looked(world, job)
    return on_first_rank(world.comm, lambda: told(world, job, [found], {}))


def looked(world: World, job: Job) -> Looked:
    """Open the trajectory, set analyses up and assign frames, as the run would (collective)."""
    chains = [stages(analysis) for analysis in job.analyses]
    opened = open_frames(world, job, assemble_for_run)
    views = partial(set_up, world.comm.rank, chains, opened, transform_of(job), member=job.member)
    atoms = needed_atoms(on_every_rank(world.comm, views))
    share = assign_frames(world, opened, None, atoms)
    counts = share.counts
    share.close()
    of, each = opened.origin.n_atoms, _frame_bytes(opened)
    kept = of if atoms is None else len(atoms)
    opened.origin.close()
    opened.close()
    return Looked(counts, of, each, stored_bytes(kept, each * kept / of or None))


def told(world: World, job: Job, found: Sequence[Looked], members: Mapping[str, Any]) -> str:
    """Return what would be done with one trajectory, or with the members of an ensemble, and how long it would take.

    Parameters
    ----------
    world, job
        What is asked.
    found
        Of each trajectory.
    members
        What else there is to say of members, by what it is.
    """
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


def _frame_bytes(opened: Opened) -> float:
    """Return the mean bytes of a frame in the origin, from some."""
    n = len(opened.frames)
    if not opened.origin.present or not n:
        return 0.0
    some = np.array([opened.frames[i] for i in np.unique(np.linspace(0, n - 1, min(n, SAMPLE)).astype(int)).tolist()])
    return opened.origin.nbytes(some) / len(some)


def _times(world: World, job: Job, counts: dict[str, int]) -> str:
    """Return what it would take, from a record of a run of these analyses; else which run would tell."""
    # DIR is what --again was given.
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
        costs = fit([observe(record, name)])
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
