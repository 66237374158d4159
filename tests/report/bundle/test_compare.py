"""Where two files differ first is told in words of what they hold; equal bytes are equal."""

from __future__ import annotations

import numpy as np
import pytest

from himach.report.bundle.compare import difference

TABLE = "time_ps,rmsd\n0,1.5\n2,2.5\n4,3.5\n"


def describe(tmp_path, suffix, old, new) -> str:
    old_path, new_path = tmp_path / f"then{suffix}", tmp_path / f"now{suffix}"
    for path, content in ((old_path, old), (new_path, new)):
        if isinstance(content, np.ndarray):
            np.save(path, content)
        else:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return difference(old_path, new_path)


@pytest.mark.parametrize(
    ("suffix", "old", "new", "words"),
    [
        (".csv", TABLE, TABLE, ""),
        (".csv", TABLE, TABLE.replace("2.5", "2.75"), "line 3, column rmsd: it was 2.5, and is 2.75"),
        (
            ".csv",
            TABLE,
            TABLE.replace("1.5", "1.6").replace("3.5", "3.5000001"),
            "line 2, column rmsd: it was 1.5, and is 1.6; 2 cells differ, by a part of 0.06 at most",
        ),
        (".csv", TABLE, TABLE.replace("rmsd", "rg"), "its columns were time_ps,rmsd, and are time_ps,rg"),
        (".csv", TABLE, TABLE + "6,4.5\n", "it had 4 lines, and has 5"),
        (".csv", "ion\nK\n", "ion\nNa\n", "line 2, column ion: it was K, and is Na"),
        (".csv", "a\n1\n", 'a\n"1"\n', "from byte 3 on of 4, and of 6 now"),
        (".csv", b"a\n\xff\n", b"a\n\xfe\n", "from byte 3 on of 4"),
        (".png", b"12345", b"12x45", "from byte 3 on of 5"),
        (".png", b"12345", b"123", "from byte 4 on of 5, and of 3 now"),
        (".json", '{\n "a": 1\n}', '{\n "a": 2\n}', """line 2: it was ' "a": 1\\n', and is ' "a": 2\\n'"""),
        (".json", "1\n", "1\n2\n", "from line 2 on, which only the new one has"),
        (".npy", np.arange(6.0).reshape(2, 3), np.arange(6.0).reshape(3, 2), "it was an array (2, 3) of float64"),
        (".npy", np.array([1, np.nan, 3]), np.array([1, np.nan, 4]), "at [2]: it was 3.0, and is 4.0; 1 of 3 values"),
        (".npy", np.array(["a", "b"]), np.array(["a", "c"]), "at [1]: it was b, and is c"),
        (".npy", b"no array", b"no arraz", "from byte 8 on of 8"),
    ],
)
def test_the_first_difference(tmp_path, suffix, old, new, words):
    assert describe(tmp_path, suffix, old, new).startswith(words)
    assert bool(words) == bool(describe(tmp_path, suffix, old, new))


def test_a_difference_far_into_a_large_file(tmp_path):
    old = bytes(3 << 20)
    assert describe(tmp_path, ".png", old, old[:-5] + b"x" + old[-4:]) == "from byte 3,145,724 on of 3,145,728"
