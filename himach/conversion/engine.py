"""A conversion of a running engine's frames: `convert_engine()`; they are kept as a dataset, and then converted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from himach.conversion.options import ConvertOptions
from himach.conversion.target import Converted
from himach.opening.options import LiveOptions
from himach.parallel.communicator import World
from himach.runner.run import on_ranks, run_live

if TYPE_CHECKING:
    from himach.launch.ranks import Ranks
    from himach.runner.live.updates import Update

__all__ = ["convert_engine"]


def convert_engine(options: ConvertOptions, ranks: int | Ranks | None, do: Callable[..., Converted]) -> Converted:
    """Convert the frames that an engine gives until it ends, Ctrl-C comes, or there are as many as were asked for.

    Parameters
    ----------
    options
        What is asked.
    ranks
        As of `himach.runner.run.run_live`.
    do
        Converts what is there, given a world and `options`; can be pickled.

    Raises
    ------
    HimachError
        As of `himach.convert`; frames that came are kept as a dataset.
    """
    options.check_files()  # before the engine begins

    def update(world: World, held: Ranks | None, one: Update) -> tuple[Converted | None, None]:
        if not one.last:
            return None, None  # the engine is paused no longer
        there = replace(options, trajectories=[*one.trajectories], stop=one.stop)
        return (do(world, there) if held is None else on_ranks(partial(do, options=there), held)), None

    done = run_live(options, LiveOptions(), ranks, update)
    assert done is not None
    return done
