"""Runs over H5MD, in HDF5 and in Zarr, on several ranks, cached and not, as MDAnalysis reads it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from mpi4py import MPI

import himach

from ..foreign import Seen, minimal_topology
from .trees import KINDS, theirs, tree, write

comm = MPI.COMM_WORLD


def test_every_kind():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(comm.bcast(name))
        expected = None
        if comm.rank == 0:
            content = tree(50)
            minimal_topology(folder, 7)
            expected = theirs(write(folder / "twin.h5md", content))
            for kind in KINDS:
                write(folder / kind, content)
        comm.barrier()
        for kind in KINDS:
            for stop, cache in ((None, "off"), (30, str(folder / "store")), (None, str(folder / "store"))):
                result = himach.run(
                    Seen(), folder / kind, minimal_topology(folder, 7), stop=stop, cache=cache, progress=False
                )
                if comm.rank == 0:
                    assert result.outcome == expected[:stop]
        comm.barrier()
