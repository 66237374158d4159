"""A conversion of many simulations, a file for each: `convert_members()`."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from himach.conversion.options import ConvertOptions
from himach.conversion.target import Converted
from himach.errors import HimachError, UsageError
from himach.opening.member import Member, truncate
from himach.parallel.collective import on_first_rank
from himach.parallel.communicator import World
from himach.runner.ensemble.member_run import attempt, each_member

Each = Sequence[tuple[Member, ConvertOptions]]


def convert_members(
    world: World, options: ConvertOptions, do: Callable[[World, ConvertOptions], Converted]
) -> Converted:
    """Convert each member of an ensemble by `do`, a large one on all ranks of `world`, others on one (collective)."""
    began = time.perf_counter()
    every: Each = on_first_rank(world.comm, partial(_asked, options), share=True)

    def convert(own: World, at: int) -> Converted | HimachError:
        member, asked = every[at]
        return attempt(own, member, partial(do, own, asked))

    done = each_member(world, options, [member for member, _ in every], convert, options.quiet)
    told = world.comm.gather(done)
    return on_first_rank(world.comm, partial(_concluded, options, every, told, began), share=True)


def _asked(options: ConvertOptions) -> Each:
    """Return what the conversion of each member is asked; raises UsageError if one writes over what another reads."""
    every = list(options.of_members())
    read = {
        os.path.realpath(path) for member, asked in every for path in (*member.trajectories, asked.topology) if path
    }
    for member, asked in every:
        for path in asked.files:
            if os.path.realpath(path) in read:
                raise UsageError(f"member {member.name}: {path} is what is read; write to another file")
    return every


def _concluded(
    options: ConvertOptions, every: Each, told: Sequence[Mapping[int, Converted | HimachError]], began: float
) -> Converted:
    """Return what was written of all; raises HimachError if any failed."""
    came = dict(sorted((at, one) for own in told for at, one in own.items()))
    failed = [one for one in came.values() if isinstance(one, HimachError)]
    members = {every[at][0].name: one for at, one in came.items() if isinstance(one, Converted)}
    whose: dict[str, list[str]] = {}
    for name, one in members.items():
        for text in one.warnings:
            whose.setdefault(text, []).append(name)
    for text, names in whose.items():
        warnings.warn(f"{truncate(names)}: {text}", stacklevel=2)
    if failed:
        rest = f"; the other {len(members):,} members are written" if members else ""
        raise type(failed[0])(truncate(list(map(str, failed)), "; ") + rest)
    assert options.out is not None and options.topology_out is not None
    sums = {name: sum(getattr(one, name) for one in members.values()) for name in ("frames", "n_bytes")}
    first = next(iter(members.values()))
    return Converted(
        options.out, options.topology_out, atoms=max(one.atoms for one in members.values()), **sums,
        seconds=time.perf_counter() - began, done=first.done, members=members,
    )  # fmt: skip
