"""An ensemble of which members are running engines: `EnsembleFeed`, and `members_so_far()`, what is there of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from himach.errors import HimachError, UsageError
from himach.io.push.address import EngineAddress
from himach.opening.member import Member
from himach.opening.member_table import members_of
from himach.opening.options import FramesRequest, LiveOptions
from himach.runner.live.frame_sources import FramesSoFar
from himach.runner.live.imd_client import ImdClient, ReceiverOptions


def engine_among(trajectories: Sequence[Path]) -> EngineAddress | None:
    """Return the first engine that is named among trajectories; None if there is none."""
    return next(filter(None, map(EngineAddress.named, trajectories)), None)


def check_ensemble(asked: FramesRequest, live: LiveOptions) -> None:
    """Refuse what makes no sense; raises UsageError."""
    engines = _engines_of(asked)
    if not engines:
        raise UsageError(
            "members of an ensemble are followed where they are running engines, imd://HOST:PORT; follow each file by "
            "a run of its own, and run the ensemble over what they leave"
        )
    if live.until is not None:
        raise UsageError("until is about the intervals of one simulation: leave it out for an ensemble")
    for member, engine in engines:
        if len(member.trajectories) > 1:
            raise UsageError(f"member {member.name}: {engine} is followed by no other trajectory, and follows none")
        if member.topology is None:
            raise UsageError(f"member {member.name}: {engine} tells positions alone: name a topology file, too")


def _engines_of(asked: FramesRequest) -> list[tuple[Member, EngineAddress]]:
    """Return the members of which a trajectory is an engine."""
    assert asked.ensemble is not None
    members = members_of(asked.ensemble, asked.topology)
    found = [(member, engine_among(member.trajectories)) for member in members]
    return [(member, engine) for member, engine in found if engine is not None]


class EnsembleFeed:
    """The engines among the members of an ensemble, each received by a program of its own."""

    def __init__(self, asked: FramesRequest, live: LiveOptions) -> None:
        engines = _engines_of(asked)
        self._feeds = {
            member.name: ImdClient(ReceiverOptions.of(engine, asked, live, member, len(engines)))
            for member, engine in engines
        }
        self._errors: dict[str, HimachError] = {}
        self._counts: Mapping[str, int] = {}  # when they were looked at last

    def begin(self) -> None:
        """Have frames come."""
        for feed in self._feeds.values():
            feed.begin()

    def look(self) -> FramesSoFar:
        """Return what there is by now, of all and of each; raises where nothing can come of any."""
        seen = {name: self._look(name) for name in self._feeds}
        if len(self._errors) == len(self._feeds):
            raise next(iter(self._errors.values()))
        self._counts = {name: one.frames for name, one in seen.items()}
        over = [one.over for one in seen.values()]
        return FramesSoFar(
            sum(self._counts.values()),
            any(one.late for one in seen.values()),
            "; ".join(dict.fromkeys(over)) if all(over) else "",
            told={"members": {name: one.told for name, one in seen.items()}},
            members=self._counts,
        )

    def _look(self, name: str) -> FramesSoFar:
        """Look at one, whose error is its own."""
        try:
            return self._feeds[name].look()
        except HimachError as error:
            self._errors[name] = error
            return FramesSoFar(over=str(error), told={"error": str(error)})

    def analysed(self, frames: int) -> None:
        """Tell each engine that all of its frames that were seen are in an outcome."""
        for name, count in self._counts.items():
            self._feeds[name].analysed(count)

    def stop(self) -> None:
        """End them."""
        for feed in self._feeds.values():
            feed.stop()

    def close(self) -> None:
        """Leave nothing behind."""
        for feed in self._feeds.values():
            feed.close()


def members_so_far(asked: FramesRequest, seen: FramesSoFar) -> list[Member] | None:
    """Return members with the frames that there are, without engines of which none has come; None of no ensemble."""
    if asked.ensemble is None or seen.members is None:
        return None
    found: list[Member] = []
    for member in members_of(asked.ensemble, asked.topology):
        if (count := seen.members.get(member.name)) is None:
            found.append(member)
        elif count or seen.over:
            told: Mapping[str, Any] = seen.told["members"][member.name]
            stop = asked.stop if member.stop is None else member.stop
            found.append(
                replace(
                    member,
                    trajectory=Path(told["dataset"]) if count else member.trajectory,
                    stop=count if stop is None or stop < 0 else min(count, stop),
                )
            )
    return found
