"""Other users than the owner of a server."""

import os
import pwd
import subprocess
import tempfile
from pathlib import Path

import pytest
from support import needs


def become(user):
    """Make this process another user's."""
    os.setgroups([])
    os.setgid(user.pw_gid)
    os.setuid(user.pw_uid)


@pytest.fixture
def stranger():
    needs.root("to make a user")
    needs.program("useradd")
    name = f"himach{os.getpid()}"
    subprocess.run(["useradd", "--no-create-home", name], check=True)
    try:
        yield pwd.getpwnam(name)
    finally:
        subprocess.run(["userdel", name], check=True, capture_output=True)


@pytest.fixture
def open_place():
    """A directory that everybody may enter, as /var/tmp is; pytest's own are closed."""
    with tempfile.TemporaryDirectory(prefix="himach-test-") as directory:
        os.chmod(directory, 0o1777)
        yield Path(directory)
