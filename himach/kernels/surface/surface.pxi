# The solvent-accessible surface: what of each atom's sphere lies in no other one.

cdef extern from "surface/sasa.h":
    enum:
        SASA_NO_CELLS
    struct sphere:
        pass
    sphere *sphere_new(size_t n) nogil
    void sphere_free(sphere *points) nogil
    int sasa_count(scratch *memory, const lattice *cell, group atoms, const double *radii, const uint8_t *selected,
                   const sphere *points, int64_t *counts) nogil


cdef class Sphere:
    """Points of a sphere, and the table of its caps."""

    cdef sphere *points

    def __cinit__(self, size_t n):
        with nogil:
            self.points = sphere_new(n)
        if self.points is NULL:
            raise MemoryError

    def __dealloc__(self):
        sphere_free(self.points)


#: The last spheres that were asked for, by their numbers of points.
cdef dict spheres = {}
MOST_SPHERES = 4
MOST_POINTS = 100_000


cdef Sphere take_sphere(points):
    if not isinstance(points, Integral) or not 0 < points <= MOST_POINTS:
        raise UsageError(f"points must be a whole number from 1 to {MOST_POINTS:,}, not {points!r}")
    sphere = spheres.get(points)
    if sphere is None:
        if len(spheres) >= MOST_SPHERES:
            spheres.clear()
        sphere = spheres[points] = Sphere(points)
    return sphere


def sasa(positions, radii, probe=1.4, points=960, box=None, atoms=None):
    """Return the solvent-accessible surface area of atoms: what of their spheres lies in no other one.

    Parameters
    ----------
    positions
        float32 (n, 3), Å: every atom that may bury others.
    radii
        float64 (n,), Å: van der Waals radii.
    probe
        Radius of the solvent molecule in Å, which is added to each radius.
    points
        Number of points on each sphere.
    box
        float32 (6,): lengths in Å and angles in degrees, of any triclinic box, in which all is repeated; None: atoms
        are where they are.
    atoms
        int64 (m,): places in `positions` of the atoms whose areas are wanted, in any order; None: all.

    Returns
    -------
    float64 (n,), or (m,) for some of the atoms, in Å².

    Raises
    ------
    UsageError
        If an array has another shape, the box is none or narrower than two spheres reach, a coordinate is not finite,
        a radius or the probe's is negative, or points are not 1 to 100,000.

    Notes
    -----
    The method of Shrake and Rupley, J. Mol. Biol. 79, 351 (1973). Points lie along a golden spiral: the i-th of n at
    the height (2 i + 1) / n - 1 along y, and turned on by the golden angle, as those of ``mdtraj.shrake_rupley``. An
    area is a number of points times the area of one. Which points are buried is decided in single precision where it
    can tell, else in double, so that every processor gives the same bits. It releases the GIL.

    Examples
    --------
    Two carbon atoms 3 Å apart: each buries a cap of the other's sphere, and 179.2 Å² are left.

    >>> positions = np.array([[0, 0, 0], [3, 0, 0]], dtype=np.float32)
    >>> himach.kernels.sasa(positions, radii=[1.7, 1.7]).round(1)
    array([89.3, 89.9])
    """
    cdef const float[:, ::1] kept = as_positions("positions", positions)
    cdef Py_ssize_t n = kept.shape[0]
    if not isinstance(probe, Real) or not 0 <= probe < float("inf"):
        raise UsageError(f"probe must be a radius in Å, 0 or more, not {probe!r}")
    reaches = as_radii(radii, n) + float(probe)
    chosen = None if atoms is None else as_places("atoms", atoms, n)
    cdef const double[::1] reach = reaches
    cdef Sphere on_sphere = take_sphere(points)
    cdef lattice cell
    set_lattice(&cell, as_box(box))
    counts = np.zeros(n, dtype=np.int64)
    if n == 0:
        return counts.astype(np.float64)
    cdef int64_t[::1] to = counts
    cdef const uint8_t[::1] flags
    cdef const uint8_t *selected = NULL
    if chosen is not None:
        flagged = np.zeros(n, dtype=np.uint8)
        flagged[chosen] = 1
        flags = flagged
        selected = &flags[0]
    cdef group all_atoms = group_of(kept)
    cdef int status
    cdef SearchMemory memory = take_scratch()
    with nogil:
        status = sasa_count(&memory.memory, &cell, all_atoms, &reach[0], selected, on_sphere.points, &to[0])
    spare.append(memory)
    check_status(status)
    if status == SASA_NO_CELLS:
        raise UsageError(
            f"the box is narrower than the {2 * reaches.max():.4g} Å that two spheres reach, or coordinates are so far "
            "out that single precision cannot tell them apart"
        )
    areas = counts * (4 * np.pi / points * reaches**2)
    return areas if chosen is None else areas[chosen]
