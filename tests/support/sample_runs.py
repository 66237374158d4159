"""Analyses and a record of a run that was never made, for tests of what a run shows and leaves behind."""

import himach
from himach.output.record import Record, analysis_record


class Plain(himach.Analysis):
    """Counts."""

    cutoff: float = 3.5


class Drawn(Plain):
    """Counts and draws."""

    def plot(self, outcome, axes):
        axes.plot(outcome["x"])
        axes.set(xlabel="time (ps)", ylabel="x")


class Failing(Plain):
    def plot(self, outcome, axes):
        raise KeyError("no such column")


def make_record(*analyses):
    return Record(
        himach="0.1.0",
        analyses=[analysis_record(analysis) for analysis in analyses],
        dataset={"path": "/sim1", "frames": 10, "atoms": 3, "fingerprint": "f"},
        frames=10,
        reused={"frames": 0, "reason": ""},
        pairs_directory=None,
        ranks=1,
        nodes=1,
        assignment={"native": 0, "alien": 0, "residue": 10},
        bytes={"cache": 0, "origin": 360, "shuffled": 0},
        seconds={
            "startup": 0,
            "zazen": 0,
            "map": 1,
            "shuffle": 0,
            "reduce": 0,
            "finish": 0,
            "total": 1.5,
            "write": 0,
            "draw": 0,
            "whole": 1.5,
        },
        pairs=10,
        errors=[],
    )
