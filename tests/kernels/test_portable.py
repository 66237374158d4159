"""The kernels compiled for any processor give the same bits as those for this one."""

import ctypes
import subprocess
from pathlib import Path

import MDAnalysis
import numpy as np
import pytest
from hypothesis import given, settings
from kernels.situations import situations
from MDAnalysisTests.datafiles import DCD, PSF
from support import needs

from himach.kernels import (
    contacts,
    deviation_sums,
    dihedrals,
    dssp,
    gyration,
    histogram,
    order_parameters,
    rmsd,
    rmsd_matrix,
    sasa,
    within,
)

SOURCES = Path(__file__).parents[2] / "himach" / "kernels"
OPAQUE = ctypes.c_char * 1024  # longer than struct lattice and struct scratch


class Group(ctypes.Structure):
    _fields_ = [("positions", ctypes.c_void_p), ("n", ctypes.c_size_t)]


class Structures(ctypes.Structure):
    _fields_ = [("positions", ctypes.c_void_p), ("count", ctypes.c_size_t)]


class Deviation(ctypes.Structure):
    _fields_ = [
        ("n", ctypes.c_size_t),
        ("weights", ctypes.c_void_p),
        ("superpose", ctypes.c_int),
        ("cutoff", ctypes.c_double),
    ]


def group(positions):
    return Group(positions.ctypes.data, len(positions))


class Fluctuation(ctypes.Structure):
    _fields_ = [
        ("n", ctypes.c_size_t),
        ("fixed", ctypes.c_void_p),
        ("reference", ctypes.c_void_p),
        ("fitted", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
        ("n_fitted", ctypes.c_size_t),
    ]


class Portable:
    """The C functions, without vectors that a processor may lack."""

    def __init__(self, library):
        self.library = library
        self.library.fit_rmsd.restype = ctypes.c_double
        self.library.sphere_new.restype = ctypes.c_void_p
        self.sphere = ctypes.c_void_p(self.library.sphere_new(ctypes.c_size_t(960)))
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
            self.scratch,
            self.lattice(box),
            group(a),
            other,
            None,
            None,
            pointers[0],
            ctypes.c_size_t(bins),
            pointers[1],
        )
        assert status == 0
        return counts

    def dihedrals(self, a, quadruples, box):
        found = np.empty(len(quadruples))
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in (a, quadruples, found)]
        n = ctypes.c_size_t(len(quadruples))
        self.library.dihedrals_degrees(self.lattice(box), *pointers[:2], n, pointers[2])
        return found

    def contacts(self, a, groups, cutoff, box):
        found, n = ctypes.c_void_p(), ctypes.c_size_t()
        number, numbers = ctypes.c_size_t(groups.max() + 1), ctypes.c_void_p(groups.ctypes.data)
        status = self.library.search_contacts(
            self.scratch, self.lattice(box), group(a), numbers, number, None, None, ctypes.c_size_t(0),
            ctypes.c_double(cutoff), 1, ctypes.byref(found), ctypes.byref(n)
        )  # fmt: skip
        assert status == 0
        pairs, distances = np.empty((n.value, 2), np.int64), np.empty(n.value)
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in (pairs, distances)]
        self.library.search_write(found, n, *pointers)
        return pairs, distances

    def rmsd(self, a, b):
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in (a, b)]
        return self.library.fit_rmsd(*pointers, None, ctypes.c_size_t(len(a)), 1)

    def rmsd_matrix(self, a, cutoff):
        asked = Deviation(a.shape[1], None, 1, cutoff or 0)
        found = np.zeros((len(a), len(a))) if cutoff is None else np.zeros((len(a), (len(a) + 7) // 8), np.uint8)
        function = self.library.deviations_all if cutoff is None else self.library.deviations_within
        structures = Structures(a.ctypes.data, len(a)), Structures(None, 0)
        assert function(*structures, ctypes.byref(asked), ctypes.c_void_p(found.ctypes.data)) == 0
        return found

    def gyration(self, a):
        found = np.empty((3, 3))
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in (a, found)]
        self.library.shape_gyration(pointers[0], None, ctypes.c_size_t(len(a)), pointers[1])
        return found

    def deviation_sums(self, structures, fixed, reference):
        n = structures.shape[1]
        asked = Fluctuation(n, fixed.ctypes.data, reference.ctypes.data, None, None, n)
        sums, at = np.zeros((5, n), np.int64), ctypes.c_size_t()
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in (structures, sums)]
        count = ctypes.c_size_t(len(structures))
        assert self.library.fluctuation_add(ctypes.byref(asked), pointers[0], count, pointers[1], ctypes.byref(at)) == 0
        return sums

    def dssp(self, backbone):
        states = np.empty(len(backbone), np.uint8)
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in (backbone, states)]
        n = ctypes.c_size_t(len(backbone))
        assert self.library.dssp_assign(pointers[0], None, None, n, None, pointers[1]) == 0
        return states

    def sasa(self, a, radii, box):
        counts = np.zeros(len(a), np.int64)
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in (radii, counts)]
        status = self.library.sasa_count(
            self.scratch, self.lattice(box), group(a), pointers[0], None, self.sphere, pointers[1]
        )
        assert status == 0
        return counts * (4 * np.pi / 960 * radii**2)

    def order_parameters(self, positions, pairs, box):
        sums, normal = np.zeros(1, np.int64), np.array([0.3, -1, 0.2])
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in (positions, pairs, normal, sums)]
        self.library.order_sums(self.lattice(box), *pointers[:2], ctypes.c_size_t(len(pairs)), None, *pointers[2:])
        return sums


@pytest.fixture(scope="module")
def portable(tmp_path_factory):
    compiler = needs.program("cc")
    library = tmp_path_factory.mktemp("kernels") / "portable.so"
    sources = [str(source) for source in SOURCES.rglob("*.c")]
    flags = ["-std=c11", "-O2", "-fPIC", "-shared", "-D_GNU_SOURCE", "-DHIMACH_PORTABLE", "-ffp-contract=off"]
    flags += ["-fno-math-errno", "-fno-trapping-math", "-Wno-psabi", f"-I{SOURCES}"]
    subprocess.run([compiler, *flags, *sources, "-o", str(library), "-lm"], check=True)
    return Portable(ctypes.CDLL(str(library)))


@pytest.mark.nightly
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
    groups = np.arange(len(a)) // 7
    for found, expected in zip(
        portable.contacts(a, groups, cutoff, box), contacts(a, groups, None, None, cutoff, box), strict=True
    ):
        np.testing.assert_array_equal(found, expected)
    quadruples = np.arange(4 * (len(a) // 4)).reshape(-1, 4)
    np.testing.assert_array_equal(portable.dihedrals(a, quadruples, box), dihedrals(a, quadruples, box))
    n = min(len(a), len(b))
    assert portable.rmsd(a[:n], b[:n]) == rmsd(a[:n], b[:n])

    structures = np.ascontiguousarray(a[: 3 * (len(a) // 3)].reshape(-1, 3, 3)[:9])
    assert portable.gyration(a).tolist() == gyration(a).tolist()
    one, fixed, reference = a[np.newaxis], a.astype(np.float64), np.ascontiguousarray(a[::-1])
    found = portable.deviation_sums(one, fixed, reference)
    np.testing.assert_array_equal(found, deviation_sums(one, fixed, reference))
    for limit in (None, cutoff):
        np.testing.assert_array_equal(
            portable.rmsd_matrix(structures, limit), rmsd_matrix(structures, None, limit), err_msg=str(limit)
        )
    box = None if box is None else np.append(box[:3] * 2, box[3:])  # wider than two spheres reach
    radii = np.linspace(0.2, 0.9, len(a))
    assert portable.sasa(a, radii, box).tolist() == sasa(a, radii, 0, 960, box).tolist()

    both = np.concatenate([a, b + np.float32(0.123)])
    pairs = np.column_stack([np.arange(n), np.arange(n) + len(a)])
    pairs = pairs[(both[pairs[:, 0]] != both[pairs[:, 1]]).any(axis=1)]
    expected = order_parameters(both, pairs, box=box, normal=(0.3, -1, 0.2))
    np.testing.assert_array_equal(portable.order_parameters(both, pairs, box), expected)


@pytest.mark.slow
def test_the_same_states(portable):
    universe = MDAnalysis.Universe(PSF, DCD)
    chain = universe.select_atoms("name N CA C O and not resid 214")
    for _ in universe.trajectory:
        backbone = chain.positions.reshape(-1, 4, 3)
        np.testing.assert_array_equal(portable.dssp(backbone), dssp(backbone))
