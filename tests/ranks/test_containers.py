"""Ranks of one node in containers, which do not see each other in /proc."""

import subprocess
import sys

import pytest
from support import needs
from support.ranks import mpiexec

CONTAINER = ["unshare", "--user", "--map-current-user", "--pid", "--fork", "--mount-proc"]
INSIDE = f'if [ "$PMI_RANK" = "$0" ]; then exec "$@"; else shift {len(CONTAINER)}; exec "$@"; fi'
SHARE = """
from himach.ranks import mpi
world = mpi.connect()
shared = world.share_words(2)
shared.words[world.node.rank] = 5 + world.node.rank
world.node.barrier()
print(shared.words.tolist(), type(shared).__name__)
"""


@pytest.mark.parametrize(("inside", "words"), [(0, "_SharedWords"), (1, "_SharedWords"), (None, "OwnWords")])
def test_ranks_share_words_from_one_container_to_another(inside, words):
    """The number of a process in one container is that of another process in the next."""
    if subprocess.run([*CONTAINER, "true"], capture_output=True, check=False).returncode:
        needs.skip("the right to begin a container (unshare --user --pid)")
    command = ["sh", "-c", INSIDE, str(inside), *CONTAINER, sys.executable, "-c", SHARE]
    done = mpiexec(2, command, timeout=60, environ={"UCX_TLS": "tcp,self"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == 2 * [f"[5, 6] {words}"]
