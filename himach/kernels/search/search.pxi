# Searches by distance: `within`, `neighbors`, `contacts` and `histogram`.

cdef extern from "search/search.h":
    enum:
        SEARCH_OK
        SEARCH_NO_MEMORY
        SEARCH_NOT_FINITE
    struct atom_pair:
        pass
    int search_neighbors(scratch *memory, const lattice *cell, group a, const group *b, double cutoff,
                         const atom_pair **matches, size_t *n_matches) nogil
    int search_contacts(scratch *memory, const lattice *cell, group a, const int64_t *groups_a, size_t n_a,
                        const group *b, const int64_t *groups_b, size_t n_b, double cutoff, int distances,
                        const atom_pair **matches, size_t *n_matches) nogil
    void search_write(const atom_pair *matches, size_t n, int64_t *indices, double *distances) nogil
    int search_histogram(scratch *memory, const lattice *cell, group a, const group *b, const int64_t *groups_a,
                         const int64_t *groups_b, const double *edges, size_t bins, int64_t *counts) nogil
    int search_within(scratch *memory, const lattice *cell, group atoms, group others, double cutoff,
                      const int64_t **matches, size_t *n_matches) nogil


cdef int check_status(int status) except -1:
    if status == SEARCH_NO_MEMORY:
        raise MemoryError
    if status == SEARCH_NOT_FINITE:
        raise UsageError("positions must be finite, and there is a NaN or an infinity among them")
    return 0


cdef tuple check_groups(groups, Py_ssize_t n):
    """Return groups as int64 (n,) and the number of groups."""
    if groups is None:
        raise UsageError("groups must have the number of each position's group, and are None")
    matches = as_groups(groups, n)
    if matches[1] > MAX_ATOMS:
        raise UsageError(f"groups are numbered up to {matches[1] - 1}; more than {MAX_ATOMS} are too many")
    return matches


cdef class Search:
    """Arguments of a search, checked, and memory that no other search uses; `done()` gives it back."""

    cdef const float[:, ::1] positions, others
    cdef group a, b
    cdef const group *second  # NULL for the pairs among `positions`
    cdef lattice cell
    cdef double cutoff
    cdef SearchMemory scratch
    cdef scratch *memory

    def __init__(self, positions, others, cutoff, box):
        self.positions = as_positions("positions", positions)
        self.a = group_of(self.positions)
        if others is not None:
            self.others = as_positions("others", others)
            self.b = group_of(self.others)
            self.second = &self.b
        if not isinstance(cutoff, Real) or not 0 <= cutoff < float("inf"):
            raise UsageError(f"cutoff must be a number, 0 or more, not {cutoff!r}")
        self.cutoff = cutoff
        set_lattice(&self.cell, as_box(box))
        self.scratch = take_scratch()
        self.memory = &self.scratch.memory

    cdef int done(self) except -1:
        spare.append(self.scratch)
        return 0

    cdef object pairs(self, int status, const atom_pair *matches, size_t n, bint return_distances):
        """Return what was found, without distances unless these are requested."""
        cdef int64_t[:, ::1] indices
        cdef double[::1] lengths
        cdef double *to = NULL
        check_status(status)
        pairs = np.empty((n, 2), dtype=np.int64)
        distances = np.empty(n if return_distances else 0, dtype=np.float64)
        if n:
            indices, lengths = pairs, distances
            if return_distances:
                to = &lengths[0]
            with nogil:
                search_write(matches, n, &indices[0, 0], to)
        self.done()
        return (pairs, distances) if return_distances else pairs


def within(positions, others, cutoff, box=None):
    """Find which atoms are within a cutoff of any of others, by the minimum image.

    Parameters
    ----------
    positions
        float32 (n, 3), Å: the atoms to choose from.
    others
        float32 (m, 3), Å: the atoms that they may be near to.
    cutoff
        Largest distance in Å.
    box
        float32 (6,): lengths in Å and angles in degrees, of any triclinic box; None without one. With a cutoff of up to
        half the box's least width, the distance is that of the nearest images. Beyond, in strongly skewed boxes, it is
        that of the images that MDAnalysis takes for the nearest, as ``capped_distance`` does by ``bruteforce``.

    Returns
    -------
    int64 (k,): the places in `positions` of those that are near, ascending.

    Raises
    ------
    UsageError
        If an array has another shape, the box is none, a coordinate is not finite, or the cutoff is negative.

    Notes
    -----
    The same atoms, those at the cutoff included, as in the pairs of ``MDAnalysis.lib.distances.capped_distance``. It
    releases the GIL, and allocates nothing but what it returns.

    Examples
    --------
    >>> positions = np.array([[1, 1, 1], [7, 1, 1], [4, 4, 4]], dtype=np.float32)
    >>> box = np.array([8, 8, 8, 90, 90, 90], dtype=np.float32)
    >>> himach.kernels.within(positions, positions[:1], 2.5, box)
    array([0, 1])
    """
    if others is None:
        raise UsageError("others must be real numbers, not None")
    cdef Search search = Search(positions, others, cutoff, box)
    cdef const int64_t *matches = NULL
    cdef size_t n = 0
    cdef int status
    cdef int64_t[::1] view
    with nogil:
        status = search_within(search.memory, &search.cell, search.a, search.b, search.cutoff, &matches, &n)
    check_status(status)
    near = np.empty(n, dtype=np.int64)
    if n:
        view = near
        memcpy(&view[0], matches, n * sizeof(int64_t))
    search.done()
    return near


def neighbors(positions, others, cutoff, box=None, bint return_distances=True):
    """Find the pairs of atoms within a cutoff of each other, by the minimum image.

    Parameters
    ----------
    positions
        float32 (n, 3), Å.
    others
        float32 (m, 3), Å; None for the pairs among `positions`, each once and none of an atom with itself.
    cutoff
        Largest distance in Å.
    box
        float32 (6,): lengths in Å and angles in degrees, of any triclinic box, as that of `within`; None without one.
    return_distances
        Whether to return distances.

    Returns
    -------
    pairs
        int64 (k, 2): places in `positions` and in `others`, in this order. Among `positions`, the first is the lesser.
    distances
        float64 (k,), Å.

    Raises
    ------
    UsageError
        If an array has another shape, the box is none, a coordinate is not finite, or the cutoff is negative.

    Notes
    -----
    The same pairs, those at the cutoff included, and the same distances to the last bit as those of
    ``MDAnalysis.lib.distances.capped_distance`` and, among `positions`, of ``self_capped_distance`` by its methods
    ``nsgrid`` (100 atoms or more) and ``bruteforce``. It releases the GIL.

    Examples
    --------
    >>> positions = np.array([[1, 1, 1], [7, 1, 1], [4, 4, 4]], dtype=np.float32)
    >>> box = np.array([8, 8, 8, 90, 90, 90], dtype=np.float32)
    >>> himach.kernels.neighbors(positions, None, 2.5, box)
    (array([[0, 1]]), array([2.]))
    """
    cdef Search search = Search(positions, others, cutoff, box)
    cdef const atom_pair *matches = NULL
    cdef size_t n = 0
    cdef int status
    with nogil:
        status = search_neighbors(search.memory, &search.cell, search.a, search.second, search.cutoff, &matches, &n)
    return search.pairs(status, matches, n, return_distances)


def contacts(positions, groups, others, other_groups, cutoff, box=None, bint return_distances=True):
    """Find the pairs of groups, such as residues, that have any two atoms within a cutoff, by the minimum image.

    Parameters
    ----------
    positions
        float32 (n, 3), Å.
    groups
        int64 (n,): the number of each atom's group, from 0.
    others
        float32 (m, 3), Å; None for the pairs of groups of `positions`, each once and none of a group with itself.
    other_groups
        int64 (m,): the number of the group of each atom of `others`; None where there are none.
    cutoff
        Largest distance in Å.
    box
        float32 (6,): lengths in Å and angles in degrees, of any triclinic box, as that of `within`; None without one.
    return_distances
        Whether to return distances.

    Returns
    -------
    pairs
        int64 (k, 2): numbers of groups of `positions` and of `others`, in this order. Among `positions`, the first is
        the lesser.
    distances
        float64 (k,), Å: the least of any two atoms of both.

    Raises
    ------
    UsageError
        If an array has another shape, the box is none, a coordinate is not finite, the cutoff is negative, or the
        numbers of groups are.

    Notes
    -----
    The groups of the pairs that `neighbors` finds, each once, and the least of their distances, to the last bit. It
    releases the GIL.

    Examples
    --------
    >>> positions = np.array([[1, 1, 1], [7, 1, 1], [1, 2, 1]], dtype=np.float32)
    >>> box = np.array([8, 8, 8, 90, 90, 90], dtype=np.float32)
    >>> himach.kernels.contacts(positions, [0, 1, 1], None, None, 2.5, box)
    (array([[0, 1]]), array([1.]))
    """
    cdef Search search = Search(positions, others, cutoff, box)
    numbers, count = check_groups(groups, search.a.n)
    cdef const int64_t[::1] numbers_a = numbers, numbers_b = numbers
    cdef size_t n_a = count, n_b = count
    if others is not None:
        numbers_b, n_b = check_groups(other_groups, search.b.n)
    elif other_groups is not None:
        raise UsageError("other_groups are of others, and there are none")
    cdef const atom_pair *matches = NULL
    cdef size_t n = 0
    cdef int status = SEARCH_OK
    if numbers_a.shape[0] and numbers_b.shape[0]:
        with nogil:
            status = search_contacts(search.memory, &search.cell, search.a, &numbers_a[0], n_a, search.second,
                                     &numbers_b[0], n_b, search.cutoff, return_distances, &matches, &n)
    return search.pairs(status, matches, n, return_distances)


def histogram(positions, others, cutoff, bins, box=None, groups=None, other_groups=None):
    """Count pairs of atoms by their distance, by the minimum image; no list of pairs is made.

    Parameters
    ----------
    positions
        float32 (n, 3), Å.
    others
        float32 (m, 3), Å; None for the pairs among `positions`, each once and none of an atom with itself.
    cutoff
        Largest distance in Å.
    bins
        Number of bins of equal width from 0 to `cutoff`. The last one holds its upper edge, each other one its lower.
    box
        float32 (6,): lengths in Å and angles in degrees, of any triclinic box, as that of `within`; None without one.
    groups
        int64 (n,): numbers from 0, such as those of residues. Pairs of atoms with one number are not counted. None: all
        pairs are.
    other_groups
        int64 (m,): the same of `others`; None where these are None.

    Returns
    -------
    int64 (bins,).

    Raises
    ------
    UsageError
        If an array has another shape, the box is none, a coordinate is not finite, cutoff or bins are not positive, or
        only one of two groups of atoms has numbers.

    Notes
    -----
    The same as ``numpy.histogram(distances, bins, (0, cutoff))`` of the distances of
    ``MDAnalysis.lib.distances.capped_distance``, those at the edges of bins included. It releases the GIL.

    Examples
    --------
    >>> positions = np.array([[1, 1, 1], [7, 1, 1], [4, 4, 4]], dtype=np.float32)
    >>> box = np.array([8, 8, 8, 90, 90, 90], dtype=np.float32)
    >>> himach.kernels.histogram(positions, None, 2.5, 5, box)
    array([0, 0, 0, 0, 1])
    >>> himach.kernels.histogram(positions, None, 2.5, 5, box, groups=[0, 0, 1])
    array([0, 0, 0, 0, 0])
    """
    cdef Search search = Search(positions, others, cutoff, box)
    cdef int status
    if not isinstance(bins, Integral) or bins <= 0 or search.cutoff == 0:
        raise UsageError(f"cutoff and bins must be greater than 0, bins a whole number, not {cutoff} and {bins!r}")
    cdef size_t n_bins = bins
    cdef const double[::1] edges = np.linspace(0, search.cutoff, n_bins + 1)
    if (others is not None and groups is not None) != (other_groups is not None):
        raise UsageError("groups and other_groups go together: give both, or groups alone where others are None")
    cdef const int64_t[::1] numbers = as_groups(groups, search.a.n)[0]
    cdef const int64_t[::1] other_numbers = numbers if others is None else as_groups(other_groups, search.b.n)[0]
    cdef const int64_t *of_first = NULL
    cdef const int64_t *of_second = NULL
    if groups is not None and numbers.shape[0] and other_numbers.shape[0]:
        of_first, of_second = &numbers[0], &other_numbers[0]
    counts = np.zeros(n_bins, dtype=np.int64)
    cdef int64_t[::1] view = counts
    with nogil:
        status = search_histogram(search.memory, &search.cell, search.a, search.second, of_first, of_second, &edges[0],
                                  n_bins, &view[0])
    check_status(status)
    search.done()
    return counts
