"""Conversion of many simulations, one file each: `convert_members()`."""

import os
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial

from himach.conversion.options import ConvertOptions
from himach.conversion.target_files import Converted
from himach.errors import HimachError, UsageError
from himach.io.datasets.member import Member, truncate
from himach.ranks.collective import on_first_rank
from himach.ranks.communicator import World
from himach.runner.ensemble.member_run import attempt, each_member

MemberJobs = Sequence[tuple[Member, ConvertOptions]]


def convert_members(
    world: World, options: ConvertOptions, convert_one: Callable[[World, ConvertOptions], Converted]
) -> Converted:
    """Convert each member of an ensemble by `convert_one`, large ones on all ranks, others on one (collective)."""
    start = time.perf_counter()
    jobs: MemberJobs = on_first_rank(world.comm, partial(_member_options, options), share=True)

    def convert(member_world: World, index: int) -> Converted | HimachError:
        member, request = jobs[index]
        return attempt(member_world, member, partial(convert_one, member_world, request))

    results = each_member(world, options, [member for member, _ in jobs], convert, options.quiet)
    return on_first_rank(world.comm, partial(_combine, options, jobs, results, start), share=True)


def _member_options(options: ConvertOptions) -> MemberJobs:
    """Return the options of each member; raises UsageError if one overwrites the input of another."""
    jobs = list(options.for_members())
    inputs = {
        os.path.realpath(path) for member, request in jobs for path in (*member.trajectories, request.topology) if path
    }
    for member, request in jobs:
        for path in request.files:
            if os.path.realpath(path) in inputs:
                raise UsageError(f"member {member.name}: {path} is what is read; write to another file")
    return jobs


def _combine(
    options: ConvertOptions, jobs: MemberJobs, results: Sequence[Converted | HimachError], start: float
) -> Converted:
    """Return the result of all members; raises HimachError if any failed."""
    failed = [result for result in results if isinstance(result, HimachError)]
    named = zip([member.name for member, _ in jobs], results, strict=True)
    members = {name: result for name, result in named if isinstance(result, Converted)}
    warned: dict[str, list[str]] = {}
    for name, result in members.items():
        for text in result.warnings:
            warned.setdefault(text, []).append(name)
    for text, names in warned.items():
        warnings.warn(f"{truncate(names)}: {text}", stacklevel=2)
    if failed:
        rest = f"; the other {len(members):,} members are written" if members else ""
        raise type(failed[0])(truncate(list(map(str, failed)), "; ") + rest)
    assert options.out is not None and options.topology_out is not None
    sums = {name: sum(getattr(result, name) for result in members.values()) for name in ("frames", "n_bytes")}
    first = next(iter(members.values()))
    return Converted(
        options.out, options.topology_out, atoms=max(result.atoms for result in members.values()), **sums,
        seconds=time.perf_counter() - start, done=first.done, members=members,
    )  # fmt: skip
