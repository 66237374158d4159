"""The work of each rank for ``himach convert``: `ConvertCommand`."""

from __future__ import annotations

from dataclasses import dataclass

from himach.conversion.options import ConvertOptions
from himach.ranks.communicator import World
from himach.ranks.launch.preload import preload
from himach.ranks.process_exit import promised_rank
from himach.ranks.quiet import quiet_ranks


@dataclass(frozen=True)
class ConvertCommand:
    """A conversion of the command line; returns the result as text on rank 0, unless quiet."""

    options: ConvertOptions

    def __call__(self, world: World) -> str | None:
        """Convert as one of the ranks."""
        with quiet_ranks(world.comm.rank, command=True):
            preload()
            from himach.conversion.convert import convert_here

            result = convert_here(world, self.options)
            return None if self.options.quiet or world.comm.rank else str(result)

    def run_on_engine(self, ranks: int) -> str | None:
        """Convert the frames of a running engine, on `ranks` new ranks or, if 0, on those of a launcher."""
        from himach.conversion.convert import convert_engine

        rank = promised_rank()
        with quiet_ranks(rank, command=True):
            result = convert_engine(self.options, ranks or None)
            return None if self.options.quiet or rank else str(result)
