"""What ``himach convert`` asks for, as plain values that travel to the ranks that do it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from himach.conversion.options import ConvertOptions
    from himach.parallel.communicator import World

__all__ = ["ConvertCommand"]


@dataclass(frozen=True)
class ConvertCommand:
    """Convert a trajectory.

    Attributes
    ----------
    keywords
        ``NAME=VALUE`` for MDAnalysis.
    given
        Fields of `himach.conversion.options.ConvertOptions` that were given.
    """

    keywords: tuple[str, ...]
    given: Mapping[str, Any]

    def __call__(self, world: World) -> str | None:
        """Do it as one of the ranks; return what was written, on rank 0 and unless quiet."""
        from himach.launch.lazy_mdanalysis import import_mdanalysis
        from himach.parallel.collective import on_every_rank
        from himach.parallel.quiet import quiet_ranks

        with quiet_ranks(world.comm.rank, command=True):
            import_mdanalysis()
            from himach.conversion.convert import convert_here

            options = on_every_rank(world.comm, self.options)
            done = convert_here(world, options)
            return None if options.quiet or world.comm.rank else str(done)

    def of_engine(self, ranks: int) -> str | None:
        """Do it for a running engine, on so many ranks that are started, or on those of a launcher; return the same."""
        from himach.conversion.convert import convert_here
        from himach.conversion.engine import convert_engine
        from himach.parallel.environment import promised_rank
        from himach.parallel.quiet import quiet_ranks

        rank, options = promised_rank(), self.options()
        with quiet_ranks(rank, command=True):
            done = convert_engine(options, ranks or None, convert_here)
            return None if options.quiet or rank else str(done)

    def options(self) -> ConvertOptions:
        """Return them."""
        from himach.conversion.options import ConvertOptions
        from himach.opening.options import parse_keywords

        return ConvertOptions(**self.given, keywords=parse_keywords(self.keywords))
