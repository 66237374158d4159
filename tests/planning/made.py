"""Records of runs that were never made, of a known cost, for tests of plans."""

import numpy as np
from support.sample_runs import make_record


def record(
    frames=1000,
    ranks=2,
    nodes=2,
    compute=0.01,
    read=0.002,
    cached=False,
    startup=0.5,
    pair_bytes=6400.0,
    reduce=0.3,
    frame_bytes=1000,
    name="Made",
    spread=0.0,
    hosts=None,
    shuffle=0.02,
    parts=None,
):
    """Return the record of a run whose frames are shared evenly, as run.json has it."""
    each = [frames * (i + 1) // ranks - frames * i // ranks for i in range(ranks)]
    busy = [count * (compute + read) for count in each]
    constants = {
        "startup": startup, "opening": 0.8 * startup, "zazen": 0.01, "memory": 100_000_000, "keys": 64 // ranks,
        "read": read, "compute": compute, "shuffle": shuffle, "reduce": reduce / ranks, "sent": 0,
    }  # fmt: skip
    table = {
        "rank": list(range(ranks)),
        "node": [i * nodes // ranks for i in range(ranks)],
        "cache_bytes": [count * frame_bytes * cached for count in each],
        "origin_bytes": [count * frame_bytes * (1 - cached) for count in each],
        "busy": busy,
        "cpu": busy,
        **dict.fromkeys(("frames", "pairs"), each),
        **{name: [value] * ranks for name, value in constants.items()},
    }
    seconds = {
        "startup": startup, "zazen": 0.01, "map": max(busy), "shuffle": shuffle, "reduce": reduce / ranks,
        "finish": 0.001,
    }  # fmt: skip
    return {
        **make_record(),
        "analyses": [{"name": name, "parameters": {}}],
        "dataset": {"path": "/sim1", "frames": frames, "atoms": 100, "fingerprint": "f"},
        "frames": frames,
        "ranks": ranks,
        "nodes": nodes,
        "assignment": {"native": 0, "alien": frames * cached, "residue": frames * (1 - cached)},
        "bytes": {"cache": sum(table["cache_bytes"]), "origin": sum(table["origin_bytes"]), "shuffled": 0},
        "seconds": seconds | dict.fromkeys(("total", "whole"), sum(seconds.values())),
        "pairs": frames,
        "planning": {
            "ranks_per_node": [ranks // nodes] * 2,
            "hosts": hosts or nodes,
            "cores": 4,
            "node_memory": 1 << 34,
            "share_frames": each,
            "frame_seconds": np.linspace(compute * (1 - spread), compute * (1 + spread), 33).tolist(),
            "pair_bytes": parts or [pair_bytes * frames / 1000 / 64] * 64,
            "spilled": 0,
            "zazen": {"sets": 0.0, "rounds": 0.01, "reductions": 0},
            "ranks": table,
            "totals": {
                column: {"sum": sum(cells), "median": float(np.median(cells)), "most": max(cells)}
                for column, cells in table.items()
            },
        },
    }
