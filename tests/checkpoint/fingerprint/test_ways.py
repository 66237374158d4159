"""What of a script's text must not matter; and the modules beside it, which do, with versions of packages."""

import subprocess
import sys
import sysconfig
from dataclasses import replace

import pytest
from checkpoint.fingerprint.fingerprints import fingerprint_of_cell, fingerprint_of_script

from himach.checkpoint.map_fingerprint import differences

SAME = '''
import himach
import numpy as np

def helper(x, power=2):
    """Raise."""
    return x ** power

class Mine(himach.Analysis):
    "Doc."
    def map(self, frame):
        yield "far", helper(frame.number)  # enough
        yield 'sum', 1_000 if frame.number > 2 else 0
    def reduce(self, key, series):
        part = self.part(key)
        return np.sum(series.values)
    def finish(self, results):
        return {"n": [len(results)]}
    def plot(self, outcome, axes):
        axes.plot(outcome["n"])

class Later(himach.Analysis):
    def reduce_many(self, keys, series):
        return 1
'''
#: What must not matter.
EDITS = {
    "a comment": ("# enough", "# quite enough"),
    "lines": ("class Mine(", "# more\n\n\nclass Mine("),
    "formatting": ('yield "far", helper(frame.number)', "yield ( 'far' ,\n            helper(\n frame.number), )"),
    "a docstring": ('"""Raise."""', '"""Raise to a power."""'),
    "no docstring": ('    """Raise."""\n', ""),
    "the class's docstring": ('"Doc."', '"Other."'),
    "reduce": ("np.sum", "np.mean"),
    "finish": ("[len(results)]", "[0]"),
    "plot": ('axes.plot(outcome["n"])', "axes.plot([1])"),
    "another analysis's reduce_many": ("return 1", "return 2"),
    "a word in a comment": ("# enough", "# finish() and plot() use it"),
    "the module's docstring": ("\nimport himach\n", '"""Mine."""\nimport himach\n'),
    "more in reduce": ("part = self.part(key)", "import math\n        part = math.sqrt(2)"),
    "a docstring of reduce": ("        part = self.part(key)\n", '        "Doc."\n'),
    "ends of lines as on Windows": ("\n", "\r\n"),
}


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """Return the identities of a script and of a cell as they are written."""
    return fingerprint_of_script(tmp_path_factory.mktemp("same"), SAME), fingerprint_of_cell(SAME)


@pytest.mark.parametrize("name", EDITS)
def test_what_does_not_matter_is_not_seen(first, place, name):
    old, new = EDITS[name]
    assert SAME.count(old) == 1 or old == "\n"
    script, cell = first
    assert differences(script, fingerprint_of_script(place, SAME.replace(old, new), "other.py")) == []
    assert differences(cell, fingerprint_of_cell(SAME.replace(old, new))) == []


SCRIPT = """
import himach
{before}
class Mine(himach.Analysis):
    def map(self, frame):
        yield 1, {use}
"""
USES = {
    "from": ("from beside import f\n", "f()"),
    "import": ("import beside\n", "beside.f()"),
    "handed on": ("import beside\ndef use(m): return m.f()\n", "use(beside)"),
    "in a package": ("import inside.deep\n", "inside.deep.f()"),
    "from a package": ("from inside import deep\n", "deep.f()"),
    "passed on by a package": ("from inside import f\n", "f()"),
    "loaded by its file": (
        "import importlib.util as util\nspec = util.spec_from_file_location('apart', __file__[:-9] + 'beside.py')\n"
        "apart = util.module_from_spec(spec)\nspec.loader.exec_module(apart)\n",
        "apart.f()",
    ),
}


@pytest.mark.parametrize("name", USES)
def test_own_modules_count(place, name):
    before, use = USES[name]

    def fingerprint(folder, value):
        (place / folder / "inside").mkdir(parents=True)
        for file in ("beside.py", "inside/deep.py"):
            (place / folder / file).write_text(f"def f():\n    return {value}\n")
        (place / folder / "inside" / "__init__.py").write_text("from inside.deep import f\n")
        return fingerprint_of_script(place / folder, SCRIPT.format(before=before, use=use))

    first = fingerprint("a", 1)
    assert differences(first, fingerprint("b", 1)) == []
    sentence = differences(first, fingerprint("c", 2))[0]
    assert sentence in ("beside.py was changed", "deep.py was changed", "f in apart was changed")


C = """
#include <Python.h>
static PyObject *f(PyObject *self, PyObject *none) { return PyLong_FromLong(VALUE); }
static PyMethodDef methods[] = {{"f", f, METH_NOARGS, ""}, {NULL, NULL, 0, NULL}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "fast", "", -1, methods, NULL, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit_fast(void) { return PyModule_Create(&module); }
"""


def test_a_compiled_module_counts_by_its_bytes(place):
    fingerprints = []
    for folder, value in (("a", 1), ("b", 2), ("c", 1)):
        (place / folder).mkdir()
        (place / "fast.c").write_text(C.replace("VALUE", str(value)))
        target = place / folder / f"fast{sysconfig.get_config_var('EXT_SUFFIX')}"
        command = ["cc", "-shared", "-fPIC", f"-I{sysconfig.get_path('include')}", "fast.c", "-o", str(target)]
        subprocess.run(command, check=True)
        text = SCRIPT.format(before="from fast import f", use="f()")
        fingerprints.append(fingerprint_of_script(place / folder, text))
        sys.modules.pop("fast")
    (sentence,) = differences(*fingerprints[:2])
    assert sentence.startswith("fast.")
    assert differences(fingerprints[0], fingerprints[2]) == []


def test_versions_count_of_packages_that_both_have_loaded(place):
    before = fingerprint_of_script(place, SAME)
    versions = before.parts["versions"]
    for changed, sentences in (
        ({**versions, "numpy": ("1", "1")}, [f"numpy {versions['numpy'][0]} is now 1"]),
        ({**versions, "another": ("1", "1")}, []),
        ({name: version for name, version in versions.items() if name != "numpy"}, []),
    ):
        assert differences(before, replace(before, parts={**before.parts, "versions": changed})) == sentences
