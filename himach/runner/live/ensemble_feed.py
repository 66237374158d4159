"""Ensembles with running engines as members: `EnsembleFeed`, and `members_so_far()`, each with its frames so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from himach.errors import HimachError, UsageError
from himach.io.datasets.member import Member, read_members
from himach.io.datasets.request import FramesRequest
from himach.io.push.address import EngineAddress
from himach.runner.live.frame_sources import FramesSoFar
from himach.runner.live.imd_client import ImdClient, ReceiverOptions
from himach.runner.options import LiveOptions


def engine_among(trajectories: Sequence[Path]) -> EngineAddress | None:
    """Return the first engine among trajectories; None if there is none."""
    return next(filter(None, map(EngineAddress.parse, trajectories)), None)


def check_ensemble(request: FramesRequest, live: LiveOptions) -> None:
    """Raise UsageError if the ensemble cannot be followed."""
    engines = _engine_members(request)
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


def _engine_members(request: FramesRequest) -> list[tuple[Member, EngineAddress]]:
    """Return the members with an engine among their trajectories, and the engines."""
    assert request.ensemble is not None
    members = read_members(request.ensemble, request.topology)
    engines = [(member, engine_among(member.trajectories)) for member in members]
    return [(member, engine) for member, engine in engines if engine is not None]


class EnsembleFeed:
    """The engines among the members of an ensemble, each received by a program of its own."""

    def __init__(self, request: FramesRequest, live: LiveOptions) -> None:
        engines = _engine_members(request)
        self._feeds = {
            member.name: ImdClient(ReceiverOptions.for_engine(engine, request, live, member, len(engines)))
            for member, engine in engines
        }
        self._errors: dict[str, HimachError] = {}
        self._counts: Mapping[str, int] = {}  # frames at the last poll

    def start(self) -> None:
        """Start all receivers."""
        for feed in self._feeds.values():
            feed.start()

    def poll(self) -> FramesSoFar:
        """Return the state of the frames in total and by member; raise an error if all members failed."""
        states = {name: self._poll(name) for name in self._feeds}
        if len(self._errors) == len(self._feeds):
            raise next(iter(self._errors.values()))
        self._counts = {name: state.frames for name, state in states.items()}
        reasons = [state.over for state in states.values()]
        return FramesSoFar(
            sum(self._counts.values()),
            any(state.late for state in states.values()),
            "; ".join(dict.fromkeys(reasons)) if all(reasons) else "",
            details={"members": {name: state.details for name, state in states.items()}},
            members=self._counts,
        )

    def _poll(self, name: str) -> FramesSoFar:
        """Poll one member; an error concerns only this member."""
        try:
            return self._feeds[name].poll()
        except HimachError as error:
            self._errors[name] = error
            return FramesSoFar(over=str(error), details={"error": str(error)})

    def analysed(self, frames: int) -> None:
        """Tell each receiver that its frames of the last poll are analysed."""
        for name, count in self._counts.items():
            self._feeds[name].analysed(count)

    def stop(self) -> None:
        """Stop all receivers."""
        for feed in self._feeds.values():
            feed.stop()

    def close(self) -> None:
        """Close all receivers."""
        for feed in self._feeds.values():
            feed.close()


def members_so_far(request: FramesRequest, so_far: FramesSoFar) -> list[Member] | None:
    """Return members with their frames so far, without engines that have none yet; None without an ensemble."""
    if request.ensemble is None or so_far.members is None:
        return None
    members: list[Member] = []
    for member in read_members(request.ensemble, request.topology):
        if (count := so_far.members.get(member.name)) is None:
            members.append(member)
        elif count or so_far.over:
            details: Mapping[str, Any] = so_far.details["members"][member.name]
            stop = request.stop if member.stop is None else member.stop
            members.append(
                replace(
                    member,
                    trajectory=Path(details["dataset"]) if count else member.trajectory,
                    stop=count if stop is None or stop < 0 else min(count, stop),
                )
            )
    return members
