"""What speaks for and against a mean: series of which it is known, and the small pictures of it."""

from __future__ import annotations

import re

import numpy as np
import pytest

from himach.report.markup import Html
from himach.report.page.convergence import ENOUGH, converge
from himach.report.page.curves import HEIGHT, WIDTH, Curve, small_plot
from himach.report.page.pieces import Pieces


def noise(n: int = 2000, memory: float = 0.0, seed: int = 1) -> np.ndarray:
    """Return Gaussian noise of variance 1 about 5 that remembers this part of its last value."""
    made = np.random.default_rng(seed).normal(size=n)
    for i in range(1, n):
        made[i] = memory * made[i - 1] + np.sqrt(1 - memory**2) * made[i]
    return made + 5


def test_nothing_speaks_against_independent_values():
    found = converge(noise())
    assert found.doubts == []
    assert (found.halves_agree, found.stride_agrees, found.start_agrees) == (True, True, True)
    assert found.estimate.n_eff > 1000
    np.testing.assert_allclose(found.forward[-1], found.backward[-1])
    np.testing.assert_allclose(found.forward[-1], found.estimate.value)


def test_running_means_are_those_of_more_and_more_values():
    values = noise(90)
    found = converge(values)
    counts = np.round(found.fractions * 90).astype(int)
    assert counts[0] == 3  # not of one value
    np.testing.assert_allclose(found.forward, [values[:n].mean() for n in counts])
    np.testing.assert_allclose(found.backward, [values[-n:].mean() for n in counts])
    assert found.every_second == pytest.approx(values[::2].mean())


def test_errors_grow_with_blocks_as_long_as_values_remember():
    """For such a chain the standard error is known, at blocks much longer than it remembers."""
    memory, n = 0.9, 40_000
    found = converge(noise(n, memory))
    truth = np.sqrt((1 + memory) / (1 - memory) / n)
    long = (found.lengths > 300) & (found.lengths < 1000)
    np.testing.assert_allclose(found.errors[long], truth, rtol=0.3)
    assert found.errors[0] == pytest.approx(1 / np.sqrt(n), rel=0.1)
    assert (np.diff(found.lengths) > 0).all()


def test_a_drift_is_doubted():
    found = converge(noise() + np.linspace(0, 3, 2000))
    assert not found.estimate.converged or "the second half has another mean than the first" in found.doubts


def test_a_late_start_is_doubted():
    values = noise(4000)
    values[:2500] += 4 * np.exp(-np.arange(2500) / 800)
    found = converge(values)
    assert found.start > 1000
    assert found.doubts


def test_few_independent_values_are_doubted_and_fewer_have_no_interval():
    some, fewer = converge(noise(300, 0.9, seed=3)), converge(noise(60, 0.95))
    assert 8 < some.estimate.n_eff < ENOUGH
    assert f"{ENOUGH} fill the blocks" in some.doubts[0]
    assert fewer.doubts == ["fewer than 8 independent values"]
    assert (fewer.halves_agree, fewer.stride_agrees) == (None, None)


def test_every_second_frame_of_what_alternates_is_doubted():
    found = converge(noise() + np.where(np.arange(2000) % 2, 1.0, -1.0))
    assert "every second frame gives another mean" in found.doubts


def test_what_never_changed_tells_nothing():
    assert converge(np.zeros(100)).doubts == ["never changed, which tells nothing of how sure it is"]


def test_what_is_cut_is_left_out():
    values = np.concatenate([np.full(100, 50.0), noise()])
    assert converge(values, first=100).estimate.value == pytest.approx(noise().mean())
    assert converge(values, first=100).doubts == []


@pytest.mark.parametrize("n", [1, 2, 3, 5, 9])
def test_short_series_are_no_error(n):
    found = converge(noise(n))
    assert len(found.lengths) == len(found.errors)
    assert found.fractions[-1] == 1


def test_curves_stay_within_their_picture():
    """Whatever the values are: nan, infinite, huge, equal."""
    for values in ([1e308, -1e308, np.nan], [np.inf, 1, 2], [3, 3, 3], [5e-324, 0, 1e-310]):
        drawn = small_plot("it", [Curve([0, 1, 2], values)], (-1.0, 2.0), zero=True)
        places = [tuple(map(float, pair.split(","))) for pair in re.search('points="([^"]*)"', drawn)[1].split()]
        assert len(places) == np.isfinite(values).sum()
        assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in places)
    assert "svg" not in small_plot("it", [Curve([0], [np.nan])])


def test_pieces_that_fit_are_there_the_more_important_first():
    pieces = Pieces(60)
    parts = [pieces.add(Html(name * 20), "-", rank) for name, rank in (("a", 1), ("b", 0), ("c", 2), ("d", 1))]
    assert pieces.fit(" ".join(parts)) == f"{'a' * 20} {'b' * 20} - -"


def test_pieces_have_a_smaller_form_where_not_all_fit():
    for limit, expected in ((50, "a" * 40), (20, "b" * 10), (5, "-")):
        pieces = Pieces(limit)
        assert pieces.fit(pieces.add(Html("a" * 40), "-", 0, lambda: Html("b" * 10))) == expected
