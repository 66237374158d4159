"""Another process finds the same map: in a script, and in a notebook's cells that it gets by their code."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

from checkpoint.fingerprint.fingerprints import fingerprint_of, fingerprint_of_script

from himach.checkpoint.map_fingerprint import MapFingerprint, differences
from himach.ranks.launch.pool import unpack_work

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

HASHED = """
import himach
import pandas
NAMES = {*"abcdefgh", ("e", 1)}
TABLE = {name: i for i, name in enumerate("abc")}
class Part:
    def __init__(self): self.names = frozenset("xyz")
class Mine(himach.Analysis):
    def setup(self, universe):
        self.part, self.ca, self.all = Part(), universe.select_atoms("name CA"), {*universe.residues}
        self.near = universe.select_atoms("around 5 name CA", updating=True)
        self.frame = pandas.DataFrame({"name": ["x", None], "value": [1.0, float("nan")]}, index=["u", "v"])
        self.way = lambda x: x in {"p", "q", "r", "s", "t"}
    def map(self, frame):
        yield 1, len(NAMES) + len(TABLE) + len(self.part.names) + len(self.ca) + len(self.all) + len(self.near)
        yield 2, self.way("p") and frame.number in {1, 2, 3} or "x" in {"a", "b", "c", "d", "e", "f"}
"""
#: Runs cells in a real shell, edits some, and writes the identity each time, and what ranks get; and that of a script.
SHELL = """
import json, sys
from pathlib import Path
from IPython.core.interactiveshell import InteractiveShell
cells, edits, tests = json.loads(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
sys.path.insert(0, tests)
from checkpoint.fingerprint.fingerprints import TOPOLOGY, TRAJECTORY, fingerprint_of, fingerprint_of_script
from himach.ranks.launch.pool import pack_work
from himach.runner.options import Job
from himach.runner.run import pickle_job
shell = InteractiveShell.instance()
def run(*cells):
    for cell in cells:
        assert shell.run_cell(cell).success
    return shell.user_ns
def identity():
    fingerprint = fingerprint_of(run("mine = Mine()")["mine"]).to_json()
    job = Job([TRAJECTORY], TOPOLOGY, analyses=[run("mine = Mine()")["mine"]])
    return fingerprint, pack_work(pickle_job(job, 0.0)).hex()
run(*cells)
identities = [identity()]
for number, old, new in edits:
    assert old in cells[number]
    run(cells[number].replace(old, new), *cells[1 : 2 - number])
    identities.append(identity())
    run(*cells)
script = fingerprint_of_script(Path("script")).to_json()
order = list(sys.modules["himach_script_script"].NAMES)
Path("identities.json").write_text(json.dumps([identities, script, order]))
"""

EDITS = [
    (1, "\nclass Part:", "import numpy as np\nimport himach\nclass Part:", []),
    (1, "# near", "# nearer\n\n", []),
    (1, "return unrelated()", "return 2 * unrelated()", []),
    (1, "    def map", "    def more(self):\n        pass\n    def map", []),
    (0, '    "Doc."\n', "", []),
    (1, "return 1", "return 2", ["self.part is another after setup()"]),
    (1, "frame.number) +", "frame.number) -", ["Mine.map was changed"]),
    (0, "LIMIT = 3", "LIMIT = 4", ["LIMIT is now 4"]),
    (0, "x + LIMIT", "x - LIMIT", ["helper was changed"]),
    (0, "n * x", "n - x", ["double was changed"]),
    (0, "make(2)", "make(3)", ["double was changed"]),
]


def test_processes_agree_on_scripts_and_on_cells_until_one_is_edited(place, monkeypatch):
    script = fingerprint_of_script(place / "script", HASHED)
    order = list(sys.modules["himach_script_script"].NAMES)
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"  # sets are in another order there
    command = [sys.executable, "-c", SHELL, json.dumps(CELLS), json.dumps([edit[:3] for edit in EDITS])]
    environment = {**os.environ, "IPYTHONDIR": str(place), "PYTHONHASHSEED": seed}
    tests = str(Path(__file__).parents[2])
    done = subprocess.run([*command, tests], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    identities, script_there, order_there = json.loads(Path("identities.json").read_text())
    assert differences(script, MapFingerprint.from_json(script_there)) == []
    assert order != [tuple(name) if isinstance(name, list) else name for name in order_there]
    monkeypatch.setattr(sys, "path", [*sys.path])
    first = MapFingerprint.from_json(identities[0][0])
    for (values, work), (_, old, _, sentences) in zip(identities, [(0, "", "", []), *EDITS], strict=True):
        job, _ = pickle.loads(unpack_work(bytes.fromhex(work)).args[0])
        there = MapFingerprint.from_json(values)
        assert differences(there, fingerprint_of(job.analyses[0])) == [], old
        assert differences(first, there) == sentences, old
