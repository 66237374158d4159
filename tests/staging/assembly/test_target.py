"""What is said of a store in which frames find no room, while others write to it and evict."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from himach.io.push.held_slices import SliceKind
from himach.io.store.quota import survey
from himach.io.store.store import Store
from himach.staging.assembly.target import AssemblyTarget

IS_FILE = Path.is_file


def test_files_that_vanish_meanwhile_are_no_error(tmp_path, monkeypatch):
    store = Store(tmp_path / "store")
    with store.dataset("others") as dataset:
        dataset.write(0, 0.0, None, np.random.default_rng(0).random((100_000, 3), np.float32))
    used = survey(store.path).used

    def is_file(path):
        """Somebody evicts whatever is looked at."""
        was = IS_FILE(path)
        if was and path.is_relative_to(store.path):
            path.unlink()
        return was

    monkeypatch.setattr(Path, "is_file", is_file)
    advice = re.search(r"--quota (\d+)MiB", AssemblyTarget(store, "run7", SliceKind(b"", 3, b"0" * 16)).advice())
    assert advice is not None
    assert 1 << 20 < used < int(advice[1]) << 20 < used + (5 << 20)
