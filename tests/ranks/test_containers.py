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
print(shared.words.tolist())
"""


@pytest.mark.parametrize("inside", [0, 1, None])
def test_ranks_in_several_containers_are_refused_by_name(inside):
    """The number of a process in one container is that of another process in the next."""
    if subprocess.run([*CONTAINER, "true"], capture_output=True, check=False).returncode:
        needs.skip("the right to begin a container (unshare --user --pid)")
    command = ["sh", "-c", INSIDE, str(inside), *CONTAINER, sys.executable, "-c", SHARE]
    done = mpiexec(2, command, timeout=60, environ={"UCX_TLS": "tcp,self"})
    if inside is None:
        assert (done.returncode, done.stdout) == (0, 2 * "[5, 6]\n"), done.stderr
    else:
        assert done.returncode == 1 and " do not see each other in /proc, and " in done.stderr
