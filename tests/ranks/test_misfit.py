"""What MPICH's wheel cannot begin with is said before it ends by itself: a launcher's protocol, too little memory."""

import re
import shlex
import subprocess
import sys
from operator import or_
from types import SimpleNamespace

import pytest
from support import needs
from support.ranks import clean_environment

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
