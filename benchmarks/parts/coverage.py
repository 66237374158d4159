"""``himach bench coverage``: how often intervals of himach.uncertainty contain the truth, where the truth is known."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import click
import numpy as np
import numpy.typing as npt

from himach import uncertainty
from himach.examples.liquids.displacements import (
    UNIT,
    block_lags,
    block_msd,
    diffusion,
    diffusion_limits,
    msd_limits,
    windowed_msd,
)

from ..harness.options import only

__all__ = ["main"]

#: Values in a series, and independent values that they are worth.
LENGTH, N_EFF = 4096, (16, 64, 512)
#: Bounds of the coverage of intervals at 0.95, and the widest that means may be, in units of the ideal width.
MEANS, WIDEST = (0.92, 0.97), {16: 1.4, 64: 1.2, 512: 1.06}
SEED = 1

Array = npt.NDArray[Any]


class Row(NamedTuple):
    """A case: coverages (one, or one a bin), their bounds, and another figure with its text."""

    name: str
    covered: Array
    bounds: tuple[float, float]
    note: str = ""
    well: bool = True

    def __str__(self) -> str:
        least, most = self.covered.min(), self.covered.max()
        shown = f"{least:.3f}" if self.covered.size == 1 else f"{least:.3f} to {most:.3f}"
        inside = self.bounds[0] <= least and most <= self.bounds[1]
        aim = f"{self.bounds[0]:.2f} to {self.bounds[1]:.2f}"
        return f"{self.name:<58} {shown:>15} {aim:>13}  {'' if inside and self.well else 'MISSED '}{self.note}"


class Process(NamedTuple):
    """A stationary series: how it is drawn, its autocovariance at each lag, and its mean."""

    draw: Callable[[np.random.Generator, int], Array]
    covariance: Array
    mean: float


@only("mean, replicas, events, stays, curves, equilibration")
@click.option("--series", type=click.IntRange(min=100), default=2000, show_default=True, help="Series of each case.")
def main(only: tuple[str, ...], series: int) -> None:
    """Count how often intervals at 0.95 contain the truth, in series whose truth is known.

    Widths are in units of the narrowest interval that there is: twice 1.96 times the true standard error.
    """
    parts: dict[str, Callable[[np.random.Generator, int], Iterable[Any]]] = {
        "mean": _means,
        "replicas": _replicas,
        "events": _events,
        "stays": _stays,
        "curves": _curves,
        "equilibration": _transients,
    }
    if unknown := set(only) - set(parts):
        raise click.BadParameter(f"no part {', '.join(sorted(unknown))}; there is {', '.join(parts)}")
    print(f"{f'{series:,} series each':<58} {'coverage':>15} {'aim':>13}")
    for name in only or parts:
        for row in parts[name](np.random.default_rng(SEED), series):
            print(row, flush=True)


def _filtered(noise: Array, *coefficients: float) -> Array:
    from scipy.signal import lfilter

    return np.asarray(lfilter([1], [1, *(-c for c in coefficients)], noise, axis=1))


def _first_order(phi: float) -> Process:
    """Return the series x' = phi x + noise, of variance 1."""

    def draw(random: np.random.Generator, series: int) -> Array:
        noise = random.normal(size=(series, LENGTH)) * math.sqrt(1 - phi**2)
        noise[:, 0] /= math.sqrt(1 - phi**2)
        return _filtered(noise, phi)

    return Process(draw, phi ** np.arange(LENGTH), 0.0)


def _second_order(phi: float) -> Process:
    """Return a series with two memories, phi and a third of its time: x'' = (phi + psi) x' - phi psi x + noise."""
    psi = phi**3
    first, second, burn = phi + psi, -phi * psi, 4 * LENGTH
    covariance = np.ones(LENGTH)
    covariance[1] = first / (1 - second)
    for lag in range(2, LENGTH):
        covariance[lag] = first * covariance[lag - 1] + second * covariance[lag - 2]
    variance = (1 - second) / ((1 + second) * ((1 - second) ** 2 - first**2))

    def draw(random: np.random.Generator, series: int) -> Array:
        rows = [_filtered(random.normal(size=(1, burn + LENGTH)), first, second)[0, burn:] for _ in range(series)]
        return np.array(rows) / math.sqrt(variance)

    return Process(draw, covariance, 0.0)


def _log_normal(sigma: float) -> Callable[[float], Process]:
    """Return the exponential of a first-order series of standard deviation `sigma`."""

    def process(phi: float) -> Process:
        base = _first_order(phi)
        covariance = np.exp(sigma**2) * np.expm1(sigma**2 * base.covariance)
        return Process(lambda random, n: np.exp(sigma * base.draw(random, n)), covariance, math.exp(sigma**2 / 2))

    return process


def _variance_of_mean(covariance: Array) -> float:
    lags = np.arange(LENGTH)
    return float((2 * (covariance * (1 - lags / LENGTH)).sum() - covariance[0]) / LENGTH)


def _worth(make: Callable[[float], Process], n_eff: float) -> Process:
    """Return the process whose series are worth so many independent values."""
    from scipy.optimize import brentq

    def beyond(phi: float) -> float:
        covariance = make(phi).covariance
        return math.log(covariance[0] / _variance_of_mean(covariance) / n_eff)

    return make(brentq(beyond, 0.01, 0.9999))


def _covered(estimates: Iterable[uncertainty.Estimate[Any]], truth: float) -> Array:
    return np.array(np.mean([e.low <= truth <= e.high for e in estimates]))


def _means(random: np.random.Generator, series: int) -> Iterator[Row]:
    kinds = {
        "AR(1)": (_first_order, MEANS),
        "AR(2)": (_second_order, MEANS),
        "log-normal, skewness 1.8": (_log_normal(0.5), MEANS),
        "log-normal, skewness 6.2": (_log_normal(1.0), MEANS),
    }
    for kind, (make, bounds) in kinds.items():
        for n_eff in N_EFF:
            process = _worth(make, n_eff)
            estimates = [uncertainty.mean(values) for values in process.draw(random, series)]
            made = [e for e in estimates if e.converged]
            ideal = 1.959964 * math.sqrt(_variance_of_mean(process.covariance))
            width = float(np.mean([e.half_width for e in made])) / ideal
            note = f"width {width:.2f} (aim {WIDEST[n_eff]:.2f}), {len(estimates) - len(made)} not converged"
            aim = (0.88, bounds[1]) if n_eff == 16 and kind.startswith("log") else bounds
            yield Row(f"mean: {kind}, N_eff {n_eff}", _covered(made, process.mean), aim, note, width <= WIDEST[n_eff])


def _replicas(random: np.random.Generator, series: int) -> Iterator[Row]:
    """Draw runs of N_eff 64 whose own means differ by 0.3 of a value's deviation."""
    for runs in (3, 5, 10):
        means = random.normal(scale=0.3, size=(series, runs)) + random.normal(scale=1 / 8, size=(series, runs))
        estimates = [uncertainty.replicas(each) for each in means]
        yield Row(f"replicas: {runs} runs", _covered(estimates, 0), (0.93, 0.97))


def _events(random: np.random.Generator, series: int) -> Iterator[Row]:
    """Tell counts and proportions exactly: no series are needed, as the probability of each outcome is known."""
    from scipy.stats import binom, poisson

    means = np.geomspace(0.5, 50, 60)
    k = np.arange(200)
    counted = uncertainty.count(k)
    probability = poisson.pmf(k, means[:, None])
    inside = (counted.low <= means[:, None]) & (means[:, None] <= counted.high)
    yield Row("count: means of 0.5 to 50, exact", (probability * inside).sum(axis=1), (0.95, 1.0))
    for n in (20, 50, 200):
        p = np.array([0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 0.95])
        found = uncertainty.proportion(np.arange(n + 1), n)
        inside = (found.low <= p[:, None]) & (p[:, None] <= found.high)
        probability = binom.pmf(np.arange(n + 1), n, p[:, None])
        yield Row(f"proportion: 0.05 to 0.95 of {n}, exact", (probability * inside).sum(axis=1), (0.92, 0.98))


def _stays(random: np.random.Generator, series: int) -> Iterator[Row]:
    """Watch sites that are filled and emptied at known rates, for a time of 1: stays entered in it."""
    for mean_stay in (0.05, 0.2, 0.5):
        found = [_watched(random, 400, mean_stay, 0.5) for _ in range(series)]
        estimates = [each.mean for each in found]
        bias = float(np.mean([e.value for e in estimates])) / mean_stay - 1
        note = f"bias {100 * bias:+.2f} % (aim 2), {np.mean([each.ended for each in found]):.0f} ended"
        name = f"stays: mean {mean_stay} of the trajectory"
        yield Row(name, _covered(estimates, mean_stay), (0.92, 0.98), note, abs(bias) <= 0.02)
        times = np.array([0.25, 0.5, 1.0]) * min(mean_stay, 0.4)
        inside = [_survives(each, times, np.exp(-times / mean_stay)) for each in found]
        yield Row(f"  survival at {', '.join(f'{t:g}' for t in times)}", np.mean(inside, axis=0), (0.92, 0.98))


def _watched(random: np.random.Generator, sites: int, mean_stay: float, mean_gap: float) -> uncertainty.Stays:
    """Watch sites, in equilibrium at first, for a time of 1."""
    filled = random.random(sites) < mean_stay / (mean_stay + mean_gap)
    steps = 2 * math.ceil(8 + 4 / (mean_stay + mean_gap))
    turns = np.arange(steps) % 2 == 0
    is_stay = np.where(filled[:, None], turns, ~turns)
    lengths = random.exponential(size=(sites, steps)) * np.where(is_stay, mean_stay, mean_gap)
    ends = lengths.cumsum(axis=1)
    starts = ends - lengths
    entered = is_stay & (starts > 0) & (starts < 1)
    entered[:, 0] = False
    return uncertainty.stays((np.minimum(ends, 1) - starts)[entered], (ends <= 1)[entered])


def _survives(found: uncertainty.Stays, times: Array, truth: Array) -> Array:
    place = np.searchsorted(found.times, times, side="right") - 1
    return (found.low[place] <= truth) & (truth <= found.high[place])


def _curves(random: np.random.Generator, series: int) -> Iterator[Row]:
    bounds = (0.90, 0.98)
    walks = [_of_walks(random, 1000, 101) for _ in range(series // 2)]
    slopes = [d for _, d in walks if d.converged]
    name = "msd: D of 10 Brownian particles, 1,000 frames, 81 lags"
    yield Row(name, _covered(slopes, 1e-4), bounds, _converged([d for _, d in walks]))
    lags = np.arange(1, 101)
    known = np.array([np.isfinite(band.low[1:]) for band, _ in walks])
    inside = np.array([(band.low[1:] <= 6 * lags) & (6 * lags <= band.high[1:]) for band, _ in walks])
    name = "msd: the same, mean squared displacement, 100 lags"
    yield Row(name, inside.sum(axis=0) / known.sum(axis=0), bounds, f"{known.mean():.1%} of the lags have a band")
    edges = np.linspace(2, 10, 41)
    shells = 0.02 * np.diff(edges**3)  # pairs that a frame has of them
    gas = [uncertainty.of_blocks(random.poisson(16 * shells, (64, 40)), np.full(64, 16.0)) for _ in range(series)]
    inside = np.mean([(e.low <= shells) & (shells <= e.high) for e in gas], axis=0)
    yield Row("of_blocks: g(r) of an ideal gas, 1,024 frames, 40 bins", inside, bounds, _converged(gas))
    gas = [_of_frames(random.poisson(shells, (270, 40)), 1000) for _ in range(series)]
    inside = np.mean([(e.low <= shells) & (shells <= e.high) for e in gas], axis=0)
    yield Row("add_blocks: the same, frames 1,000 to 1,269", inside, bounds, _converged(gas))
    for tau, frames in ((8, 4096), (64, 4096), (16, 512)):
        lags = np.arange(1, 33) if tau == 8 else np.arange(1, 33) * tau // 16
        found = [_of_states(random, tau, frames, lags) for _ in range(series)]
        made = [e for e in found if e.converged]
        survival = 0.5 * (1 + np.exp(-2 * lags / tau))  # that it is in A again, which it was
        inside = np.mean([(e.low <= survival) & (survival <= e.high) for e in made], axis=0)
        name = f"of_blocks: two states, memory {tau / 2:g} of {frames:,} frames, 32 lags"
        yield Row(name, inside, bounds, _converged(found))


def _converged(estimates: list[Any]) -> str:
    n_eff = np.median([e.n_eff for e in estimates])
    return f"N_eff {n_eff:.0f}, {sum(not e.converged for e in estimates)} not converged"


def _of_walks(
    random: np.random.Generator, frames: int, n_lags: int
) -> tuple[uncertainty.Estimate[Any], uncertainty.Estimate[Any]]:
    """Return the mean squared displacement of walks with D = 1, and D by its slope, as the built-in has them."""
    paths = random.normal(scale=math.sqrt(2), size=(10, frames, 3)).cumsum(axis=1)
    msd: Array = windowed_msd(paths)[:, :n_lags].mean(axis=0)
    tau, fitted = np.arange(float(n_lags)), slice(10, 91)
    of_block: Array = block_msd(paths, *block_lags(frames, n_lags), len(paths)) * UNIT
    d = diffusion(tau[fitted], msd[fitted])
    band = msd_limits(msd, of_block, 0.95)
    return band, diffusion_limits(d, tau[fitted], of_block[:, fitted], 0.95)


def _of_frames(counts: Array, first: int) -> uncertainty.Estimate[Any]:
    """Return a curve by blocks of frames, of frames whose numbers begin anywhere, so that some blocks are not full."""
    rows = [uncertainty.block_row(first + i, of_frame) for i, of_frame in enumerate(counts)]
    frames, sums = uncertainty.split_blocks(uncertainty.add_blocks(rows))
    return uncertainty.of_blocks(sums, frames)


def _of_states(random: np.random.Generator, tau: float, frames: int, lags: Array) -> uncertainty.Estimate[Any]:
    """Return how probable it is that one of 4 sites in state A is there again after each lag, origins by fine block."""
    flips = random.random((frames, 4)) < 0.5 * (1 - math.exp(-2 / tau))
    flips[0] = random.random(4) < 0.5
    there = flips.cumsum(axis=0) % 2 == 0
    sums, weights = np.zeros((64, len(lags))), np.zeros((64, len(lags)))
    block = uncertainty.fine_block(np.arange(frames), frames)
    for i, lag in enumerate(lags):
        again = (there[:-lag] & there[lag:]).sum(axis=1)
        sums[:, i] = np.bincount(block[:-lag], again, 64)
        weights[:, i] = np.bincount(block[:-lag], there[:-lag].sum(axis=1), 64)
    return uncertainty.of_blocks(sums, weights)


def _transients(random: np.random.Generator, series: int) -> Iterator[str]:
    """Draw series of N_eff about 400 that begin with a decay from 5 deviations; where each tool lets them begin."""
    tools = _tools()
    yield f"{'equilibration: first value kept, median of 20 series':<58}" + "".join(f"{name:>22}" for name in tools)
    frames = np.arange(1500)
    for decay in (0, 20, 60):
        offset = 5 * np.exp(-frames / decay) if decay else np.zeros(len(frames))
        drawn = _first_order(0.6).draw(random, 20)[:, : len(frames)] + offset
        found = {name: [tool(values) for values in drawn] for name, tool in tools.items()}
        # What is kept errs by its bias and by its spread: the root of the mean square of the mean's error.
        error = {
            name: math.sqrt(np.mean([values[start:].mean() ** 2 for values, start in zip(drawn, starts, strict=True)]))
            for name, starts in found.items()
        }
        shown = "".join(f"{np.median(found[name]):>8.0f} (error {error[name]:.3f})" for name in tools)
        yield f"{f'  decay of {decay} values, of {len(frames):,}':<58}{shown}"


def _tools() -> dict[str, Callable[[Array], int]]:
    tools: dict[str, Callable[[Array], int]] = {"himach": uncertainty.equilibration}
    try:
        from red import detect_equilibration_init_seq

        tools["red-molsim"] = lambda values: int(detect_equilibration_init_seq(values)[0])
    except ImportError:
        pass
    try:
        from pymbar.timeseries import detect_equilibration

        tools["pymbar"] = lambda values: int(detect_equilibration(values)[0])
    except ImportError:
        pass
    return tools
