# Deviations of structures, superposition, and the shape of a group of atoms.

cdef extern from "molecules/molecules.h":
    double fit_rmsd(const float *positions, const float *reference, const double *weights, size_t n,
                    int superpose) nogil
    void fit_rotation(const float *positions, const float *reference, const double *weights, size_t n,
                      double *rotation, double *shift) nogil
    void fit_move(const float *positions, size_t n, const double *rotation, const double *shift, float *to) nogil
    void shape_gyration(const float *positions, const double *weights, size_t n, double *tensor) nogil
    struct structures:
        const float *positions
        size_t count
    struct deviation:
        size_t n
        const double *weights
        int superpose
        double cutoff
    int deviations_find(structures a, structures b, const deviation *request, double *deviations, uint8_t *bits) nogil
    struct fluctuation:
        size_t n
        const double *fixed
        const float *reference
        const int64_t *fitted
        const double *weights
        size_t n_fitted
    int fluctuation_add(const fluctuation *request, const float *structures, size_t count, int64_t *sums,
                        size_t *at) nogil


cdef const double *data_of(const double[::1] weights) noexcept:
    return NULL if weights is None else &weights[0]


cdef int check_pair(Py_ssize_t n, Py_ssize_t n_reference, const double[::1] weights) except -1:
    """Raise UsageError unless two structures can be compared."""
    if n_reference != n or n == 0:
        raise UsageError(f"positions and reference must be as many, and some, not {n} and {n_reference}")
    return check_weights(weights)


cdef int check_weights(const double[::1] weights) except -1:
    """Raise UsageError unless weights are such, or None."""
    cdef Py_ssize_t i
    cdef int good = 1, positive = 0
    if weights is None:
        return 0
    for i in range(weights.shape[0]):
        good &= weights[i] >= 0
        positive |= weights[i] > 0
    if not (good and positive):
        raise UsageError("weights must not be negative, nor all zero")
    return 0


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

    Examples
    --------
    >>> himach.kernels.rmsd([[1, 1, 1], [7, 1, 1]], [[0, 0, 0], [4, 0, 0]], superposition=False)
    1.0
    """
    cdef const float[:, ::1] mobile = as_positions("positions", positions)
    cdef const float[:, ::1] fixed = as_positions("reference", reference)
    cdef Py_ssize_t n = mobile.shape[0]
    cdef const double[::1] weighed = as_weights(weights, n)
    cdef double result
    check_pair(n, fixed.shape[0], weighed)
    cdef const double *each = data_of(weighed)
    with nogil:
        result = fit_rmsd(&mobile[0, 0], &fixed[0, 0], each, n, superposition)
    return result


def rmsd_matrix(a, b=None, cutoff=None, weights=None, bint superposition=True):
    """Return the root-mean-square deviation of each of many structures from each of others, in Å.

    Parameters
    ----------
    a
        float32 (m, n, 3), Å: m structures of n atoms.
    b
        float32 (k, n, 3), Å; None: the structures of `a`, where each pair is computed once.
    cutoff
        In Å: only whether each deviation is so much or less is returned, which takes less time. None: all of them.
    weights
        float64 (n,): weights of the atoms in the deviation and in the centres, such as masses; None for equal ones.
    superposition
        Whether each two structures are laid over one another first, as well as they can. Otherwise they are compared
        where they are, without a common centre.

    Returns
    -------
    float64 (m, k); with a cutoff uint8 (m, (k + 7) // 8), a bit for each pair, the lowest first:
    ``np.unpackbits(found, axis=1, count=k, bitorder="little")``.

    Raises
    ------
    UsageError
        If the arrays have other shapes, the cutoff is negative, or the weights are negative or all zero.
    MemoryError
        If there is no room for `a` and `b` in double precision.

    Notes
    -----
    The quaternion method, as of `rmsd`. Sums are of double precision, and those of a pair depend on this pair alone:
    parts of a matrix have the bits that they have in the whole of it. It releases the GIL.

    Examples
    --------
    >>> a = np.array([[[0, 0, 0], [2, 0, 0]], [[5, 5, 5], [5, 5, 9]], [[1, 0, 0], [3, 0, 0]]], dtype=np.float32)
    >>> himach.kernels.rmsd_matrix(a)
    array([[0., 1., 0.],
           [1., 0., 1.],
           [0., 1., 0.]])
    >>> himach.kernels.rmsd_matrix(a, cutoff=0.5)
    array([[5],
           [2],
           [5]], dtype=uint8)
    """
    cdef const float[:, :, ::1] rows = as_positions("a", a, ndim=3)
    cdef const float[:, :, ::1] columns = None if b is None else as_positions("b", b, ndim=3)
    cdef Py_ssize_t n = rows.shape[1]
    cdef structures first, second
    if columns is not None and columns.shape[1] != n:
        raise UsageError(f"a and b must be structures of as many atoms, not of {n} and {columns.shape[1]}")
    cdef const double[::1] weighed = as_weights(weights, n)
    check_weights(weighed)
    cdef deviation request = deviation(n=n, weights=data_of(weighed), superpose=superposition, cutoff=0)
    if cutoff is not None:
        request.cutoff = cutoff
        if not request.cutoff >= 0:
            raise UsageError(f"cutoff must be 0 or more, not {cutoff}")
    first.count = rows.shape[0]
    second.count = first.count if columns is None else columns.shape[0]
    result = np.zeros((first.count, second.count)) if cutoff is None else np.zeros(
        (first.count, (second.count + 7) // 8), np.uint8)
    if first.count == 0 or second.count == 0:
        return result
    first.positions = &rows[0, 0, 0]
    second.positions = NULL
    if columns is not None:
        second.positions = &columns[0, 0, 0]
    cdef double[:, ::1] deviations
    cdef uint8_t[:, ::1] bits
    cdef double *to = NULL
    cdef uint8_t *to_bits = NULL
    cdef int status
    if cutoff is None:
        deviations = result
        to = &deviations[0, 0]
    else:
        bits = result
        to_bits = &bits[0, 0]
    with nogil:
        status = deviations_find(first, second, &request, to, to_bits)
    if status != 0:
        raise MemoryError(f"no memory for {first.count + second.count} structures of {n} atoms in double precision")
    return result


def superposition(positions, reference, weights=None):
    """Return the rotation and the shift by which positions lie over a reference as well as they can.

    Parameters
    ----------
    positions
        float32 (n, 3), Å.
    reference
        float32 (n, 3), Å.
    weights
        float64 (n,): weights of the atoms, such as masses; None for equal ones.

    Returns
    -------
    rotation
        float64 (3, 3), without reflection.
    shift
        float64 (3,), Å: ``positions @ rotation.T + shift`` lies over the reference.

    Raises
    ------
    UsageError
        If the arrays have other shapes, there are no positions, or the weights are negative or all zero.

    Notes
    -----
    The rotation of ``MDAnalysis.analysis.align.rotation_matrix``, by the eigenvector of Horn, J. Opt. Soc. Am. A 4, 629
    (1987). It releases the GIL.

    Examples
    --------
    >>> rotation, shift = himach.kernels.superposition([[1, 1, 1], [2, 1, 1]], [[0, 0, 0], [0, 1, 0]])
    >>> np.abs(np.array([[1, 1, 1], [2, 1, 1]]) @ rotation.T + shift).round(6)
    array([[0., 0., 0.],
           [0., 1., 0.]])
    """
    cdef const float[:, ::1] mobile = as_positions("positions", positions)
    cdef const float[:, ::1] fixed = as_positions("reference", reference)
    cdef Py_ssize_t n = mobile.shape[0]
    cdef const double[::1] weighed = as_weights(weights, n)
    check_pair(n, fixed.shape[0], weighed)
    cdef const double *each = data_of(weighed)
    rotation, shift = np.empty((3, 3)), np.empty(3)
    cdef double[:, ::1] to_rotation = rotation
    cdef double[::1] to_shift = shift
    with nogil:
        fit_rotation(&mobile[0, 0], &fixed[0, 0], each, n, &to_rotation[0, 0], &to_shift[0])
    return rotation, shift


def move(positions, shift, rotation=None, out=None):
    """Return positions turned and moved: ``positions @ rotation.T + shift``.

    Parameters
    ----------
    positions
        float32 (n, 3), Å; or other vectors.
    shift
        float64 (3,), in the unit of the positions.
    rotation
        float64 (3, 3); None: they are only moved.
    out
        float32 (n, 3), contiguous: where the result goes, such as `positions` themselves; None: a new array.

    Returns
    -------
    float32 (n, 3).

    Raises
    ------
    UsageError
        If an array has another shape.

    Notes
    -----
    Sums are of double precision, and their bits the same on any machine, which a product of matrices does not give.
    It releases the GIL.

    Examples
    --------
    >>> himach.kernels.move([[1, 2, 3]], [0, 0, 1], rotation=[[0, -1, 0], [1, 0, 0], [0, 0, 1]])
    array([[-2.,  1.,  4.]], dtype=float32)
    """
    original = as_positions("positions", positions)
    cdef const float[:, ::1] kept = original
    cdef Py_ssize_t n = kept.shape[0]
    cdef const double[::1] by = as_doubles("shift", shift, (3,))
    cdef const double[:, ::1] turning
    cdef const double *turned = NULL
    if rotation is not None:
        turning = as_doubles("rotation", rotation, (3, 3))
        turned = &turning[0, 0]
    moved = as_output(out, original)
    cdef float[:, ::1] to = moved
    if n:
        with nogil:
            fit_move(&kept[0, 0], n, turned, &by[0], &to[0, 0])
    return moved


def deviation_sums(structures, fixed, reference=None, fitted=None, weights=None):
    """Return how far the atoms of many structures are from fixed positions, added up over the structures without error.

    Deviations are rounded to multiples of 2^-20 Å. Sums of these integers and of their squares are the same in any
    order and grouping.

    Parameters
    ----------
    structures
        float32 (m, n, 3), Å: m structures of n atoms.
    fixed
        float64 (n, 3), Å: from where the atoms deviate.
    reference
        float32 (k, 3), Å: over which each structure is laid first, as `superposition` does it. None: they are taken as
        they are.
    fitted
        int64 (k,): the places of the atoms that are laid over the reference; None: all n of them.
    weights
        float64 (k,): weights of these atoms, such as masses; None for equal ones.

    Returns
    -------
    int64 (5, n): sums of the deviations along three axes, in 2^-20 Å; and of the upper 32 and of the lower 32 bits of
    the squared deviation, in 2^-40 Å². Sums of up to 2^31 structures fit.

    Raises
    ------
    UsageError
        If the arrays have other shapes, a place is none, or the weights are negative or all zero; if an atom deviates
        by 1,024 Å or more along an axis.

    Notes
    -----
    It releases the GIL.

    Examples
    --------
    >>> structures = np.array([[[1, 2, 3]], [[2, 2, 3]]], dtype=np.float32)
    >>> sums = himach.kernels.deviation_sums(structures, fixed=[[1, 2, 3]])
    >>> sums[:3, 0] / 2**20
    array([1., 0., 0.])
    >>> (sums[3, 0] * 2**32 + sums[4, 0]) / 2**40
    np.float64(1.0)
    """
    cdef const float[:, :, ::1] kept = as_positions("structures", structures, ndim=3)
    cdef Py_ssize_t n = kept.shape[1], k = n
    cdef const double[:, ::1] origin = np.ascontiguousarray(fixed, dtype=np.float64)
    if origin.shape[0] != n or origin.shape[1] != 3:
        raise UsageError(f"fixed must have the shape ({n}, 3), a position for each atom, not {np.shape(fixed)}")
    cdef fluctuation request = fluctuation(n=n, fixed=&origin[0, 0], reference=NULL, fitted=NULL, weights=NULL,
                                           n_fitted=0)
    cdef const float[:, ::1] onto
    cdef const int64_t[::1] places
    cdef const double[::1] weighed
    if reference is not None:
        onto = as_positions("reference", reference)
        if fitted is not None:
            places = as_places("fitted", fitted, n)
            k = places.shape[0]
        weighed = as_weights(weights, k)
        check_pair(k, onto.shape[0], weighed)
        request.reference, request.n_fitted = &onto[0, 0], k
        if fitted is not None:
            request.fitted = &places[0]
        request.weights = data_of(weighed)
    sums = np.zeros((5, n), np.int64)
    cdef int64_t[:, ::1] view = sums
    cdef size_t count = kept.shape[0], at = 0
    cdef int status = 0
    if count:
        with nogil:
            status = fluctuation_add(&request, &kept[0, 0, 0], count, &view[0, 0], &at)
    if status == 1:
        raise MemoryError
    if status == 2:
        raise UsageError(f"an atom of structure {at} is 1024 Å or more from its fixed position along an axis")
    return sums


def gyration(positions, weights=None):
    """Return the gyration tensor of a group of atoms, the mean product of two coordinates about the centre.

    Parameters
    ----------
    positions
        float32 (n, 3), Å.
    weights
        float64 (n,): weights of the atoms, such as masses, in the means and in the centre; None for equal ones.

    Returns
    -------
    float64 (3, 3), Å², symmetric. Its trace is the squared radius of gyration, its eigenvalues tell the shape.

    Raises
    ------
    UsageError
        If the arrays have other shapes, there are no positions, or the weights are negative or all zero.

    Notes
    -----
    As defined by Theodorou and Suter, Macromolecules 18, 1206 (1985). Sums are of double precision, taken in one pass.
    It releases the GIL.

    Examples
    --------
    >>> himach.kernels.gyration([[1, 1, 1], [5, 1, 1]])
    array([[4., 0., 0.],
           [0., 0., 0.],
           [0., 0., 0.]])
    """
    cdef const float[:, ::1] kept = as_positions("positions", positions)
    cdef Py_ssize_t n = kept.shape[0]
    cdef const double[::1] weighed = as_weights(weights, n)
    if n == 0:
        raise UsageError("there are no positions, whose gyration tensor is none")
    check_weights(weighed)
    cdef const double *each = data_of(weighed)
    result = np.empty((3, 3))
    cdef double[:, ::1] view = result
    with nogil:
        shape_gyration(&kept[0, 0], each, n, &view[0, 0])
    return result
