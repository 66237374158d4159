"""What MPICH's wheel cannot begin with is said before: a launcher's protocol, too little memory, several containers."""

import re
import shlex
import subprocess
import sys
from operator import or_
from types import SimpleNamespace

import pytest
from support import needs
from support.ranks import clean_environment, mpiexec

from himach.errors import RankError
from himach.ranks import mpi
from himach.ranks.mpi import refuse_misfit
from himach.ranks.process_exit import ranks_of_node

CALL = [sys.executable, "-c", "from himach.ranks.mpi import refuse_misfit; refuse_misfit()"]


def test_a_launcher_that_speaks_another_protocol(monkeypatch):
    refuse_misfit()
    monkeypatch.setenv("PMIX_NAMESPACE", "slurm.pmix.1.0")
    with pytest.raises(RankError, match=r"speaks PMIx, .* use srun --mpi=pmi2, or .*bin/mpiexec"):
        refuse_misfit()
    monkeypatch.setenv("MPI4PY_LIBMPI", "/opt/mpi/lib/libmpi.so")  # what that speaks is not known
    refuse_misfit()


@pytest.mark.parametrize(("ranks", "fits"), [(12, True), (16, False)])
def test_too_little_shared_memory(ranks, fits):
    needs.mount_namespace()
    small = f"mount -t tmpfs -o size=64m none /dev/shm && exec {shlex.join(CALL)}"
    environ = clean_environment(MPI_LOCALNRANKS=str(ranks))
    command = ["unshare", "-m", "sh", "-c", small]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == fits
    assert fits or re.search(r"/dev/shm on node .* or use at most 12 ranks on a node", done.stderr)


@pytest.mark.parametrize(
    ("said", "ranks"), [("4", 4), ("2(x3)", 2), ("4(x2),3", 4), ("3,12(x2),1", 12), ("", 1), ("100(x12)", 100)]
)
def test_ranks_of_a_node(said, ranks):
    assert ranks_of_node({"SLURM_STEP_TASKS_PER_NODE": said}) == ranks
    assert ranks_of_node({"PMI_SIZE": "5"}) == 5


@pytest.mark.parametrize(
    ("hosts", "said"), [("aa", "on one host, of node n3, no memory in common"), ("ab", "HIMACH_NODE")]
)
def test_ranks_of_a_node_that_share_no_memory(hosts, said):
    """Open MPI under srun --mpi=pmix does not learn which ranks share a host; or two hosts carry one name."""
    alone = SimpleNamespace(size=1, Free=lambda: None)
    node = SimpleNamespace(size=2, rank=0, Split_type=lambda kind: alone, allgather=lambda own: list(hosts))
    comm = SimpleNamespace(size=2, rank=0, Split=lambda *place: node, allreduce=lambda value, op: value)
    library = SimpleNamespace(COMM_TYPE_SHARED=1, LOR=or_, Get_library_version=lambda: "Open MPI v5.0.6\n")
    with pytest.raises(RankError, match=said):
        mpi._world(library, comm, ("n3", "n3"))


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
