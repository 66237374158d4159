"""How long atoms remember their velocities, and at which wavenumbers they move."""

from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np

import himach
from himach import uncertainty
from himach.examples.common import WATER, lag_times, select
from himach.examples.drawing import draw_band, draw_legend, in_words, panels, time_axis
from himach.examples.liquids.autocorrelations import block_products, integral, spectral_density, windowed_products
from himach.examples.liquids.displacements import CM2_S, UNIT, block_lags
from himach.examples.superposition import get_weights

#: Velocities processed at a time: as many as stay in a core's own cache.
AT_ONCE = 1 << 15


class VelocityAutocorrelation(himach.Analysis):
    """Velocity autocorrelation over all time origins and selected atoms; its spectrum, and diffusion by Green and Kubo.

    The autocorrelation is 1 at lag 0. The spectrum is the density of the wavenumbers at which atoms move, and its
    integral is 1. Lags of more than an eighth of the trajectory have no interval, for they have too few windows that
    know nothing of each other; nor has what is made of such lags.

    Parameters
    ----------
    selection
        Selection of the atoms that move.
    tau_max
        Longest lag, in selected frames. It sets how fine the spectrum is.
    weights
        How atoms count: ``none``, all alike; ``mass``, by their masses, so that the spectrum is the vibrational density
        of states.
    """

    name: ClassVar[str] = "velocity-autocorrelation"
    references: ClassVar[tuple[str, ...]] = ("10.1103/PhysRev.136.A405", "10.1051/sfn/201112010")
    caption: ClassVar[str] = "Velocity autocorrelation function of {selection} against the lag time, and its spectrum."

    selection: str = WATER
    tau_max: int = 100
    weights: Literal["none", "mass"] = "none"

    @property
    def methods(self):
        """What a paper says of it, as the parameters are."""
        weights = ", weighted by mass," if self.weights == "mass" else ""
        return (
            f"The velocity autocorrelation function of {{selection}}{weights} was averaged over all time origins by "
            "Fourier transform [10.1103/PhysRev.136.A405, 10.1051/sfn/201112010]; its spectrum was computed with a "
            "Hann window, and the diffusion coefficient is its integral by Green and Kubo."
        )

    def setup(self, universe):
        atoms = select(universe, self, "selection")
        if not universe.trajectory.ts.has_velocities:
            raise himach.UsageError(
                f"{self.name}: the trajectory has no velocities; give one that has (TRR, NetCDF, H5MD), written often "
                "enough for what moves: each 4 fs for hydrogens"
            )
        self.indices = atoms.indices
        weights = get_weights(atoms, self)
        weights = np.ones(len(atoms)) if weights is None else weights
        self.shares = dict(zip(self.indices.tolist(), (weights / weights.sum()).tolist(), strict=True))
        self.tau_ps = lag_times(self, self.tau_max)
        self.n_blocks, self.n_lags = block_lags(len(self.frames), len(self.tau_ps))

    def atoms(self, universe):
        return universe.atoms[self.indices]

    def map(self, frame):
        if frame.velocities is None:
            raise himach.UsageError("the frame has no velocities; select frames that have")
        velocities = frame.velocities[self.indices]
        if not np.isfinite(velocities).all():
            raise himach.UsageError("the frame has velocities that are nan or infinite; leave it out (--frames)")
        yield himach.Pairs(self.indices, velocities)

    def reduce(self, key, series):
        return windowed_products(series.values.astype(np.float64))[: len(self.tau_ps)].copy()

    def reduce_many(self, keys, series):
        m = len(self.frames)
        if np.any(np.diff(series.offsets) != m):  # a derived analysis may leave frames out
            return [self.reduce(key, member) for key, member in zip(keys, series, strict=True)]
        velocities, batch = series.values.reshape(-1, m, 3), max(1, AT_ONCE // m)
        shares, curves, blocks = np.array([self.shares[key] for key in keys.tolist()]), [], 0
        for first in range(0, len(velocities), batch):
            part = velocities[first : first + batch].astype(np.float64)
            curves += [*windowed_products(part)[:, : len(self.tau_ps)].copy()]
            if self.n_blocks:
                blocks = blocks + block_products(part, shares[first : first + batch], self.n_blocks, self.n_lags)
        if self.n_blocks:
            curves[0] = curves[0], blocks, len(velocities)  # the first has what all these atoms add to the blocks
        return curves

    def finish(self, results):
        products, n_whole = np.zeros(len(self.tau_ps)), 0
        blocks = np.zeros((self.n_blocks or 1, self.n_lags), np.int64)
        for key, result in results.items():
            if isinstance(result, tuple):
                atom_products, block_values, n_atoms = result
                blocks += block_values
                n_whole += n_atoms
            else:
                atom_products = result
            products += self.shares[key] * atom_products
        if not products[0] > 0:
            raise himach.UsageError(f"{self.name}: all velocities of the selected atoms are 0")
        curve, dt = products / products[0], self.tau_ps[-1] / max(1, len(self.tau_ps) - 1)
        block_values = blocks * UNIT if n_whole == len(results) else np.zeros((1, self.n_lags))
        has_all_lags = self.n_lags == len(self.tau_ps)  # all lags have blocks

        def make_limits(value, function, needs_all=True):
            def limits(level):
                low, high = np.full((2, len(value)), np.nan)
                if not block_values.any() or (needs_all and not has_all_lags):
                    band = uncertainty.of_blocks([0.0], None, level)  # not converged
                else:
                    band = uncertainty.of_blocks(block_values, None, level, of=function)
                    low[: len(band.low)], high[: len(band.high)] = band.low, band.high
                return replace(band, value=value, low=low, high=high)

            return limits

        c = himach.Column(curve, estimate=make_limits(curve, lambda mean: mean / mean[0], needs_all=False))
        outcome = {"vacf": himach.Table({"tau_ps": himach.Column(self.tau_ps, "ps", role="x"), "c": c})}
        wavenumbers = density = np.empty(0)
        if len(curve) > 1:
            wavenumbers, density = spectral_density(curve, dt)
        estimate = make_limits(density, lambda mean: spectral_density(mean / mean[0], dt)[1])
        density = himach.Column(density, "cm", estimate=estimate)
        wavenumbers = himach.Column(wavenumbers, "cm⁻¹", role="x")
        outcome["spectrum"] = himach.Table({"wavenumber": wavenumbers, "density": density})
        if self.weights == "none":
            d = np.array([CM2_S / 3 * integral(products, dt)])
            estimate = make_limits(d, lambda mean: [CM2_S / 3 * integral(mean, dt)])
            to_ps, d = himach.Column(self.tau_ps[-1:], "ps", role="x"), himach.Column(d, "cm²/s", estimate=estimate)
            outcome["diffusion"] = himach.Table({"to_ps": to_ps, "d_cm2_s": d})
        return outcome

    def plot(self, outcome, axes):
        curve, spectrum = outcome["vacf"], outcome["spectrum"]
        text = f"\n{in_words(outcome['diffusion'], 'd_cm2_s', 'D')}" if "diffusion" in outcome else ""
        axes.set_title(f"Velocity autocorrelation and its spectrum{text}")
        over_lags, over_waves = panels(axes, [1.1, 1.1])
        scale, label = time_axis(curve["tau_ps"], "lag time τ")
        over_lags.plot(scale * curve["tau_ps"], curve["c"])
        draw_band(over_lags, scale * curve["tau_ps"], curve, "c", "C0")
        over_lags.axhline(0, color="grey", lw=0.8)
        over_lags.set(xlabel=label, ylabel="autocorrelation c")
        over_lags.margins(x=0)
        over_waves.plot(spectrum["wavenumber"], spectrum["density"])
        draw_band(over_waves, spectrum["wavenumber"], spectrum, "density", "C0")
        over_waves.set(xlabel=spectrum.label("wavenumber"), ylabel=spectrum.label("density"))
        significant = np.flatnonzero(spectrum["density"] > 1e-3 * np.max(spectrum["density"], initial=0))
        if len(significant) > 1:
            over_waves.set_xlim(0, spectrum["wavenumber"][significant[-1]])
        for panel in (over_lags, over_waves):
            panel.grid(alpha=0.3)
            draw_legend(panel)
