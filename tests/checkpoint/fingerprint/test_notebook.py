"""Analyses of notebooks' cells: the same on ranks that get them by their code, and another when a cell is edited."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CELLS = [
    """
import numpy as np
import himach
LIMIT = 3
def helper(x):
    "Doc."
    return x + LIMIT
def make(n):
    def inner(x):
        return n * x
    return inner
double = make(2)
def unrelated():
    return 1
""",
    """
class Part:
    def value(self):
        return 1
class Mine(himach.Analysis):
    cutoff: float = 3.5
    def setup(self, universe):
        self.part = Part()
        self.ca = universe.select_atoms("name CA")
    def map(self, frame):
        # near
        yield 1, helper(frame.number) + double(1) + self.part.value() + np.sum(self.ca.ix)
    def reduce(self, key, series):
        return unrelated()
""",
]

#: Runs cells in a real shell, edits some, and writes identities: here, and in another process that gets the code.
SHELL = """
import json, subprocess, sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
cells, edits, tests = json.loads(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
sys.path.insert(0, tests)
from checkpoint.fingerprint.fingerprints import fingerprint_of
OTHER = '''
import json, pickle, sys
sys.path.insert(0, sys.argv[1])
from himach.launch.work_pickle import unpack_work
from checkpoint.fingerprint.fingerprints import fingerprint_of
job, _ = pickle.loads(unpack_work(sys.stdin.buffer.read()).data)
print(json.dumps(fingerprint_of(job.analyses[0]).to_json()))
'''
def ran(cell):
    assert shell.run_cell(cell).success
def here():
    ran("mine = Mine()")
    return fingerprint_of(shell.user_ns["mine"]).to_json()
def there():
    from himach.opening.options import Job
    from himach.launch.work_pickle import pack_work
    from himach.runner.job_pickle import PickledJob
    from checkpoint.fingerprint.fingerprints import TOPOLOGY, TRAJECTORY
    ran("mine = Mine()")
    job = Job([TRAJECTORY], TOPOLOGY, analyses=[shell.user_ns["mine"]])
    work = pack_work(PickledJob.of(job, 0.0))
    done = subprocess.run([sys.executable, "-c", OTHER, tests], input=work, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)
for cell in cells:
    ran(cell)
found = [here(), there()]
for number, old, new in edits:
    assert old in cells[number]
    ran(cells[number].replace(old, new))
    if number == 0:
        ran(cells[1])
    found += [here(), there()]
    for cell in cells:
        ran(cell)
with open(sys.argv[4], "w") as file:
    json.dump(found, file)
"""

EDITS = [
    (1, "\nclass Part:", "import numpy as np\nimport himach\nclass Part:", []),
    (1, "# near", "# nearer\n\n", []),
    (1, "return unrelated()", "return 2 * unrelated()", []),
    (1, "    def map", "    def more(self):\n        pass\n    def map", []),
    (0, '    "Doc."\n', "", []),
    (1, "return 1", "return 2", ["Part.value was changed"]),
    (1, "frame.number) +", "frame.number) -", ["Mine.map was changed"]),
    (0, "LIMIT = 3", "LIMIT = 4", ["LIMIT is now 4"]),
    (0, "x + LIMIT", "x - LIMIT", ["helper was changed"]),
    (0, "n * x", "n - x", ["double was changed"]),
    (0, "make(2)", "make(3)", ["double was changed"]),
]


@pytest.mark.slow
def test_cells_are_the_same_map_until_one_is_edited(tmp_path):
    from himach.checkpoint.map_fingerprint import MapFingerprint, differences

    tests = str(Path(__file__).parents[2])
    edits = json.dumps([edit[:3] for edit in EDITS])
    file = tmp_path / "found.json"
    command = [sys.executable, "-c", SHELL, json.dumps(CELLS), edits, tests, str(file)]
    environment = {**os.environ, "IPYTHONDIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = [MapFingerprint.from_json(values) for values in json.loads(file.read_text())]
    assert not found[0].unstable
    assert differences(found[0], found[1]) == []
    for number, (_, old, _, told) in enumerate(EDITS, 1):
        here, there = found[2 * number : 2 * number + 2]
        assert differences(here, there) == [], old
        assert differences(found[0], here) == told, old
