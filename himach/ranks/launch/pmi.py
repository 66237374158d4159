"""PMI-1, the line protocol by which MPICH's ranks find each other: `KeyValues` answers all ranks, without I/O.

A rank finds a socket in ``$PMI_FD``, its number in ``$PMI_RANK`` and the number of ranks in ``$PMI_SIZE``. Each line is
a command with words ``key=value`` and gets one line as its answer (a barrier's when all ranks have come).
"""

from __future__ import annotations

import os
import secrets
import socket

#: A rank's message that it no longer needs the others.
FINALIZE = b"cmd=finalize\n"
#: Most bytes of names, keys and values, as in MPICH's own launcher.
NAME, KEY, VALUE = 256, 64, 1024


class KeyValues:
    """Values that the ranks of one world exchange before MPI connects them."""

    def __init__(self, size: int) -> None:
        self.finalized: set[int] = set()
        self.aborted: int | None = None
        self._size = size
        # MPICH names its shared memory by a digest of this name, so that each world needs its own.
        self._name = f"kvs_{os.getpid()}_{secrets.token_hex(8)}_{socket.gethostname()}"[: NAME - 1]
        self._values = {"PMI_process_mapping": f"(vector,(0,1,{size}))"}
        self._waiting: set[int] = set()
        self._within: set[int] = set()  # ranks in the middle of a command of several lines

    def answer(self, rank: int, line: str) -> list[tuple[int, bytes]]:
        """Return the answers to a line of this rank: lines, each with the rank that gets it."""
        if rank in self._within or line.startswith("mcmd="):
            return self._spawning(rank, line)
        words = dict(word.split("=", 1) for word in line.split(" ") if "=" in word)
        command = words.get("cmd", "")
        if command == "barrier_in":
            return self._barrier(rank)
        if command == "abort":
            self.aborted = int(words.get("exitcode", 1))
            return []
        if command == "finalize":
            self.finalized.add(rank)
        return [(rank, f"{self._answer(command, words, line)}\n".encode())]

    def _answer(self, command: str, words: dict[str, str], line: str) -> str:
        if command == "put":
            self._values[words["key"]] = line.partition("value=")[2]
            return "cmd=put_result rc=0 msg=success"
        if command == "get":
            value = self._values.get(words["key"])
            if value is None:
                return f"cmd=get_result rc=-1 msg=key_{words['key']}_not_found value=unknown"
            return f"cmd=get_result rc=0 msg=success value={value}"
        return {
            "init": "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0",
            "get_maxes": f"cmd=maxes kvsname_max={NAME} keylen_max={KEY} vallen_max={VALUE} rc=0",
            "get_appnum": "cmd=appnum appnum=0 rc=0",
            "get_my_kvsname": f"cmd=my_kvsname kvsname={self._name} rc=0",
            "get_universe_size": f"cmd=universe_size size={self._size} rc=0",
            "finalize": "cmd=finalize_ack rc=0",
            "publish_name": "cmd=publish_result rc=-1 msg=no_name_service",
            "lookup_name": "cmd=lookup_result rc=-1 msg=no_name_service",
            "unpublish_name": "cmd=unpublish_result rc=-1 msg=no_name_service",
        }.get(command, f"cmd={command}_result rc=-1 msg=unknown_command")

    def _barrier(self, rank: int) -> list[tuple[int, bytes]]:
        self._waiting.add(rank)
        if len(self._waiting) < self._size:
            return []
        self._waiting.clear()
        return [(member, b"cmd=barrier_out rc=0\n") for member in range(self._size)]

    def _spawning(self, rank: int, line: str) -> list[tuple[int, bytes]]:
        """Refuse MPI_Comm_spawn, a command of several lines."""
        if line != "endcmd":
            self._within.add(rank)
            return []
        self._within.discard(rank)
        return [(rank, b"cmd=spawn_result rc=-1 errcodes=1 msg=ranks_start_no_ranks\n")]
