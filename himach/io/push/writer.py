"""Pushing frames of a running simulation to the stores of other nodes: `Writer`, with MDAnalysis's writer interface."""

import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.errors import UsageError
from himach.io.server.admission import default_key_file
from himach.io.server.client import socket_path
from himach.io.server.survey import DEFAULT_PORT
from himach.io.store import bodhi
from himach.io.store.cached_frames import base_name
from himach.io.store.quota import chosen_quota, store_place
from himach.ranks.process_exit import promised_rank

Vectors = npt.NDArray[np.float32]


class Writer:
    """Pushes frames to servers in turn, by their numbers.

    A server that does not answer is passed over and tried again later; frames that it left unanswered go to another.

    A dataset has the frames of one simulation. It knows the first one that pushed to it by its `identity`, and takes
    frames of no other. A frame that is there already is acknowledged if it is the same to the last bit, so that a
    simulation that is restarted may push some once more; if it is another, nothing more is taken from this writer.

    Parameters
    ----------
    dataset
        Name of the dataset.
    n_atoms
        Number of atoms in every frame.
    nodes
        Names of nodes whose servers listen at port `DEFAULT_PORT`.
    servers
        Addresses ``host:port``, or paths of Unix sockets. With neither nodes nor servers: this node's server.
    key
        Key file for servers that are reached by host and port; None for ``~/.config/himach/key``.
    generation
        Fingerprint of the content: another one means other frames.
    first
        Number of the first frame written.
    durable
        Count a frame as kept only when it would outlive a crash of its node's machine, not only of the server.
    timeout
        Seconds that a call waits while no frame goes and no acknowledgement comes; then it is an error. A server that
        is silent for a third of it is tried anew, and its frames may go to another. Ctrl-C ends any wait; leaving the
        ``with`` block by it gives up the frames in flight.
    identity
        Which simulation this is: what it says again when it is restarted, and what all its ranks say. None for the path
        of the working directory; an empty text says nothing, and only frames are compared.
    batch_bytes
        Bytes after which a server is asked to acknowledge; four times as many may be in flight. 0 for 16 MiB.
    rank
        Of slices, which process of the simulation this is: no two of them are the same one. None for what the launcher
        says.
    launch
        Of slices, what all processes of one launch of the simulation say alike, and those of no other: a frame is made
        of slices of one launch, and where two have pushed a frame the later one's is meant. None for what ``srun``, or
        the ``mpiexec`` of Open MPI or Cray, says; an empty text says nothing, and slices of any launch mix.
    cache
        Of slices, the directory of this node's store, as of `himach.io.store.quota.store_place`.

    Attributes
    ----------
    n_atoms : int
        Number of atoms in every frame.
    number : int
        Number that the next frame gets.

    Raises
    ------
    ServerUnreachableError
        No server answers; where none is named and this node has none, that is told at the first whole frame.
    himach.io.store.bodhi.ServerRefusedError
        A server refuses the key or this user, or does not have the key itself.
    StoreConflictError
        The dataset has frames of another simulation.

    Examples
    --------
    To the server of this node; with ``nodes=["n1", "n2"]``, to those of others.

    >>> with himach.Writer("run7", n_atoms=u.atoms.n_atoms) as writer:
    ...     for ts in u.trajectory:
    ...         writer.write(u)
    """

    def __init__(
        self,
        dataset: str,
        n_atoms: int,
        *,
        nodes: Sequence[str] = (),
        servers: Sequence[str] = (),
        key: str | os.PathLike[str] | None = None,
        generation: bytes = b"",
        first: int = 0,
        durable: bool = False,
        timeout: float = 60.0,
        batch_bytes: int = 0,
        identity: str | None = None,
        rank: int | None = None,
        launch: str | None = None,
        cache: str | os.PathLike[str] | None = None,
    ) -> None:
        if isinstance(nodes, str) or isinstance(servers, str):
            raise UsageError("nodes and servers are lists of names, not one string")
        if n_atoms < 1:
            raise UsageError(f"n_atoms is {n_atoms}; a frame has at least one atom")
        base = base_name(dataset)
        if base != dataset:
            suffix = dataset.removeprefix(base)
            raise UsageError(f"dataset is {dataset!r}; what ends with {suffix!r} is himach's own: choose another name")
        addresses = [f"{node}:{DEFAULT_PORT}" for node in nodes] + list(servers)
        has_addresses = bool(addresses)
        if not addresses:
            addresses = [os.fspath(socket_path(cache).absolute())]
        self.n_atoms = n_atoms
        self._closed = False
        self._to_store = not has_addresses or cache is not None
        self._cache = cache
        self._rank = promised_rank() if rank is None else rank
        if launch is not None and "\0" in launch:
            raise UsageError("launch holds a NUL byte")
        self._launch = None if launch is None else launch.encode()
        if self._rank < 0:
            raise UsageError(f"rank is {rank}; ranks are counted from 0")
        self.number = first
        remote = any("/" not in address for address in addresses)
        key_file = os.fsencode(Path(key) if key is not None else default_key_file()) if remote else None
        self._args = (addresses, dataset, generation, key_file, durable, int(timeout * 1000), batch_bytes, identity)
        self._frames: bodhi.PusherHandle | None = None
        self._slices: bodhi.PusherHandle | None = None
        if has_addresses or os.path.exists(addresses[0]):
            self._frames = bodhi.PusherHandle(*self._args)

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if isinstance(error, KeyboardInterrupt):
            for pusher in self._take_pushers():
                pusher.abandon()
        else:
            self.close()

    def write(self, obj: Any) -> None:
        """Push the present frame of an AtomGroup or Universe, with velocities and forces if it has them.

        Raises
        ------
        ValueError
            It has another number of atoms than the writer.
        ServerUnreachableError, StoreFullError
            No server takes frames now. The frame is not taken; earlier ones are given again at the next call.
        StoreConflictError
            An earlier frame is there with other content, time or number of atoms.
        """
        atoms = obj.atoms
        ts = atoms.universe.trajectory.ts
        self.push(
            atoms.positions,
            time=ts.time,
            box=ts.dimensions,
            velocities=atoms.velocities if ts.has_velocities else None,
            forces=atoms.forces if ts.has_forces else None,
        )

    def push(
        self,
        positions: npt.ArrayLike,
        *,
        time: float,
        box: npt.ArrayLike | None = None,
        velocities: npt.ArrayLike | None = None,
        forces: npt.ArrayLike | None = None,
    ) -> None:
        """Push one frame.

        Parameters
        ----------
        positions, velocities, forces
            (n_atoms, 3), in Å, Å/ps and kJ/(mol Å).
        time
            In ps.
        box
            Lengths in Å and angles in degrees (6,), or None.

        Raises
        ------
        Errors are those of `write`.
        """
        self._frame_pusher().push(
            self.number,
            time,
            self._vectors(positions, "positions"),
            box,
            None if velocities is None else self._vectors(velocities, "velocities"),
            None if forces is None else self._vectors(forces, "forces"),
        )
        self.number += 1

    def push_slice(
        self,
        number: int,
        ids: npt.ArrayLike,
        positions: npt.ArrayLike,
        *,
        time: float,
        box: npt.ArrayLike | None = None,
        velocities: npt.ArrayLike | None = None,
        forces: npt.ArrayLike | None = None,
    ) -> None:
        """Push those atoms of a frame that this process of a simulation has now.

        A frame is there when its slices cover atoms 0 to n_atoms - 1 once. They go straight to the store of this node,
        else to the servers; runs, and ``himach stage NAME --assemble``, make whole frames of them.

        Parameters
        ----------
        number
            Frame number, the same on all ranks.
        ids
            int (n,): which atom of the frame each row is, counted from 0, in any order.
        positions, velocities, forces
            (n, 3), in Å, Å/ps and kJ/(mol Å).
        time, box
            As of `push`, the same on all ranks.

        Raises
        ------
        Errors are those of `write`; straight to the store also those of `himach.io.store.store.Dataset.write`: what was
        not acknowledged is then to be pushed again.
        """
        pusher = self._slices if self._slices is not None else self._slice_pusher()
        pusher.push_slice(number, time, ids, positions, box, velocities, forces)

    def _frame_pusher(self) -> bodhi.PusherHandle:
        """Return the pusher of whole frames."""
        self._check_open()
        if self._frames is None:
            self._frames = bodhi.PusherHandle(*self._args)
        return self._frames

    def _slice_pusher(self) -> bodhi.PusherHandle:
        """Return the pusher of slices: straight to the store, unless servers and no cache were named."""
        self._check_open()
        if self._slices is None:
            place = store_place(self._cache) if self._to_store else None
            if place is not None:
                place.parent.mkdir(parents=True, exist_ok=True)
            store = None if place is None else os.fsencode(place)
            quota = 0 if place is None else chosen_quota(place)
            self._slices = bodhi.PusherHandle(*self._args, (self.n_atoms, self._rank, store, quota, self._launch))
        return self._slices

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("the writer is closed")

    def _take_pushers(self) -> list[bodhi.PusherHandle]:
        """Mark the writer as closed and hand over its open pushers."""
        pushers = [pusher for pusher in (self._frames, self._slices) if pusher is not None]
        self._frames = self._slices = None
        self._closed = True
        return pushers

    def _vectors(self, values: npt.ArrayLike, name: str) -> Vectors:
        array = np.ascontiguousarray(values, dtype=np.float32)
        if array.shape != (self.n_atoms, 3):
            raise ValueError(f"{name} have shape {array.shape}; this writer has frames of shape ({self.n_atoms}, 3)")
        return array

    def flush(self) -> None:
        """Wait until all frames and slices pushed so far are kept by a server, or the store.

        Raises
        ------
        ServerUnreachableError, StoreFullError
            Some are not; they stay in flight.
        StoreConflictError
            As in `write`.
        """
        self._check_open()
        for pusher in (self._frames, self._slices):
            if pusher is not None:
                pusher.flush()

    def facts(self) -> dict[str, int]:
        """Return the numbers of frames and slices acknowledged, in_flight and given_again, and of servers_up."""
        self._check_open()
        counts = [pusher.facts() for pusher in (self._frames, self._slices) if pusher is not None]
        names = ("acknowledged", "in_flight", "given_again", "servers_up")
        return {name: sum(count[name] for count in counts) for name in names}

    def close(self) -> None:
        """Flush and close; a second time it does nothing. Errors are those of `flush`."""
        errors = []
        for pusher in self._take_pushers():
            try:
                pusher.close()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]
