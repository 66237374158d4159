"""What speaks for and against a mean: series of which it is known, and the small pictures of it."""

from __future__ import annotations

import numpy as np
import pytest
from markupsafe import Markup

from himach.report.convergence import ENOUGH, HEIGHT, WIDTH, converge, small_plot
from himach.report.page import Pieces


def noise(n: int = 2000, memory: float = 0.0, seed: int = 1) -> np.ndarray:
    """Return Gaussian noise of variance 1 about 5 that remembers this part of its last value."""
    made = np.random.default_rng(seed).normal(size=n)
    for i in range(1, n):
        made[i] = memory * made[i - 1] + np.sqrt(1 - memory**2) * made[i]
    return made + 5


def doubts(values, **options) -> list[str]:
    return [name for name, _ in converge(values, **options).doubts]


def test_nothing_speaks_against_independent_values():
    looks = converge(noise())
    assert (looks.doubts, set(looks.agrees.values())) == ([], {True})
    assert looks.estimate.n_eff > 1000
    np.testing.assert_allclose([each[-1] for each in looks.running], looks.estimate.value)


def test_running_means_are_those_of_more_and_more_values():
    values = noise(90)
    looks = converge(values)
    counts = np.round(looks.fractions * 90).astype(int)
    assert counts[0] == 3  # not of one value
    np.testing.assert_allclose(looks.running[0], [values[:n].mean() for n in counts])
    np.testing.assert_allclose(looks.running[1], [values[-n:].mean() for n in counts])
    assert looks.every_second == pytest.approx(values[::2].mean())


def test_errors_grow_with_blocks_as_long_as_values_remember():
    """For such a chain the standard error is known, at blocks much longer than it remembers."""
    memory, n = 0.9, 40_000
    looks = converge(noise(n, memory))
    truth = np.sqrt((1 + memory) / (1 - memory) / n)
    long = (looks.lengths > 300) & (looks.lengths < 1000)
    np.testing.assert_allclose(looks.errors[long], truth, rtol=0.3)
    assert looks.errors[0] == pytest.approx(1 / np.sqrt(n), rel=0.1)
    assert (np.diff(looks.lengths) > 0).all()


def test_what_is_wrong_with_a_series_is_doubted():
    late = noise(4000)
    late[:2500] += 4 * np.exp(-np.arange(2500) / 800)
    assert converge(late).start > 1000
    assert doubts(late)
    drift = converge(noise() + np.linspace(0, 3, 2000))
    assert not drift.estimate.converged or "halves" in [name for name, _ in drift.doubts]
    assert "stride" in doubts(noise() + np.where(np.arange(2000) % 2, 1.0, -1.0))
    assert doubts(np.zeros(100)) == ["constant"]
    few = converge(noise(300, 0.9, seed=3))
    assert 8 < few.estimate.n_eff < ENOUGH
    assert few.doubts[0] == ("few", {"n_eff": few.estimate.n_eff, "enough": ENOUGH})
    fewer = converge(noise(60, 0.95))
    assert fewer.doubts[0][0] == "fewer than 8 independent values"
    assert set(fewer.agrees.values()) == {None}


def test_what_is_cut_is_left_out():
    values = np.concatenate([np.full(100, 50.0), noise()])
    assert converge(values, first=100).estimate.value == pytest.approx(noise().mean())
    assert doubts(values, first=100) == []


@pytest.mark.parametrize("n", [1, 2, 3, 5, 9])
def test_short_series_are_no_error(n):
    looks = converge(noise(n))
    assert len(looks.lengths) == len(looks.errors)
    assert looks.fractions[-1] == 1


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
    assert not pieces.all_fit(page)
    assert pieces.fit(page) == f"{'a' * 20} {'b' * 20} - -"
    pieces.limit = 83
    assert pieces.all_fit(page)
    assert pieces.fit(page) == " ".join(name * 20 for name in "abcd")
