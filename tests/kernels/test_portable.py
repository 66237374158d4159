"""The kernels compiled for any processor give the same bits as those for this one."""

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from kernels.situations import situations
from support import needs

from himach.kernels import histogram, rmsd, within

SOURCES = Path(__file__).parents[2] / "himach" / "kernels"
OPAQUE = ctypes.c_char * 1024  # longer than struct lattice and struct scratch


class Group(ctypes.Structure):
    _fields_ = [("positions", ctypes.c_void_p), ("n", ctypes.c_size_t)]


def group(positions):
    return Group(positions.ctypes.data, len(positions))


class Portable:
    """The C functions, without vectors that a processor may lack."""

    def __init__(self, library):
        self.library = library
        self.library.fit_rmsd.restype = ctypes.c_double
        self.scratch = OPAQUE()

    def lattice(self, box):
        lattice = OPAQUE()
        assert self.library.lattice_set(lattice, None if box is None else ctypes.c_void_p(box.ctypes.data)) == 0
        return lattice

    def within(self, a, b, cutoff, box):
        found, n = ctypes.POINTER(ctypes.c_int64)(), ctypes.c_size_t()
        status = self.library.search_within(
            self.scratch, self.lattice(box), group(a), group(b), ctypes.c_double(cutoff), *map(ctypes.byref, (found, n))
        )
        assert status == 0
        return found[: n.value]

    def histogram(self, a, b, cutoff, bins, box):
        counts, edges = np.zeros(bins, np.int64), np.linspace(0, cutoff, bins + 1)
        other = None if b is None else ctypes.byref(group(b))
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in (edges, counts)]
        status = self.library.search_histogram(
            self.scratch, self.lattice(box), group(a), other, pointers[0], ctypes.c_size_t(bins), pointers[1]
        )
        assert status == 0
        return counts

    def rmsd(self, a, b):
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in (a, b)]
        return self.library.fit_rmsd(*pointers, None, ctypes.c_size_t(len(a)), 1)


@pytest.fixture(scope="module")
def portable(tmp_path_factory):
    compiler = needs.program("cc")
    library = tmp_path_factory.mktemp("kernels") / "portable.so"
    sources = [str(source) for source in SOURCES.rglob("*.c")]
    flags = ["-std=c11", "-O2", "-fPIC", "-shared", "-D_GNU_SOURCE", "-DHIMACH_PORTABLE", "-ffp-contract=off"]
    flags += ["-fno-math-errno", "-fno-trapping-math", "-Wno-psabi", f"-I{SOURCES}"]
    subprocess.run([compiler, *flags, *sources, "-o", str(library), "-lm"], check=True)
    return Portable(ctypes.CDLL(str(library)))


@pytest.mark.slow
@settings(max_examples=100)
@given(situation=situations())
def test_the_same_bits(portable, situation):
    a, b, cutoff, box = situation.a, situation.b, situation.cutoff, situation.box
    assert portable.within(a, b, cutoff, box) == within(a, b, cutoff, box).tolist()
    for other in (b, None):
        np.testing.assert_array_equal(
            portable.histogram(a, other, cutoff, 30, box), histogram(a, other, cutoff, 30, box)
        )
    n = min(len(a), len(b))
    assert portable.rmsd(a[:n], b[:n]) == rmsd(a[:n], b[:n])
