"""What speaks for and against a mean: series of which it is known, and the small pictures of it."""

from __future__ import annotations

import numpy as np
import pytest
from markupsafe import Markup

from himach.report.convergence import ENOUGH, HEIGHT, WIDTH, assess_convergence, small_plot
from himach.report.page import Pieces


def noise(n: int = 2000, memory: float = 0.0, seed: int = 1) -> np.ndarray:
    """Return Gaussian noise of variance 1 about 5 that remembers this part of its last value."""
    made = np.random.default_rng(seed).normal(size=n)
    for i in range(1, n):
        made[i] = memory * made[i - 1] + np.sqrt(1 - memory**2) * made[i]
    return made + 5


def doubts(values, **options) -> list[str]:
    return [name for name, _ in assess_convergence(values, **options).doubts]


def test_nothing_speaks_against_independent_values():
    checks = assess_convergence(noise())
    assert (checks.doubts, set(checks.agrees.values())) == ([], {True})
    assert checks.estimate.n_eff > 1000
    np.testing.assert_allclose([each[-1] for each in checks.running], checks.estimate.value)


def test_running_means_are_those_of_more_and_more_values():
    values = noise(90)
    checks = assess_convergence(values)
    counts = np.round(checks.fractions * 90).astype(int)
    assert counts[0] == 3  # not of one value
    np.testing.assert_allclose(checks.running[0], [values[:n].mean() for n in counts])
    np.testing.assert_allclose(checks.running[1], [values[-n:].mean() for n in counts])
    assert checks.every_second == pytest.approx(values[::2].mean())


def test_errors_grow_with_blocks_as_long_as_values_remember():
    """For such a chain the standard error is known, at blocks much longer than it remembers."""
    memory, n = 0.9, 40_000
    checks = assess_convergence(noise(n, memory))
    truth = np.sqrt((1 + memory) / (1 - memory) / n)
    long = (checks.lengths > 300) & (checks.lengths < 1000)
    np.testing.assert_allclose(checks.errors[long], truth, rtol=0.3)
    assert checks.errors[0] == pytest.approx(1 / np.sqrt(n), rel=0.1)
    assert (np.diff(checks.lengths) > 0).all()


def test_what_is_wrong_with_a_series_is_doubted():
    late = noise(4000)
    late[:2500] += 4 * np.exp(-np.arange(2500) / 800)
    assert assess_convergence(late).start > 1000
    assert doubts(late)
    drift = assess_convergence(noise() + np.linspace(0, 3, 2000))
    assert not drift.estimate.converged or "halves" in [name for name, _ in drift.doubts]
    assert "stride" in doubts(noise() + np.where(np.arange(2000) % 2, 1.0, -1.0))
    assert doubts(np.zeros(100)) == ["constant"]
    few = assess_convergence(noise(300, 0.9, seed=3))
    assert 8 < few.estimate.n_eff < ENOUGH
    assert few.doubts[0] == ("few", {"n_eff": few.estimate.n_eff, "enough": ENOUGH})
    fewer = assess_convergence(noise(60, 0.95))
    assert fewer.doubts[0][0] == "fewer than 8 independent values"
    assert set(fewer.agrees.values()) == {None}


def test_what_is_cut_is_left_out():
    values = np.concatenate([np.full(100, 50.0), noise()])
    assert assess_convergence(values, first=100).estimate.value == pytest.approx(noise().mean())
    assert doubts(values, first=100) == []


@pytest.mark.parametrize("n", [1, 2, 3, 5, 9])
def test_short_series_are_no_error(n):
    checks = assess_convergence(noise(n))
    assert len(checks.lengths) == len(checks.errors)
    assert checks.fractions[-1] == 1


@pytest.mark.parametrize("values", [[1e308, -1e308, np.nan], [np.inf, 1, 2], [3, 3, 3], [5e-324, 0, 1e-310]])
def test_curves_stay_within_their_picture(values):
    drawn = small_plot("it", [0, 1, 2], values, band=(-1.0, 2.0), zero=True)
    places = [tuple(map(float, pair.split(","))) for pair in drawn["curves"][0]]
    assert len(places) == np.isfinite(values).sum()
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in places)
    assert small_plot("it", [0], [np.nan]) == {}


def test_pieces_that_fit_are_there_the_more_important_first():
    pieces = Pieces(60)
    parts = [
        pieces.add(rank, "-", lambda name=name: name * 20) for name, rank in zip("abcd", (1, 0, 2, 1), strict=True)
    ]
    page = Markup(" ").join(parts)
    assert pieces.fit(page) == f"{'a' * 20} {'b' * 20} - -"
    pieces.limit = 83
    assert pieces.fit(page) == " ".join(name * 20 for name in "abcd")
