# Centres of groups of atoms, and molecules under the periods of a box: wrapped into it, or made whole.

cdef extern from "box/lattice.h":
    void lattice_fold_all(const lattice *cell, const float *positions, size_t n, float *to) nogil

cdef extern from "molecules/molecules.h":
    void groups_centers(const float *positions, size_t n, const int64_t *groups, const double *weights,
                        size_t n_groups, double *centers, double *totals) nogil
    void groups_wrap(const lattice *cell, const float *positions, size_t n, const int64_t *groups,
                     double *centers, size_t n_groups, float *to) nogil
    void groups_unwrap(const lattice *cell, float *positions, const int64_t *bonds, size_t n_bonds) nogil


cdef int require_box(lattice *cell, box) except -1:
    if box is None:
        raise UsageError("there is no box; these positions cannot be moved by periods of it")
    return set_lattice(cell, as_box(box))


def centers(positions, groups=None, weights=None):
    """Return the centres of groups of atoms.

    Parameters
    ----------
    positions
        float32 (n, 3), Å.
    groups
        int64 (n,): the number of each atom's group, from 0, in any order; None: all atoms are one group.
    weights
        float64 (n,): weights of the atoms, such as masses; None for equal ones.

    Returns
    -------
    float64 (n_groups, 3), Å; NaN for a group without atoms or weight.

    Raises
    ------
    UsageError
        If an array has another shape, or groups are no numbers from 0.

    Notes
    -----
    As ``AtomGroup.center(weights, compound=...)``, with sums of double precision.

    Examples
    --------
    >>> positions = np.array([[1, 1, 1], [3, 1, 1], [5, 5, 5]], dtype=np.float32)
    >>> himach.kernels.centers(positions, groups=[0, 0, 1])
    array([[2., 1., 1.],
           [5., 5., 5.]])
    """
    cdef const float[:, ::1] kept = as_positions("positions", positions)
    cdef Py_ssize_t n = kept.shape[0]
    cdef const double[::1] weighed = as_weights(weights, n)
    numbers, count = as_groups(groups, n)
    cdef const int64_t[::1] grouped = numbers
    cdef size_t n_groups = count
    result, totals = np.empty((count, 3)), np.empty(count)
    cdef double[:, ::1] view = result
    cdef double[::1] sums = totals
    if n == 0:
        result[:] = np.nan
        return result
    cdef const double *each = data_of(weighed)
    cdef const int64_t *of = NULL
    if groups is not None:
        of = &grouped[0]
    with nogil:
        groups_centers(&kept[0, 0], n, of, each, n_groups, &view[0, 0], &sums[0])
    return result


def wrap(positions, box, groups=None, weights=None, out=None):
    """Return positions moved into the box by whole periods: each atom, or groups of atoms by their centre.

    Parameters
    ----------
    positions
        float32 (n, 3), Å.
    box
        float32 (6,): lengths in Å and angles in degrees, of any triclinic box.
    groups
        int64 (n,): the number of each atom's group, which moves as one; None: each atom moves by itself.
    weights
        float64 (n,): weights of the atoms in the centres of groups, such as masses; None for equal ones.
    out
        float32 (n, 3), contiguous: where the result goes, such as `positions` themselves; None: a new array.

    Returns
    -------
    float32 (n, 3), Å.

    Raises
    ------
    UsageError
        If an array has another shape, groups are no numbers from 0, or the box is none.

    Notes
    -----
    As ``AtomGroup.wrap()``; atom by atom, as ``MDAnalysis.lib.distances.apply_PBC`` to the last bit.

    Examples
    --------
    >>> himach.kernels.wrap([[11, 0, -1]], box=[10, 10, 10, 90, 90, 90])
    array([[1., 0., 9.]], dtype=float32)
    """
    cdef lattice cell
    require_box(&cell, box)
    original = as_positions("positions", positions)
    cdef const float[:, ::1] kept = original
    cdef Py_ssize_t n = kept.shape[0]
    moved = as_output(out, original)
    cdef float[:, ::1] to = moved
    cdef double[:, ::1] middles
    cdef const int64_t[::1] grouped
    if n == 0:
        return moved
    if groups is None:
        with nogil:
            lattice_fold_all(&cell, &kept[0, 0], n, &to[0, 0])
        return moved
    middles, grouped = centers(original, groups, weights), as_groups(groups, n)[0]
    with nogil:
        groups_wrap(&cell, &kept[0, 0], n, &grouped[0], &middles[0, 0], middles.shape[0], &to[0, 0])
    return moved


def unwrap(positions, bonds, box, out=None):
    """Return positions with molecules made whole: each bonded atom is put next to the one that it is bonded to.

    Parameters
    ----------
    positions
        float32 (n, 3), Å.
    bonds
        int64 (m, 2): for each bond, taken one after another, the atom that stays and the one that is moved. Bonds must
        be shorter than half the distance of two images. Where a molecule's bonds follow one another from its first atom
        outwards, that atom stays and the molecule is whole.
    box
        float32 (6,): lengths in Å and angles in degrees, of any triclinic box.
    out
        float32 (n, 3), contiguous: where the result goes, such as `positions` themselves; None: a new array.

    Returns
    -------
    float32 (n, 3), Å.

    Raises
    ------
    UsageError
        If an array has another shape, a bond's atom is not there, or the box is none.

    Notes
    -----
    As ``AtomGroup.unwrap(reference=None)``, which finds the order of the bonds anew each time.

    Examples
    --------
    >>> himach.kernels.unwrap([[1, 1, 1], [9, 1, 1]], bonds=[[0, 1]], box=[10, 10, 10, 90, 90, 90])
    array([[ 1.,  1.,  1.],
           [-1.,  1.,  1.]], dtype=float32)
    """
    cdef lattice cell
    require_box(&cell, box)
    kept = as_positions("positions", positions)
    moved = as_output(out, kept)
    if moved is not kept:
        moved[:] = kept
    cdef float[:, ::1] to = moved
    cdef const int64_t[:, ::1] bonded = as_places("bonds", bonds, len(moved), width=2)
    if bonded.shape[0]:
        with nogil:
            groups_unwrap(&cell, &to[0, 0], &bonded[0, 0], bonded.shape[0])
    return moved
