# Angles of bonds: dihedrals, and order along a direction.

cdef extern from "angles/dihedrals.h":
    void dihedrals_degrees(const lattice *cell, const float *positions, const int64_t *places, size_t n,
                           double *degrees) nogil

cdef extern from "angles/order.h":
    size_t order_sums(const lattice *cell, const float *positions, const int64_t *pairs, size_t n_pairs,
                      const int64_t *kinds, const double *normal, int64_t *sums) nogil


def dihedrals(positions, quadruples, box=None):
    """Return dihedral angles, by the minimum image of each of the three bonds.

    Parameters
    ----------
    positions
        float32 (n, 3), Å.
    quadruples
        int64 (m, 4): the places in `positions` of each angle's four atoms, as they follow one another.
    box
        float32 (6,): lengths in Å and angles in degrees, of any triclinic box; None without one.

    Returns
    -------
    float64 (m,): degrees, above -180 and up to 180. It is 0 where the first atom eclipses the last; positive where,
    seen along the middle bond, the front one must turn clockwise to do so (IUPAC). NaN where three atoms are on a line.

    Raises
    ------
    UsageError
        If an array has another shape, an atom is not there, or the box is none.

    Notes
    -----
    As ``MDAnalysis.lib.distances.calc_dihedrals``, in degrees. It releases the GIL.

    Examples
    --------
    >>> himach.kernels.dihedrals([[0, 1, 0], [0, 0, 0], [1, 0, 0], [1, 0, 1]], [[0, 1, 2, 3]])
    array([90.])
    """
    cdef const float[:, ::1] kept = as_positions("positions", positions)
    cdef const int64_t[:, ::1] places = as_places("quadruples", quadruples, kept.shape[0], width=4)
    cdef lattice cell
    set_lattice(&cell, as_box(box))
    cdef size_t n = places.shape[0]
    result = np.empty(n)
    cdef double[::1] view = result
    if n:
        with nogil:
            dihedrals_degrees(&cell, &kept[0, 0], &places[0, 0], n, &view[0])
    return result


def order_parameters(positions, pairs, kinds=None, box=None, normal=(0, 0, 1), n_kinds=None):
    """Return the sums of the order parameters of bonds, exact, in units of 2^-30.

    The order parameter of a bond is (3 cos² - 1) / 2 of its angle to the normal: 1 along it, -1/2 across.

    Parameters
    ----------
    positions
        float32 (n, 3), Å.
    pairs
        int64 (m, 2): the two atoms of each bond, as places in `positions`. Of the second the image that is nearest to
        the first counts; bonds must be shorter than half the box's least width.
    kinds
        int64 (m,): which sum each bond belongs to, from 0; None: all belong to one.
    box
        float32 (6,): lengths in Å and angles in degrees, of any triclinic box; None: the bonds are whole.
    normal
        Three numbers, not all zero: the direction that order is told along.
    n_kinds
        How many sums there are; None: as many as the largest of `kinds` asks for.

    Returns
    -------
    int64 (n_kinds,): of each kind the sum over its bonds. Divided by 2^30 and the number of bonds it is the mean.

    Raises
    ------
    UsageError
        If an array has another shape, a bond's atom or kind is not there, the box or the normal is none, or the atoms
        of a bond are at one place or not finite.

    Notes
    -----
    Each bond's order is rounded to a multiple of 2^-30 (1e-9), so that sums over frames are the same whoever adds up
    which. It releases the GIL.

    Examples
    --------
    >>> sums = himach.kernels.order_parameters([[0, 0, 0], [0, 0, 1], [1, 0, 0]], pairs=[[0, 1], [0, 2]], kinds=[0, 1])
    >>> sums / 2**30
    array([ 1. , -0.5])
    """
    cdef lattice cell
    cdef const float[:, ::1] kept = as_positions("positions", positions)
    cdef const int64_t[:, ::1] bonded = as_places("pairs", pairs, kept.shape[0], width=2)
    cdef const double[::1] along = as_direction("normal", normal)
    numbers, count = as_groups(kinds, bonded.shape[0], "kinds", "pair")
    cdef const int64_t[::1] grouped = numbers
    cdef const int64_t *of = NULL
    cdef size_t n_pairs = bonded.shape[0], done
    if n_kinds is not None:
        if n_kinds < count:
            raise UsageError(f"kinds go up to {count - 1}, and n_kinds is {n_kinds}")
        count = n_kinds
    set_lattice(&cell, as_box(box))
    result = np.zeros(count, np.int64)
    cdef int64_t[::1] sums = result
    if n_pairs == 0:
        return result
    if kinds is not None:
        of = &grouped[0]
    with nogil:
        done = order_sums(&cell, &kept[0, 0], &bonded[0, 0], n_pairs, of, &along[0], &sums[0])
    if done < n_pairs:
        raise UsageError(f"pair {done} has no direction: its atoms are at one place, or not finite")
    return result
