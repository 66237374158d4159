"""``himach run --dry-run``: what the very run that is asked for would do, on the ranks that there are.

The trajectory is opened as for the run, analyses are set up, and frames are assigned, so it is known where each would
be read; no frame but the first is. Times come from an earlier run's record, where there is one: in ``--out``, or that
of ``--again``.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from himach.errors import UsageError
from himach.opening.dataset import open_frames
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

__all__ = ["dry_run"]

#: Frames from which the bytes of all are told.
SAMPLE = 1000


def dry_run(world: World, job: Job) -> str | None:
    """Return what the run would do, on rank 0 (collective).

    Raises
    ------
    UsageError
        It is a run over an ensemble.
    """
    if job.ensemble is not None:
        raise UsageError(
            "--dry-run tells of one trajectory: 'himach info --ensemble' says what each member is, and what is cached"
        )
    chains = [stages(analysis) for analysis in job.analyses]
    opened = open_frames(world, job, assemble_for_run)
    atoms = needed_atoms(on_every_rank(world.comm, partial(set_up, world.comm.rank, chains, opened, job.given)))
    share = assign_frames(world, opened, None, atoms)
    counts = share.counts
    share.close()
    kept = opened.origin.n_atoms if atoms is None else len(atoms)
    text = on_first_rank(world.comm, lambda: _told(world, job, opened, counts, kept))
    opened.origin.close()
    opened.close()
    return text if world.comm.rank == 0 else None


def _told(world: World, job: Job, opened: Opened, counts: dict[str, int], kept: int) -> str:
    """Return what would be done; `kept` are the atoms of each frame that stay in the cache."""
    frames = sum(counts.values())
    each = _frame_bytes(opened)
    stored = stored_bytes(kept, each * kept / opened.origin.n_atoms or None)
    what = {
        "frames": frames,
        "atoms": opened.origin.n_atoms,
        "ranks": world.comm.size,
        "nodes": len(world.nodes),
        "in caches, native": counts["native"],
        "in caches, alien": counts["alien"],
        "from the origin": counts["residue"],
        "from the origin, MB": round(counts["residue"] * each / 1e6, 3),
        "a node's part in its store, MB": round(frames * stored / len(world.nodes) / 1e6, 3),
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
