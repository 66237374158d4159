"""What tests of ranks share."""

import uuid
from collections.abc import Iterator

import pytest
from support.commands import processes_with, wait_until


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Mark the processes that a test starts, of which none may be left."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv("HIMACH_TEST_MARK", mark)
    yield mark
    assert wait_until(lambda: not processes_with(mark), 60), "processes are left"
