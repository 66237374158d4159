"""sasa() beside a slow twin, formulae of spheres, and MDTraj."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels.situations import ANGLES, least_width, positions
from MDAnalysis.lib.mdamath import triclinic_vectors

from himach.kernels import sasa


def spiral(n):
    i = np.arange(n)
    y = (2 * i + 1) / n - 1
    radius, angle = np.sqrt(1 - y**2), i * np.pi * (3 - np.sqrt(5))
    return np.stack([np.cos(angle) * radius, y, np.sin(angle) * radius], axis=1)


def slow_sasa(atoms, radii, probe, n_points, box):
    """Return the areas, float64 (n,): every point beside every atom and its images."""
    points, atoms, reach = spiral(n_points), atoms.astype(float), np.asarray(radii) + probe
    vectors = np.zeros((3, 3)) if box is None else triclinic_vectors(box).astype(float)
    images = [np.zeros(3)] if box is None else [np.array([i, j, k]) for i, j, k in np.ndindex(3, 3, 3)]
    areas = []
    for i, (at, r) in enumerate(zip(atoms, reach, strict=True)):
        buried = np.zeros(n_points, bool)
        from_atom = atoms - at
        if box is not None:
            from_atom = from_atom - np.rint(from_atom @ np.linalg.inv(vectors)) @ vectors
        for image in images:
            v = from_atom if box is None else from_atom + (image - 1) @ vectors
            squares = (v**2).sum(axis=1)
            near = squares < (reach + r) ** 2 + 1e-9
            near[i] &= bool(squares[i] > 1e-9)
            inside = 2 * r * (points @ v[near].T) > (r - reach[near]) * (r + reach[near]) + squares[near]
            buried |= inside.any(axis=1)
        areas.append((~buried).sum() * (4 * np.pi / n_points * r**2))
    return np.array(areas)


@st.composite
def spheres(draw):
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, n_points = draw(st.sampled_from([1, 2, 9, 40, 100])), draw(st.sampled_from([1, 7, 64, 300, 960, 1100, 3000]))
    largest, probe = draw(st.sampled_from([0.5, 1.7, 2.5])), draw(st.sampled_from([0, 0.3, 1.4]))
    radii = random.choice([0, 0.1, largest / 2, largest], n) if draw(st.booleans()) else random.random(n) * largest
    box = None
    if draw(st.booleans()):
        box = np.array([*random.uniform(9, 20, 3), *draw(st.sampled_from(ANGLES))], dtype=np.float32)
        box[:3] *= max(1, 2.02 * (largest + probe) / least_width(box))
    atoms = positions(random, n, box, draw(st.booleans())) * np.float32(draw(st.sampled_from([0.2, 1])))
    return atoms, radii, probe, n_points, box


@settings(max_examples=150, deadline=None)
@given(spheres())
def test_the_same_as_a_slow_twin(situation):
    atoms, radii, probe, n_points, box = situation
    expected = slow_sasa(*situation)
    np.testing.assert_allclose(sasa(atoms, radii, probe, n_points, box), expected, rtol=1e-12)
    chosen = np.arange(len(atoms))[::-2]
    np.testing.assert_allclose(sasa(atoms, radii, probe, n_points, box, chosen), expected[chosen], rtol=1e-12)


def test_points_at_the_surface_of_a_neighbor():
    """A point is in a sphere or not by a billionth of an Å, which single precision cannot tell."""
    random, points, result = np.random.default_rng(5), spiral(300), []
    for _ in range(200):
        v = (random.normal(size=3) * 2).astype(np.float32)
        far = np.linalg.norm(3.1 * points[random.integers(300)] - v.astype(float))
        areas = [sasa(np.array([[0, 0, 0], v]), [3.1, far + more], 0, 300, None, [0])[0] for more in (-1e-9, 1e-9)]
        result.append((areas[0] - areas[1]) * 300 / (4 * np.pi * 3.1**2))
    np.testing.assert_allclose(result, 1, atol=1e-9)


def test_one_sphere():
    for points in (1, 10, 960):
        result = sasa(np.zeros((1, 3)), [1.7], 1.4, points)
        np.testing.assert_allclose(result, [4 * np.pi * 3.1**2], rtol=1e-14)
    np.testing.assert_array_equal(sasa(np.zeros((1, 3)), [0], 0), [0])
    assert sasa(np.zeros((0, 3)), []).shape == (0,)


@pytest.mark.parametrize("distance", [0.5, 1.09, 1.5, 3, 5, 5.69, 5.71, 8])
def test_caps_of_two_spheres(distance):
    """What is left of a sphere is a cap of the height r + (d² + r² - q²) / 2d; n points miss it by about n^(-3/4)."""
    random, r, q = np.random.default_rng(3), 3.1, 2.6
    direction = random.normal(size=3)
    atoms = np.array([[0, 0, 0], direction / np.linalg.norm(direction) * distance], dtype=np.float32)
    result = sasa(atoms, [1.7, 1.2], 1.4, 50_000)
    for area, own, other in zip(result, (r, q), (q, r), strict=True):
        height = np.clip(own + (distance**2 + own**2 - other**2) / (2 * distance), 0, 2 * own)
        assert area == pytest.approx(2 * np.pi * own * height, abs=4 * np.pi * own**2 * 2 * 50_000**-0.75)


def test_equal_places():
    """Of spheres that are one none buries the other; a larger one buries a smaller one."""
    atoms = np.ones((3, 3))
    np.testing.assert_allclose(sasa(atoms[:2], [1, 1], 0, 100), [4 * np.pi] * 2)
    np.testing.assert_allclose(sasa(atoms, [1, 2, 1], 0, 100), [0, 16 * np.pi, 0])
