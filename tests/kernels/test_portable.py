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

from himach import kernels

SOURCES = Path(__file__).parents[2] / "himach" / "kernels"
OPAQUE = ctypes.c_char * 1024  # longer than struct lattice and struct scratch


POINTER, SIZE, INT, DOUBLE = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_double


class Group(ctypes.Structure):
    _fields_ = [("positions", POINTER), ("n", SIZE)]


class Structures(ctypes.Structure):
    _fields_ = [("positions", POINTER), ("count", SIZE)]


class Deviation(ctypes.Structure):
    _fields_ = [("n", SIZE), ("weights", POINTER), ("superpose", INT), ("cutoff", DOUBLE)]


class Fluctuation(ctypes.Structure):
    _fields_ = [
        ("n", SIZE),
        *((name, POINTER) for name in ("fixed", "reference", "fitted", "weights")),
        ("n_fitted", SIZE),
    ]


def group(positions):
    return Group(positions.ctypes.data, len(positions))


def pointers(*arrays):
    return [POINTER(array.ctypes.data) for array in arrays]


class Portable:
    """The C functions, without vectors that a processor may lack."""

    def __init__(self, library):
        self.library = library
        self.library.fit_rmsd.restype = DOUBLE
        self.library.sphere_new.restype = POINTER
        self.sphere = POINTER(self.library.sphere_new(SIZE(960)))
        self.scratch = OPAQUE()

    def lattice(self, box):
        lattice = OPAQUE()
        assert self.library.lattice_set(lattice, None if box is None else POINTER(box.ctypes.data)) == 0
        return lattice

    def within(self, a, b, cutoff, box):
        near, n = ctypes.POINTER(ctypes.c_int64)(), SIZE()
        arguments = self.lattice(box), group(a), group(b), DOUBLE(cutoff), ctypes.byref(near), ctypes.byref(n)
        assert self.library.search_within(self.scratch, *arguments) == 0
        return near[: n.value]

    def histogram(self, a, b, cutoff, bins, box):
        counts, edges = np.zeros(bins, np.int64), np.linspace(0, cutoff, bins + 1)
        at_edges, at_counts = pointers(edges, counts)
        groups = group(a), None if b is None else ctypes.byref(group(b)), None, None
        arguments = self.lattice(box), *groups, at_edges, SIZE(bins), at_counts
        assert self.library.search_histogram(self.scratch, *arguments) == 0
        return counts

    def dihedrals(self, a, quadruples, box):
        degrees = np.empty(len(quadruples))
        *inputs, output = pointers(a, quadruples, degrees)
        self.library.dihedrals_degrees(self.lattice(box), *inputs, SIZE(len(quadruples)), output)
        return degrees

    def contacts(self, a, groups, cutoff, box):
        contacts, n = POINTER(), SIZE()
        first = group(a), *pointers(groups), SIZE(groups.max() + 1)
        output = ctypes.byref(contacts), ctypes.byref(n)
        arguments = self.lattice(box), *first, None, None, SIZE(0), DOUBLE(cutoff), 1, *output
        assert self.library.search_contacts(self.scratch, *arguments) == 0
        pairs, distances = np.empty((n.value, 2), np.int64), np.empty(n.value)
        self.library.search_write(contacts, n, *pointers(pairs, distances))
        return pairs, distances

    def rmsd(self, a, b):
        return self.library.fit_rmsd(*pointers(a, b), None, SIZE(len(a)), 1)

    def rmsd_matrix(self, a, cutoff):
        deviation = Deviation(a.shape[1], None, 1, cutoff or 0)
        matrix = np.zeros((len(a), len(a))) if cutoff is None else np.zeros((len(a), (len(a) + 7) // 8), np.uint8)
        function = self.library.deviations_all if cutoff is None else self.library.deviations_within
        structures = Structures(a.ctypes.data, len(a)), Structures(None, 0)
        assert function(*structures, ctypes.byref(deviation), *pointers(matrix)) == 0
        return matrix

    def gyration(self, a):
        tensor = np.empty((3, 3))
        positions, output = pointers(a, tensor)
        self.library.shape_gyration(positions, None, SIZE(len(a)), output)
        return tensor

    def deviation_sums(self, structures, fixed, reference):
        n = structures.shape[1]
        fluctuation = Fluctuation(n, fixed.ctypes.data, reference.ctypes.data, None, None, n)
        sums, at = np.zeros((5, n), np.int64), SIZE()
        positions, output = pointers(structures, sums)
        arguments = ctypes.byref(fluctuation), positions, SIZE(len(structures)), output, ctypes.byref(at)
        assert self.library.fluctuation_add(*arguments) == 0
        return sums

    def dssp(self, backbone):
        states = np.empty(len(backbone), np.uint8)
        positions, output = pointers(backbone, states)
        assert self.library.dssp_assign(positions, None, None, SIZE(len(backbone)), None, output) == 0
        return states

    def sasa(self, a, radii, box):
        counts = np.zeros(len(a), np.int64)
        of_radii, output = pointers(radii, counts)
        arguments = self.lattice(box), group(a), of_radii, None, self.sphere, output
        assert self.library.sasa_count(self.scratch, *arguments) == 0
        return counts * (4 * np.pi / 960 * radii**2)

    def order_parameters(self, positions, pairs, box):
        sums, normal = np.zeros(1, np.int64), np.array([0.3, -1, 0.2])
        *inputs, at_normal, output = pointers(positions, pairs, normal, sums)
        self.library.order_sums(self.lattice(box), *inputs, SIZE(len(pairs)), None, at_normal, output)
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
    assert portable.within(a, b, cutoff, box) == kernels.within(a, b, cutoff, box).tolist()
    for other in (b, None):
        np.testing.assert_array_equal(
            portable.histogram(a, other, cutoff, 30, box), kernels.histogram(a, other, cutoff, 30, box)
        )
    groups = np.arange(len(a)) // 7
    for result, expected in zip(
        portable.contacts(a, groups, cutoff, box), kernels.contacts(a, groups, None, None, cutoff, box), strict=True
    ):
        np.testing.assert_array_equal(result, expected)
    quadruples = np.arange(4 * (len(a) // 4)).reshape(-1, 4)
    np.testing.assert_array_equal(portable.dihedrals(a, quadruples, box), kernels.dihedrals(a, quadruples, box))
    n = min(len(a), len(b))
    assert portable.rmsd(a[:n], b[:n]) == kernels.rmsd(a[:n], b[:n])

    structures = np.ascontiguousarray(a[: 3 * (len(a) // 3)].reshape(-1, 3, 3)[:9])
    assert portable.gyration(a).tolist() == kernels.gyration(a).tolist()
    item, fixed, reference = a[np.newaxis], a.astype(np.float64), np.ascontiguousarray(a[::-1])
    result = portable.deviation_sums(item, fixed, reference)
    np.testing.assert_array_equal(result, kernels.deviation_sums(item, fixed, reference))
    for limit in (None, cutoff):
        np.testing.assert_array_equal(
            portable.rmsd_matrix(structures, limit), kernels.rmsd_matrix(structures, None, limit), err_msg=str(limit)
        )
    box = None if box is None else np.append(box[:3] * 2, box[3:])  # wider than two spheres reach
    radii = np.linspace(0.2, 0.9, len(a))
    assert portable.sasa(a, radii, box).tolist() == kernels.sasa(a, radii, 0, 960, box).tolist()

    both = np.concatenate([a, b + np.float32(0.123)])
    pairs = np.column_stack([np.arange(n), np.arange(n) + len(a)])
    pairs = pairs[(both[pairs[:, 0]] != both[pairs[:, 1]]).any(axis=1)]
    expected = kernels.order_parameters(both, pairs, box=box, normal=(0.3, -1, 0.2))
    np.testing.assert_array_equal(portable.order_parameters(both, pairs, box), expected)


@pytest.mark.slow
def test_the_same_states(portable):
    universe = MDAnalysis.Universe(PSF, DCD)
    chain = universe.select_atoms("name N CA C O and not resid 214")
    for _ in universe.trajectory:
        backbone = chain.positions.reshape(-1, 4, 3)
        np.testing.assert_array_equal(portable.dssp(backbone), kernels.dssp(backbone))
