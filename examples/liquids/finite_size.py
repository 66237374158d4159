"""How much a periodic box slows diffusion, by hydrodynamics: the correction of Yeh and Hummer, for any box."""

import itertools

import numpy as np
import numpy.typing as npt
from scipy.special import erfc

__all__ = ["mobility_lost", "yeh_hummer"]

Floats = npt.NDArray[np.float64]
#: J/K, exactly.
BOLTZMANN = 1.380649e-23
#: m²/s in cm²/s, mPa s in Pa s, Å in m.
CM2_S, PA_S, M = 1e4, 1e-3, 1e-10
#: Both Ewald sums end where their terms have fallen by exp(-36).
LAST = 6.0


def yeh_hummer(
    vectors: npt.ArrayLike, viscosity: float, temperature: float, axes: list[int] | slice = slice(None)
) -> float:
    """Return the correction of a diffusion coefficient in a periodic box, in cm²/s; in a cube 2.837297 kT / (6 π η L).

    Parameters
    ----------
    vectors
        float64 (3, 3), Å: the box, one vector per row.
    viscosity
        Shear viscosity η of the liquid, mPa s.
    temperature
        T, K.
    axes
        Directions, 0 to 2, over which the diffusion coefficient is a mean; all by default.

    References
    ----------
    Yeh and Hummer, J. Phys. Chem. B 108, 15873 (2004); in boxes of which the sides differ, Kikugawa, Nakano and Ohara,
    J. Chem. Phys. 143, 024507 (2015).
    """
    mobility = np.diagonal(mobility_lost(vectors))[axes].mean()
    return float(BOLTZMANN * temperature * mobility / (6 * np.pi * viscosity * PA_S * M) * CM2_S)


def mobility_lost(vectors: npt.ArrayLike) -> Floats:
    """Return the mobility that a particle loses to its images, times 6 π η, float64 (3, 3) in 1/Å.

    It is Oseen's tensor less that of a periodic lattice of forces, at the place of the force. The lattice is summed up
    as Hasimoto does (J. Fluid Mech. 5, 317 (1959)), one half in real space, the other in Fourier space.

    Parameters
    ----------
    vectors
        float64 (3, 3), Å: the box, one vector per row.
    """
    box = np.asarray(vectors, dtype=np.float64)
    volume = abs(float(np.linalg.det(box)))
    sharp = np.sqrt(np.pi) / np.cbrt(volume)
    waves = 2 * np.pi * np.linalg.inv(box).T
    near, far = lattice(box, LAST / sharp), lattice(waves, 2 * LAST * sharp)

    r2 = (near**2).sum(axis=1)[:, np.newaxis, np.newaxis]
    r, gauss = np.sqrt(r2), 2 * sharp / np.sqrt(np.pi) * np.exp(-(sharp**2) * r2)
    along = near[:, :, np.newaxis] * near[:, np.newaxis] / r2
    real_terms = (gauss + erfc(sharp * r) / r) * (np.eye(3) + along) - 2 * gauss * np.eye(3)

    k2 = (far**2).sum(axis=1)[:, np.newaxis, np.newaxis]
    across = np.eye(3) - far[:, :, np.newaxis] * far[:, np.newaxis] / k2
    smooth = k2 / (4 * sharp**2)
    wave_terms = 8 * np.pi / volume * (1 + smooth) * np.exp(-smooth) / k2 * across

    self_term = 4 * sharp / np.sqrt(np.pi) * np.eye(3)
    return np.asarray(0.75 * (self_term - real_terms.sum(axis=0) - wave_terms.sum(axis=0)))


def lattice(vectors: Floats, most: float) -> Floats:
    """Return the points of a lattice within `most` of the origin, without the origin, (n, 3)."""
    across = 1 / np.linalg.norm(np.linalg.inv(vectors), axis=0)  # distances of lattice planes
    reach = [range(-n, n + 1) for n in np.ceil(most / across).astype(int)]
    points = np.array(list(itertools.product(*reach)), dtype=np.float64) @ vectors
    squares = (points**2).sum(axis=1)
    return points[(squares <= most**2) & (squares > 0)]
