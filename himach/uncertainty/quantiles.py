"""Quantiles of the distributions that intervals are made of: Student's t with its degrees of freedom, normal, gamma."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from himach.uncertainty.estimate import FloatArray


def student(level: float, degrees: float) -> float:
    """Return t such that Student's t lies between -t and t with probability `level`."""
    from scipy.special import stdtrit

    return float(-stdtrit(degrees, (1 - level) / 2))


def students(level: float, degrees: FloatArray) -> FloatArray:
    """Return `student` of each of several degrees of freedom, which need not be whole; nan of nan."""
    from scipy.special import stdtrit

    return np.asarray(-stdtrit(degrees, (1 - level) / 2), dtype=np.float64)


def student_beyond(t: FloatArray, degrees: FloatArray) -> FloatArray:
    """Return the probability that Student's t is as far from 0 as each of `t`, or farther; nan of nan."""
    from scipy.special import stdtr

    return np.asarray(2 * stdtr(degrees, -np.abs(t)), dtype=np.float64)


def welch_degrees(first: FloatArray, n_first: int, second: FloatArray, n_second: int) -> FloatArray:
    """Return the degrees of freedom of a difference of means, by Welch and Satterthwaite.

    Parameters
    ----------
    first, second
        Squared standard errors of the means, of one shape, in any unit.
    n_first, n_second
        Numbers of independent values of which the means are.
    """
    both = first + second
    # In shares of the whole, for the fourth power of a small error may be too small for a float.
    return np.asarray(1 / ((first / both) ** 2 / (n_first - 1) + (second / both) ** 2 / (n_second - 1)))


def normal(level: float) -> float:
    """Return z such that a standard normal deviate lies between -z and z with probability `level`."""
    from scipy.special import ndtri

    return float(-ndtri((1 - level) / 2))


def gamma(shape: npt.ArrayLike, below: float) -> FloatArray:
    """Return the quantile of the gamma distribution of scale 1; 0 where its shape is 0."""
    from scipy.special import gammaincinv

    shapes = np.asarray(shape, dtype=np.float64)
    return np.asarray(np.where(shapes > 0, gammaincinv(np.where(shapes > 0, shapes, 1), below), 0), dtype=np.float64)
