"""The kernels compiled for any processor give the same bits as those for this one."""

import importlib.util
import subprocess
import sysconfig
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
FLAGS = [
    "-fPIC", "-shared", "-D_GNU_SOURCE", "-DHIMACH_PORTABLE", "-ffp-contract=off", "-fno-math-errno",
    "-fno-trapping-math", "-w", "-Wno-psabi", f"-I{SOURCES}", f"-I{sysconfig.get_path('include')}",
]  # fmt: skip
#: Those of meson.build.
CYTHON = [
    "-3", "--shared", "himach._cython",
    "-X", "boundscheck=False", "-X", "wraparound=False", "-X", "cdivision=True", "-X", "initializedcheck=False",
]  # fmt: skip


@pytest.fixture(scope="module")
def portable(tmp_path_factory):
    """Return the kernels, without vectors that a processor may lack."""
    compiler, cython = needs.program("cc"), needs.program("cython")
    folder = tmp_path_factory.mktemp("kernels")
    library = folder / "libportable.so"
    subprocess.run([compiler, "-O2", *FLAGS, *SOURCES.rglob("*.c"), "-o", library, "-lm"], check=True)
    source, extension = folder / "kernels.c", folder / "kernels.so"
    subprocess.run([cython, *CYTHON, SOURCES / "kernels.pyx", "-o", source], check=True)
    subprocess.run([compiler, *FLAGS, source, library, f"-Wl,-rpath,{folder}", "-o", extension], check=True)
    spec = importlib.util.spec_from_file_location("kernels", extension)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def answers(of, situation):
    a, b, cutoff, box = situation.a, situation.b, situation.cutoff, situation.box
    groups, radii = np.arange(len(a)) // 7, np.linspace(0.2, 0.9, len(a))
    quadruples = np.arange(4 * (len(a) // 4)).reshape(-1, 4)
    n = min(len(a), len(b))
    structures = a[: 3 * (len(a) // 3)].reshape(-1, 3, 3)[:9]
    both = np.concatenate([a, b + np.float32(0.123)])
    pairs = np.column_stack([np.arange(n), np.arange(n) + len(a)])
    pairs = pairs[(both[pairs[:, 0]] != both[pairs[:, 1]]).any(axis=1)]
    wide = None if box is None else np.append(box[:3] * 2, box[3:])  # wider than two spheres reach
    return {
        "within": of.within(a, b, cutoff, box),
        "histogram": of.histogram(a, b, cutoff, 30, box),
        "histogram of one group": of.histogram(a, None, cutoff, 30, box),
        "contacts": of.contacts(a, groups, None, None, cutoff, box),
        "dihedrals": of.dihedrals(a, quadruples, box),
        "order parameters": of.order_parameters(both, pairs, box=wide, normal=(0.3, -1, 0.2)),
        "rmsd": of.rmsd(a[:n], b[:n]),
        "rmsd matrix": of.rmsd_matrix(structures),
        "rmsd within": of.rmsd_matrix(structures, None, cutoff),
        "gyration": of.gyration(a),
        "deviation sums": of.deviation_sums(a[np.newaxis], a.astype(np.float64), a[::-1]),
        "sasa": of.sasa(a, radii, 0, 960, wide),
    }


@pytest.mark.nightly
@pytest.mark.slow
@settings(max_examples=100)
@given(situation=situations())
def test_the_same_bits(portable, situation):
    expected = answers(kernels, situation)
    for name, answer in answers(portable, situation).items():
        np.testing.assert_equal(answer, expected[name], err_msg=name)


@pytest.mark.slow
def test_the_same_states(portable):
    universe = MDAnalysis.Universe(PSF, DCD)
    chain = universe.select_atoms("name N CA C O and not resid 214")
    for _ in universe.trajectory:
        backbone = chain.positions.reshape(-1, 4, 3)
        np.testing.assert_array_equal(portable.dssp(backbone), kernels.dssp(backbone))
