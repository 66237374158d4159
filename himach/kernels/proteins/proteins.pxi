# The secondary structure of proteins.

cdef extern from "proteins/dssp.h":
    enum:
        DSSP_CHAINS_FALL
    int dssp_assign(scratch *search, const float *positions, const int64_t *chains, const uint8_t *prolines, size_t n,
                    const lattice *cell, uint8_t *states) nogil


def dssp(backbone, chains=None, prolines=None, box=None):
    """Return the secondary structure of a protein by the definitions of DSSP, one letter a residue.

    Parameters
    ----------
    backbone
        float32 (n, 4, 3), Å: the N, CA, C and O of each residue, in the order of the sequence.
    chains
        int64 (n,): the number of each residue's chain, from 0, which does not fall from one residue to the next; a
        chain that has a gap is two. None: all residues are one chain.
    prolines
        bool (n,): which residues are prolines, as their nitrogens have no hydrogen; None: none is.
    box
        float32 (6,): lengths in Å and angles in degrees, of any triclinic box. A chain that its sides cut is made
        whole, beside its first atom; chains that are bonded to each other lie beside each other. None: chains are
        whole.

    Returns
    -------
    uint8 (n,): letters in ASCII. H: alpha helix; B: single bridge; E: strand in a ladder of bridges; G: 3-10 helix; I:
    pi helix; T: turn with a hydrogen bond; S: bend; P: polyproline helix; -: none of them.

    Raises
    ------
    UsageError
        If an array has another shape, a coordinate is not finite, numbers of chains fall, or the box is none.
    MemoryError
        If there is none.

    Notes
    -----
    Kabsch and Sander, Biopolymers 22, 2577 (1983), with what DSSP 4 has: energies of three digits, polyproline, and pi
    helices that go before alpha helices. Hydrogens are placed 1 Å from N, opposite to the C=O before. The first residue
    of a chain has none. It releases the GIL.

    Examples
    --------
    >>> turn, rise = np.radians(100), 1.5
    >>> def place(radius, degrees, height, i):
    ...     angle = np.radians(degrees) + i * turn
    ...     return radius * np.cos(angle), radius * np.sin(angle), height + i * rise
    >>> atoms = [(1.55, -27.9, -0.87), (2.29, 0, 0), (1.61, 26.2, 1.12), (1.99, 23.5, 2.29)]  # of an ideal alpha helix
    >>> helix = [[place(*atom, i) for atom in atoms] for i in range(12)]
    >>> bytes(himach.kernels.dssp(helix)).decode()
    '-HHHHHHHHHH-'
    """
    cdef const float[:, :, ::1] positions = as_positions("backbone", backbone, ndim=3, rows=4)
    cdef Py_ssize_t n = positions.shape[0]
    cdef const int64_t[::1] numbers = None if chains is None else as_groups(chains, n, "chains", "residue")[0]
    cdef const uint8_t[::1] flags = None if prolines is None else as_flags("prolines", prolines, n)
    cdef lattice cell
    set_lattice(&cell, as_box(box))
    result = np.empty(n, np.uint8)
    cdef uint8_t[::1] states = result
    if n == 0:
        return result
    cdef const int64_t *of_chain = NULL if numbers is None else &numbers[0]
    cdef const uint8_t *is_proline = NULL if flags is None else &flags[0]
    cdef int status
    cdef SearchMemory memory = take_scratch()
    with nogil:
        status = dssp_assign(&memory.memory, &positions[0, 0, 0], of_chain, is_proline, n, &cell, &states[0])
    spare.append(memory)
    check_status(status)
    if status == DSSP_CHAINS_FALL:
        raise UsageError("chains are numbers that do not fall from one residue to the next")
    return result
