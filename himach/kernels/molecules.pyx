"""The boundary to `fit.h`: check, convert, release the GIL, call, raise."""

import numpy as np

from himach.errors import UsageError
from himach.kernels.arrays import as_positions, as_weights


cdef extern from "fit.h":
    double fit_rmsd(const float *positions, const float *reference, const double *weights, size_t n,
                    int superpose) nogil


def rmsd(positions, reference, weights=None, bint superposition=True):
    """Return the root-mean-square deviation of positions from a reference, in Å, about their centres.

    Parameters
    ----------
    positions
        float32 (n, 3), Å.
    reference
        float32 (n, 3), Å.
    weights
        float64 (n,): weights of the atoms in the deviation and in the centres, such as masses; None for equal ones.
    superposition
        Whether to rotate onto the reference first.

    Raises
    ------
    UsageError
        If the arrays have other shapes, there are no positions, or the weights are negative or all zero.

    Notes
    -----
    The same as ``MDAnalysis.analysis.rms.rmsd(..., center=True, superposition=superposition)``, by the quaternion
    method of Theobald, Acta Cryst. A 61, 478 (2005). Sums are of double precision. It releases the GIL.
    """
    cdef const float[:, ::1] mobile = as_positions("positions", positions)
    cdef const float[:, ::1] fixed = as_positions("reference", reference)
    cdef Py_ssize_t n = mobile.shape[0]
    cdef const double[::1] weighed = as_weights(weights, n)
    cdef const double *each = NULL
    cdef double found
    if fixed.shape[0] != n or n == 0:
        raise UsageError(f"positions and reference must be as many, and some, not {n} and {fixed.shape[0]}")
    if weighed is not None:
        if not (np.min(weighed) >= 0 and np.max(weighed) > 0):
            raise UsageError("weights must not be negative, nor all zero")
        each = &weighed[0]
    with nogil:
        found = fit_rmsd(&mobile[0, 0], &fixed[0, 0], each, n, superposition)
    return found
